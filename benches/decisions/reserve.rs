//! Reservations compared with the Lua scripts that people use: instructions for taking one and ending it.

use crate::callgrind;
use crate::report::Table;
use crate::workload::{Scripts, Workload, PIPELINE};
use crate::{Effort, Result};
use support::START_US;

/// Events in the window of each key, in addition to the reservations. One of them leaves it at each reservation.
const EVENTS: u64 = 100;
const PACE_US: u64 = 60_000_000 / EVENTS;

/// The lease of the other reservations, which outlast the run: a year.
const LONG_LEASE_MS: i64 = 31_536_000_000;

/// As long as an id that the module makes.
const OWN_ID: &str = "0000000000000000<number>";

/// A reservation taken and ended on keys that have others.
fn row(name: &str, others: u64, ask: impl Into<String>, end: impl Into<String>) -> Workload {
    Workload::new(format!("{name}, {others} others"), PIPELINE, ask).ended_by(end).allowed()
}

/// The commands that add the others to a key of the scripts.
fn zset_of_others(key: &str, others: u64) -> Vec<String> {
    let ends_ms = START_US / 1000 + LONG_LEASE_MS;
    (0..others).map(|other| format!("ZADD {key} {ends_ms} other:{other:016}")).collect()
}

/// Places in a semaphore that are taken and given back, and reservations that become events of a full window.
fn rows(scripts: &Scripts, others: u64) -> [Workload; 5] {
    let limit = others + 1;
    let acquire = format!("RL.ACQUIRE <key> {limit} 0");
    let held = vec![format!("{acquire} LEASE {LONG_LEASE_MS}"); others as usize];
    let semaphore = format!("{} 1 <key> <ms> {limit} <ms+20000> {OWN_ID}", scripts["semaphore"]);
    let own = row("RL.ACQUIRE + RL.RELEASE", others, acquire, "RL.RELEASE <key> <id>");
    let lua = row("semaphore Lua + ZREM", others, semaphore, format!("ZREM <key> {OWN_ID}"));

    let limit = others + EVENTS + 1;
    let acquire = format!("RL.ACQUIRE <key> {limit} 60");
    let held_next_to_events = vec![format!("{acquire} LEASE {LONG_LEASE_MS}"); others as usize];
    let applied = |options: &str| {
        let name = format!("RL.ACQUIRE{options} + RL.APPLY");
        row(&name, others, format!("{acquire}{options}"), "RL.APPLY <key> <id>")
            .filled_by(EVENTS, PACE_US)
            .prepared_by(held_next_to_events.clone())
            .paced(PACE_US)
    };
    let keys = "2 <key>:events <key>:reserved";
    let acquire = &scripts["acquire"];
    let acquire = format!("{acquire} {keys} <ms> <ms-60000> {limit} <ms+20000> {OWN_ID}");
    let apply = format!("{} {keys} <ms> {OWN_ID} 60", scripts["apply"]);
    let lua_applied = row("acquire Lua + apply Lua", others, acquire, apply)
        .filled_by(EVENTS, PACE_US)
        .prepared_by(zset_of_others("<key>:reserved", others))
        .paced(PACE_US);
    [
        own.prepared_by(held).peer(&lua.name),
        lua.prepared_by(zset_of_others("<key>", others)),
        applied("").peer(&lua_applied.name),
        // With the options that a lease uses.
        applied(" ATMOST COUNTLAPSED").peer(applied("").name),
        lua_applied,
    ]
}

/// Counts them all.
pub fn table(effort: &Effort) -> Result<Table> {
    let title = format!(
        "Instructions of the whole server per reservation, taken and ended ({PIPELINE} keys in turn, windows of {EVENTS} \
         events, pipeline {PIPELINE})"
    );
    let others = [0, 10, 10_000].into_iter().filter(|others| *others <= effort.largest_key);
    let rows =
        |scripts: &Scripts| others.clone().flat_map(|others| rows(scripts, others)).collect();
    Ok(callgrind::table(&title, effort, rows))
}
