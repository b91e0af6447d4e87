//! RL.THROTTLE beside the plain commands and the GCRA script: instructions.

use crate::callgrind::Meter;
use crate::client::Result;
use crate::peers::Scripts;
use crate::report::{Table, SET_EX};
use crate::server::{Installation, Time};
use crate::workload::{allowed, denied, Workload};

/// Every command goes round this many keys, which all exist.
const KEYS: u64 = 1000;

/// What `SET` stores: as long as a theoretical arrival time in nanoseconds.
const INTEGER: &str = "1893456000000000000";

pub const ALLOWED: &str = "RL.THROTTLE allowed";
pub const FRACTION: &str = "RL.THROTTLE allowed, fraction";
pub const DENIED: &str = "RL.THROTTLE denied";
pub const LUA_ALLOWED: &str = "GCRA Lua allowed";
pub const LUA_DENIED: &str = "GCRA Lua denied";

/// The rows, each with the name of its peer.
pub fn workloads(scripts: &Scripts) -> Vec<(Workload, Option<&'static str>)> {
    let gcra = scripts.gcra.clone();
    let gcra_full = scripts.gcra.clone();
    let gcra_fill = format!("EVALSHA {gcra}");
    let integers = || all_keys(|key| format!("SET {key} {INTEGER}"));
    vec![
        (Workload::new("PING", |_| "PING".into()), None),
        (Workload::new("GET", |i| format!("GET {}", key(i))).prepared_by(integers()), None),
        (Workload::new("INCR", |i| format!("INCR {}", key(i))).prepared_by(integers()), None),
        (Workload::new("SET", |i| format!("SET {} {INTEGER}", key(i))), None),
        (set_ex(), None),
        // The burst is never used up, so that no clock is needed; each call moves the TTL.
        (
            Workload::new(ALLOWED, |i| format!("RL.THROTTLE {} 1000000 30 60", key(i)))
                .expecting(allowed),
            Some(LUA_ALLOWED),
        ),
        (
            Workload::new(FRACTION, |i| format!("RL.THROTTLE {} 1000000 7 60", key(i)))
                .expecting(allowed),
            Some(LUA_ALLOWED),
        ),
        (
            Workload::new(DENIED, |i| format!("RL.THROTTLE {} 15 1 86400", key(i)))
                .prepared_by(all_keys(|key| format!("RL.THROTTLE {key} 15 1 86400 16")))
                .expecting(denied),
            Some(LUA_DENIED),
        ),
        (
            Workload::new(LUA_ALLOWED, move |i| {
                format!("EVALSHA {gcra} 1 {} 1000000 30 60 1", key(i))
            })
            .expecting(allowed),
            None,
        ),
        (
            Workload::new(LUA_DENIED, move |i| {
                format!("EVALSHA {gcra_full} 1 {} 16 1 86400 1", key(i))
            })
            .prepared_by(all_keys(|key| format!("{gcra_fill} 1 {key} 16 1 86400 16")))
            .expecting(denied),
            None,
        ),
    ]
}

/// The command that all costs are compared with.
pub fn set_ex() -> Workload {
    Workload::new(SET_EX, |i| format!("SET {} {INTEGER} EX 60", key(i)))
        .prepared_by(all_keys(|key| format!("SET {key} {INTEGER} EX 60")))
}

fn key(number: u64) -> String {
    format!("user:{:06}", number % KEYS)
}

fn all_keys(command: impl Fn(String) -> String) -> Vec<String> {
    (0..KEYS).map(|number| command(key(number))).collect()
}

/// Counts them all.
pub fn table(installation: &Installation, decisions: usize) -> Result<Table> {
    let mut meter = Meter::start(installation, Time::Real, decisions)?;
    let title =
        format!("Instructions of the whole server per command ({KEYS} keys in turn, pipeline 50)");
    let mut table = Table::new("throttle", title, &[Meter::COLUMN]);
    for (workload, peer) in workloads(&meter.server.scripts) {
        meter.add(&mut table, &workload, peer.map(str::to_string))?;
    }
    Ok(table)
}
