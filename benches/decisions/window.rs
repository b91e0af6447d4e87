//! Instructions of RL.WINDOW compared with the ZSET recipes, from 10 to 10,000 events in the window.

use crate::callgrind;
use crate::report::Table;
use crate::workload::{Scripts, Workload, PIPELINE};
use crate::{Effort, Result};

/// Windows of 60 seconds: the options of RL.WINDOW, the limit, and the time in which one event leaves a full window, which
/// is longer if events count until the end of their bucket. Without options the window is exact, but for a 4096th of the
/// period above 4096 events.
const WINDOWS: [(&str, u64, u64); 6] = [
    ("", 10, 6_000_000),
    ("", 100, 600_000),
    ("", 10_000, 6_000),
    (" BUCKETS 10", 100, 660_000),
    (" FIXED", 100, 600_000),
    (" FIXED FROM first", 100, 600_000),
];

/// Calls about windows that were filled by 1.5 times as many calls as the limit allows.
fn row(name: &str, ask: &str, events: u64, pace_us: u64, verdict: &str) -> Workload {
    let name = format!("{name}, {events} events, {verdict}");
    Workload::new(name, PIPELINE, ask).filled_by(events * 3 / 2, pace_us)
}

/// Calls of which each comes when one event leaves, and calls while the clock stands.
fn own_rows((options, events, pace_us): (&str, u64, u64)) -> [Workload; 2] {
    let name = format!("RL.WINDOW{options}");
    let call = format!("RL.WINDOW <key> {events} 60{options}");
    let rest = format!("RL.WINDOW <key> {events} 60 {events}{options} ATMOST");
    let allowed = row(&name, &call, events, pace_us, "allowed").paced(pace_us).allowed();
    let denied = row(&name, &call, events, pace_us, "denied").prepared_by([rest]).denied();
    [
        allowed.peer(format!("ZSET MULTI, {events} events, allowed")),
        denied.peer(format!("ZSET Lua, {events} events, denied")),
    ]
}

fn peer_rows(scripts: &Scripts, events: u64) -> [Workload; 3] {
    let pace_us = 60_000_000 / events;
    // People pipeline this transaction. It adds the event before it decides.
    let multi = "MULTI\nZADD <key> <ms> <ms>:<number>\nZREMRANGEBYSCORE <key> 0 <ms-60000>\n\
                 ZCARD <key>\nEXPIRE <key> 60\nEXEC";
    let lua = format!("{} 1 <key> <ms> <ms-60000> {events} <ms>:<number> 60", scripts["window"]);
    [
        row("ZSET MULTI", multi, events, pace_us, "allowed").paced(pace_us),
        row("ZSET Lua", &lua, events, pace_us, "allowed").paced(pace_us).allowed(),
        row("ZSET Lua", &lua, events, pace_us, "denied").denied(),
    ]
}

/// Counts them all.
pub fn table(effort: &Effort) -> Result<Table> {
    let title = "Instructions of the whole server per decision about a full window of 60 s (50 keys in turn, pipeline 50)";
    let rows = |scripts: &Scripts| {
        let windows = WINDOWS.into_iter().filter(|(_, events, _)| *events <= effort.largest_key);
        let peers = [10, 100, 10_000].into_iter().filter(|events| *events <= effort.largest_key);
        let peers = peers.flat_map(|events| peer_rows(scripts, events));
        windows.flat_map(own_rows).chain(peers).collect()
    };
    Ok(callgrind::table(title, effort, rows))
}
