//! Instructions of RL.THROTTLE compared with plain commands and the GCRA script, and of three limits in one call.

use crate::callgrind::Meter;
use crate::peers::Scripts;
use crate::report::{Table, SET_EX};
use crate::server::Time;
use crate::workload::{allowed, denied, Workload};
use crate::Result;

/// Every command uses this many keys in turn, which all exist.
const KEYS: u64 = 1000;

/// The value that `SET` stores, as long as a theoretical arrival time in nanoseconds.
const INTEGER: &str = "1893456000000000000";

pub const ALLOWED: &str = "RL.THROTTLE allowed";
pub const DENIED: &str = "RL.THROTTLE denied";
pub const LUA_ALLOWED: &str = "GCRA Lua allowed";
pub const LUA_DENIED: &str = "GCRA Lua denied";
pub const CELL_ALLOWED: &str = "redis-cell allowed";
pub const CELL_DENIED: &str = "redis-cell denied";

/// The rows, each with the name of its peer.
pub fn workloads(scripts: &Scripts) -> Vec<(Workload, Option<&'static str>)> {
    let each_key = |name: &str, command: &str| {
        let command = command.to_string();
        Workload::new(name, move |i| command.replace("KEY", &key(i)))
    };
    let gcra = &scripts.gcra;
    let set = format!("SET KEY {INTEGER}");
    // The burst is never used up, so that no clock is needed; each call moves the TTL.
    let takes = |name: &str, rest: &str| {
        each_key(name, &format!("RL.THROTTLE KEY 1000000 {rest}")).expecting(allowed)
    };
    let lua_allowed = format!("EVALSHA {gcra} 1 KEY 1000000 30 60 1");
    let lua_denied = format!("EVALSHA {gcra} 1 KEY 16 1 86400");
    vec![
        (each_key("PING", "PING"), None),
        (each_key("GET", "GET KEY").prepared_by(all_keys(&set)), None),
        (each_key("INCR", "INCR KEY").prepared_by(all_keys(&set)), None),
        (each_key("SET", &set), None),
        (set_ex(), None),
        // The counter with a bound that Redis 8.8 and Valkey 9.2 have.
        (each_key("INCREX", "INCREX KEY UBOUND 1000000000 EX 60 ENX"), None),
        (takes(ALLOWED, "30 60"), Some(LUA_ALLOWED)),
        (takes("RL.THROTTLE allowed, fraction", "7 60"), Some(LUA_ALLOWED)),
        (takes("RL.THROTTLE FORCE", "30 60 1 FORCE"), Some(ALLOWED)),
        (takes("RL.THROTTLE AHEAD", "30 60 1 AHEAD 60000"), Some(ALLOWED)),
        (denied_calls(DENIED, "RL.THROTTLE"), Some(LUA_DENIED)),
        (each_key(CELL_ALLOWED, "CL.THROTTLE KEY 1000000 30 60").expecting(allowed), None),
        (denied_calls(CELL_DENIED, "CL.THROTTLE"), None),
        (each_key(LUA_ALLOWED, &lua_allowed).expecting(allowed), None),
        (
            each_key(LUA_DENIED, &format!("{lua_denied} 1"))
                .prepared_by(all_keys(&format!("{lua_denied} 16")))
                .expecting(denied),
            None,
        ),
    ]
}

/// The command with which all costs are compared.
pub fn set_ex() -> Workload {
    Workload::new(SET_EX, |i| format!("SET {} {INTEGER} EX 60", key(i)))
        .prepared_by(all_keys(&format!("SET KEY {INTEGER} EX 60")))
}

/// Calls on keys whose burst is used up.
fn denied_calls(name: &str, command: &'static str) -> Workload {
    Workload::new(name, move |i| format!("{command} {} 15 1 86400", key(i)))
        .prepared_by(all_keys(&format!("{command} KEY 15 1 86400 16")))
        .expecting(denied)
}

fn key(number: u64) -> String {
    format!("user:{:06}", number % KEYS)
}

/// The command for each key, which stands for `KEY`.
fn all_keys(command: &str) -> Vec<String> {
    (0..KEYS).map(|number| command.replace("KEY", &key(number))).collect()
}

/// Counts them all.
pub fn table(decisions: usize) -> Result<Table> {
    let mut meter = Meter::start(Time::Real, decisions);
    let title =
        format!("Instructions of the whole server per command ({KEYS} keys in turn, pipeline 50)");
    let mut table = Table::new("throttle", title, &Meter::COLUMNS);
    for (workload, peer) in workloads(&meter.scripts()) {
        meter.add(&mut table, &workload, peer);
    }
    // While RL.TOP keeps this many keys.
    for top_keys in [0, 128] {
        let setting = format!("CONFIG SET ratelimit.top-keys {top_keys}");
        let name = format!("{DENIED}, top-keys {top_keys}");
        let workload = denied_calls(&name, "RL.THROTTLE")
            .led_in_by(Workload::new("setting", move |_| setting.clone()), 1);
        meter.add(&mut table, &workload, Some(DENIED));
    }
    Ok(table)
}

/// Three limits at once: two buckets and a calendar window, which all allow or all deny.
pub fn several(decisions: usize) -> Result<Table> {
    let mut meter = Meter::start(Time::Real, decisions);
    let title = "Instructions of the whole server per decision about three limits (three keys, pipeline 50)";
    let mut table = Table::new("several", title, &Meter::COLUMNS);
    meter.add(&mut table, &set_ex(), None);
    let script = meter.scripts().several;
    // Two rates and a window that never deny in this run, and others that are used up.
    let used_up = "RL.THROTTLE {u}:a 15 1 86400 16\nRL.THROTTLE {u}:b 15 1 86400 16\nRL.WINDOW {u}:c 15 1d 15 FIXED";
    for (verdict, [a, b, c], prepare, expected) in [
        (
            "allowed",
            ["1000000000 30 60", "1000000000 500 60", "1000000000 1d"],
            "",
            allowed as fn(&_) -> _,
        ),
        ("denied", ["15 1 86400", "15 1 86400", "15 1d"], used_up, denied),
    ] {
        let keys = "{u}:a {u}:b {u}:c";
        let single = format!(
            "RL.THROTTLE {{u}}:a {a}\nRL.THROTTLE {{u}}:b {b}\nRL.WINDOW {{u}}:c {c} FIXED"
        );
        let all = format!("RL.ALL 3 {keys} THROTTLE {a} THROTTLE {b} WINDOW {c} FIXED");
        let lua = format!("EVALSHA {script} 3 {keys} {a} {b} {c}");
        for (name, commands) in
            [("three commands", single), ("RL.ALL", all), ("Lua, three commands", lua)]
        {
            let peer = (name != "three commands").then(|| format!("three commands, {verdict}"));
            let workload = Workload::new(format!("{name}, {verdict}"), move |_| commands.clone())
                .prepared_by(prepare.lines().map(str::to_string))
                .expecting(expected);
            meter.add(&mut table, &workload, peer.as_deref());
        }
    }
    Ok(table)
}
