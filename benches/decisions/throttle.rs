//! Instructions of RL.THROTTLE compared with plain commands and the GCRA script, and of three limits in one call.

use crate::callgrind;
use crate::report::{Table, SET_EX};
use crate::workload::{Scripts, Workload};
use crate::{Effort, Result};

/// Every command uses this many keys in turn, which all exist.
const KEYS: u64 = 1000;

const ALLOWED: &str = "RL.THROTTLE allowed";
const DENIED: &str = "RL.THROTTLE denied";
const LUA_ALLOWED: &str = "GCRA Lua allowed";

fn row(name: &str, ask: impl Into<String>) -> Workload {
    Workload::new(name, KEYS, ask)
}

/// The command with which all costs are compared. The value is as long as a theoretical arrival time in nanoseconds.
pub fn set_ex() -> Workload {
    let set = "SET <key> 1893456000000000000 EX 60";
    row(SET_EX, set).prepared_by([set])
}

/// Calls whose burst is never used up; each moves the TTL.
fn allowed(name: &str, rest: &str) -> Workload {
    row(name, format!("RL.THROTTLE <key> 1000000 {rest}")).allowed()
}

/// Calls on keys whose burst is used up by a call of 16.
fn denied(name: &str, call: &str, one: &str) -> Workload {
    row(name, format!("{call}{one}")).prepared_by([format!("{call} 16")]).denied()
}

/// The rows that are timed, too.
pub fn main_rows(scripts: &Scripts) -> Vec<Workload> {
    let gcra = &scripts["gcra"];
    vec![
        row("INCR", "INCR <key>").prepared_by(["SET <key> 1893456000000000000"]),
        allowed(ALLOWED, "30 60").peer(LUA_ALLOWED),
        denied(DENIED, "RL.THROTTLE <key> 15 1 86400", "").peer("GCRA Lua denied"),
        row("redis-cell allowed", "CL.THROTTLE <key> 1000000 30 60").allowed(),
        denied("redis-cell denied", "CL.THROTTLE <key> 15 1 86400", ""),
        row(LUA_ALLOWED, format!("{gcra} 1 <key> 1000000 30 60 1")).allowed(),
        denied("GCRA Lua denied", &format!("{gcra} 1 <key> 16 1 86400"), " 1"),
    ]
}

/// Counts them all.
pub fn table(effort: &Effort) -> Result<Table> {
    let title = "Instructions of the whole server per command (1000 keys in turn, pipeline 50)";
    let rows = |scripts: &Scripts| {
        let mut rows = main_rows(scripts);
        rows.extend([
            row("PING", "PING"),
            // The counter with a bound that Redis 8.8 and Valkey 9.2 have.
            row("INCREX", "INCREX <key> UBOUND 1000000000 EX 60 ENX"),
            allowed("RL.THROTTLE allowed, fraction", "7 60").peer(LUA_ALLOWED),
            allowed("RL.THROTTLE FORCE", "30 60 1 FORCE").peer(ALLOWED),
            allowed("RL.THROTTLE AHEAD", "30 60 1 AHEAD 60000").peer(ALLOWED),
            denied("RL.THROTTLE denied, top-keys 0", "RL.THROTTLE <key> 15 1 86400", "")
                .prepared_by(["RL.THROTTLE <key> 15 1 86400 16", "CONFIG SET ratelimit.top-keys 0"])
                .peer(DENIED),
        ]);
        rows
    };
    Ok(callgrind::table(title, effort, rows))
}

/// Three limits at once: two buckets and a calendar window, which all allow or all deny.
pub fn several(effort: &Effort) -> Result<Table> {
    let title = "Instructions of the whole server per decision about three limits (three keys, pipeline 50)";
    let rows = |scripts: &Scripts| {
        let rows_of = |verdict, [a, b, c]: [&str; 3]| {
            let three = format!("three commands, {verdict}");
            let keys = "{<key>}:a {<key>}:b {<key>}:c";
            let commands = format!(
                "RL.THROTTLE {{<key>}}:a {a}\nRL.THROTTLE {{<key>}}:b {b}\nRL.WINDOW {{<key>}}:c {c} FIXED"
            );
            let all = format!("RL.ALL 3 {keys} THROTTLE {a} THROTTLE {b} WINDOW {c} FIXED");
            let lua = format!("{} 3 {keys} {a} {b} {c}", scripts["several"]);
            [
                Workload::new(&three, 1, commands),
                Workload::new(format!("RL.ALL, {verdict}"), 1, all).peer(&three),
                Workload::new(format!("Lua, three commands, {verdict}"), 1, lua).peer(&three),
            ]
        };
        // Two rates and a window that never deny in this run, and others that are used up.
        let allowed =
            rows_of("allowed", ["1000000000 30 60", "1000000000 500 60", "1000000000 1d"]);
        let denied = rows_of("denied", ["15 1 86400", "15 1 86400", "15 1d"]);
        let used_up = [
            "RL.THROTTLE {<key>}:a 15 1 86400 16", "RL.THROTTLE {<key>}:b 15 1 86400 16",
            "RL.WINDOW {<key>}:c 15 1d 15 FIXED",
        ];
        let denied = denied.map(|row| row.prepared_by(used_up).denied());
        allowed.map(Workload::allowed).into_iter().chain(denied).collect()
    };
    Ok(callgrind::table(title, effort, rows))
}
