//! Instructions of RL.THROTTLE compared with plain commands and the GCRA script, and of three limits in one call.

use crate::callgrind::Meter;
use crate::client::Result;
use crate::peers::Scripts;
use crate::report::{Table, SET_EX};
use crate::server::Time;
use crate::workload::{allowed, denied, Workload};

/// Every command uses this many keys in turn, which all exist.
const KEYS: u64 = 1000;

/// The value that `SET` stores, as long as a theoretical arrival time in nanoseconds.
const INTEGER: &str = "1893456000000000000";

pub const ALLOWED: &str = "RL.THROTTLE allowed";
pub const FRACTION: &str = "RL.THROTTLE allowed, fraction";
pub const INCREX: &str = "INCREX";
pub const FORCE: &str = "RL.THROTTLE FORCE";
pub const AHEAD: &str = "RL.THROTTLE AHEAD";
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
        // The counter with a bound that Redis 8.8 and Valkey 9.2 have.
        (Workload::new(INCREX, |i| format!("INCREX {} UBOUND 1000000000 EX 60 ENX", key(i))), None),
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
            Workload::new(FORCE, |i| format!("RL.THROTTLE {} 1000000 30 60 1 FORCE", key(i)))
                .expecting(allowed),
            Some(ALLOWED),
        ),
        (
            Workload::new(AHEAD, |i| format!("RL.THROTTLE {} 1000000 30 60 1 AHEAD 60000", key(i)))
                .expecting(allowed),
            Some(ALLOWED),
        ),
        (
            Workload::new(DENIED, denied_call).prepared_by(used_up()).expecting(denied),
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

/// The command with which all costs are compared.
pub fn set_ex() -> Workload {
    Workload::new(SET_EX, |i| format!("SET {} {INTEGER} EX 60", key(i)))
        .prepared_by(all_keys(|key| format!("SET {key} {INTEGER} EX 60")))
}

fn denied_call(i: u64) -> String {
    format!("RL.THROTTLE {} 15 1 86400", key(i))
}

/// The calls that use up everything, so that those calls are denied.
fn used_up() -> Vec<String> {
    all_keys(|key| format!("RL.THROTTLE {key} 15 1 86400 16"))
}

fn key(number: u64) -> String {
    format!("user:{:06}", number % KEYS)
}

fn all_keys(command: impl Fn(String) -> String) -> Vec<String> {
    (0..KEYS).map(|number| command(key(number))).collect()
}

/// The number of keys that RL.TOP keeps, in each row about it.
pub const TOP_KEYS: [u64; 2] = [0, 128];

/// A denied call while RL.TOP keeps this many keys.
pub fn denied_with_top(top_keys: u64) -> String {
    format!("{DENIED}, top-keys {top_keys}")
}

/// Counts them all.
pub fn table(decisions: usize) -> Result<Table> {
    let mut meter = Meter::start(Time::Real, decisions)?;
    let title =
        format!("Instructions of the whole server per command ({KEYS} keys in turn, pipeline 50)");
    let mut table = Table::new("throttle", title, &Meter::COLUMNS);
    for (workload, peer) in workloads(&meter.scripts()) {
        meter.add(&mut table, &workload, peer.map(str::to_string))?;
    }
    for top_keys in TOP_KEYS {
        let mut prepare = used_up();
        prepare.insert(0, format!("CONFIG SET ratelimit.top-keys {top_keys}"));
        let workload = Workload::new(denied_with_top(top_keys), denied_call)
            .prepared_by(prepare)
            .expecting(denied);
        meter.add(&mut table, &workload, Some(DENIED.into()))?;
    }
    Ok(table)
}

pub const ALL: &str = "RL.ALL";
pub const SINGLE: &str = "three commands";
pub const SCRIPT: &str = "Lua, three commands";

/// The name of a row about three limits.
pub fn row_of_several(what: &str, verdict: &str) -> String {
    format!("{what}, {verdict}")
}

/// Three limits at once: two buckets and a calendar window, which all allow or all deny.
pub fn several(decisions: usize) -> Result<Table> {
    let mut meter = Meter::start(Time::Real, decisions)?;
    let title = "Instructions of the whole server per decision about three limits (three keys, pipeline 50)";
    let mut table = Table::new("several", title, &Meter::COLUMNS);
    meter.add(&mut table, &set_ex(), None)?;
    let script = meter.scripts().several;
    // Two rates and a window that never deny in this run, and others that are used up.
    let cases = [
        ("allowed", ["1000000000 30 60", "1000000000 500 60", "1000000000 1d"], vec![]),
        (
            "denied",
            ["15 1 86400", "15 1 86400", "15 1d"],
            vec![
                "RL.THROTTLE {u}:a 15 1 86400 16".to_string(),
                "RL.THROTTLE {u}:b 15 1 86400 16".to_string(),
                "RL.WINDOW {u}:c 15 1d 15 FIXED".to_string(),
            ],
        ),
    ];
    for (verdict, [a, b, c], fill) in cases {
        let keys = "{u}:a {u}:b {u}:c";
        let rows = [
            (
                SINGLE,
                format!(
                    "RL.THROTTLE {{u}}:a {a}\nRL.THROTTLE {{u}}:b {b}\nRL.WINDOW {{u}}:c {c} FIXED"
                ),
            ),
            (ALL, format!("RL.ALL 3 {keys} THROTTLE {a} THROTTLE {b} WINDOW {c} FIXED")),
            (SCRIPT, format!("EVALSHA {script} 3 {keys} {a} {b} {c}")),
        ];
        for (name, commands) in rows {
            let peer = (name != SINGLE).then(|| row_of_several(SINGLE, verdict));
            let workload = Workload::new(row_of_several(name, verdict), move |_| commands.clone())
                .prepared_by(fill.clone())
                .expecting(if verdict == "allowed" { allowed } else { denied });
            meter.add(&mut table, &workload, peer)?;
        }
    }
    Ok(table)
}
