//! Instructions of RL.WINDOW compared with the ZSET recipes, from 10 to 10,000 events in the window.

use crate::callgrind::Meter;
use crate::peers::Scripts;
use crate::report::Table;
use crate::server::Time;
use crate::throttle;
use crate::workload::{allowed, denied, Workload};
use crate::Result;
use support::START_US;

/// Every window is this long.
pub const PERIOD_US: u64 = 60_000_000;

/// The sizes of windows with buckets, by the calendar, and from the first event on.
const OTHER_SIZES: [u64; 2] = [10, 100];

/// The share of an event by which calls are slower, as the calls of one exchange come a little faster than the exchanges do,
/// which matters in a small window. It is less than one event, so that the window stays full.
const JITTER: f64 = 0.5;

/// A kind of window that RL.WINDOW keeps.
#[derive(Clone, Copy)]
struct WindowVariant {
    name: &'static str,
    options: &'static str,
    /// The factor by which calls must be slower than events leave, because of the jitter of the pace, and because events
    /// may count for a bucket longer.
    slack: f64,
}

/// The kinds; the first is the exact one (above 4096 events: exact but for a 4096th of the period).
const KINDS: [WindowVariant; 4] = [
    WindowVariant { name: "RL.WINDOW", options: "", slack: 1.02 },
    WindowVariant { name: "RL.WINDOW BUCKETS 10", options: "BUCKETS 10", slack: 1.14 },
    WindowVariant { name: "RL.WINDOW FIXED", options: "FIXED", slack: 1.02 },
    WindowVariant { name: "RL.WINDOW FIXED FROM first", options: "FIXED FROM first", slack: 1.02 },
];

/// The name of a row.
fn row(what: &str, events: u64, verdict: &str) -> String {
    format!("{what}, {events} events, {verdict}")
}

impl WindowVariant {
    /// Steady state: each call comes when one event leaves, so that the window stays full and the call is allowed.
    fn allowed(self, events: u64) -> Workload {
        self.calls(events, "allowed")
            .led_in_by(self.calls(events, "filling"), filling(events))
            .expecting(allowed)
    }

    /// A full window while the clock stands. The first command takes what is left.
    fn denied(self, events: u64) -> Workload {
        let WindowVariant { name, options, .. } = self;
        let command = format!("RL.WINDOW window {events} 60 {options}");
        Workload::new(row(name, events, "denied"), move |_| command.clone())
            .led_in_by(self.calls(events, "filling"), filling(events))
            .prepared_by([format!("RL.WINDOW window {events} 60 {events} {options} ATMOST")])
            .expecting(denied)
    }

    fn calls(self, events: u64, verdict: &str) -> Workload {
        let WindowVariant { name, options, slack } = self;
        let command = format!("RL.WINDOW window {events} 60 {options}");
        Workload::new(row(name, events, verdict), move |_| command.clone())
            .paced((slack + JITTER / events as f64) * PERIOD_US as f64 / events as f64)
    }
}

/// The calls that bring an empty window to its steady state: 1.5 times the limit, and enough for the pace to settle.
fn filling(events: u64) -> usize {
    1000.max(events as usize * 3 / 2)
}

/// Milliseconds of the clients' clock when event number `i` comes, at a pace of `events` in each period.
fn now_ms(i: u64, events: u64) -> u64 {
    START_US.unsigned_abs() / 1000 + i * (PERIOD_US / 1000) / events
}

/// Fills the ZSETs of the recipes: events `0..events`, evenly over one period.
fn filled_zset(key: &str, events: u64) -> Vec<String> {
    let members: Vec<String> =
        (0..events).map(|i| format!("{} {}", now_ms(i, events), member(i, events))).collect();
    members.chunks(500).map(|chunk| format!("ZADD {key} {}", chunk.join(" "))).collect()
}

/// A member in its usual form: the time, and a number that makes it unique.
fn member(i: u64, events: u64) -> String {
    format!("{}:{:06}", now_ms(i, events), i % 1_000_000)
}

/// The Lua script, each call when one event leaves.
fn lua_allowed(scripts: &Scripts, events: u64) -> Workload {
    let script = scripts.window.clone();
    // Whole milliseconds may keep an event a moment longer.
    let limit = events + 1;
    Workload::new(row("ZSET Lua", events, "allowed"), move |i| {
        let i = events + i;
        let (now, member) = (now_ms(i, events), member(i, events));
        let before = now - PERIOD_US / 1000;
        format!("EVALSHA {script} 1 window {now} {before} {limit} {member} 60")
    })
    .prepared_by(filled_zset("window", events))
    .expecting(allowed)
}

/// The Lua script at a standing clock.
fn lua_denied(scripts: &Scripts, events: u64) -> Workload {
    let script = scripts.window.clone();
    let now = now_ms(events - 1, events);
    let before = now - PERIOD_US / 1000;
    Workload::new(row("ZSET Lua", events, "denied"), move |i| {
        format!("EVALSHA {script} 1 window {now} {before} {events} {now}:{:06} 60", i % 1_000_000)
    })
    .prepared_by(filled_zset("window", events))
    .expecting(denied)
}

/// The transaction that people pipeline. It adds the event before it decides.
fn transaction(events: u64) -> Workload {
    Workload::new(row("ZSET MULTI", events, "allowed"), move |i| {
        let i = events + i;
        let (now, member) = (now_ms(i, events), member(i, events));
        let before = now - PERIOD_US / 1000;
        format!(
            "MULTI\nZADD window {now} {member}\nZREMRANGEBYSCORE window 0 {before}\nZCARD window\n\
             EXPIRE window 60\nEXEC"
        )
    })
    .prepared_by(filled_zset("window", events))
}

/// Counts them all, each with one key.
pub fn table(decisions: usize, sizes: &[u64]) -> Result<Table> {
    let mut meter = Meter::start(Time::Held, decisions);
    let title = "Instructions of the whole server per decision about a full window of 60 s (one key, pipeline 50)";
    let mut table = Table::new("window", title, &Meter::COLUMNS);
    let scripts = meter.scripts();
    meter.add(&mut table, &throttle::set_ex(), None);
    for (index, kind) in KINDS.into_iter().enumerate() {
        for &events in sizes.iter().filter(|size| index == 0 || OTHER_SIZES.contains(size)) {
            let [multi, lua] =
                [row("ZSET MULTI", events, "allowed"), row("ZSET Lua", events, "denied")];
            meter.add(&mut table, &kind.allowed(events), Some(&multi));
            meter.add(&mut table, &kind.denied(events), Some(&lua));
        }
    }
    for &events in sizes {
        for workload in
            [transaction(events), lua_allowed(&scripts, events), lua_denied(&scripts, events)]
        {
            meter.add(&mut table, &workload, None);
        }
    }
    Ok(table)
}
