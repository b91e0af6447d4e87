//! Reservations compared with the Lua scripts that people use: instructions for taking one and ending it.

use crate::callgrind::Meter;
use crate::peers::Scripts;
use crate::report::Table;
use crate::server::Time;
use crate::throttle;
use crate::window::PERIOD_US;
use crate::workload::{allowed, Workload, PIPELINE};
use crate::Result;
use support::START_US;

/// The number of decisions in an exchange, so that a key never has two of them at once.
const KEYS: u64 = PIPELINE as u64;

/// With more other reservations than this there is one key, which holds the reservations of an exchange together.
const MOST_IN_EACH_KEY: u64 = 100;

/// Events in the window of each key, in addition to the reservations.
const EVENTS: u64 = 100;

/// Room for the measured reservations.
const ROOM: u64 = PIPELINE as u64;

/// The lease of reservations that outlast the run: a year.
const LONG_LEASE_MS: u64 = 31_536_000_000;

/// The lease of the measured ones.
const LEASE_MS: u64 = 20_000;

/// The name of a row.
fn row(what: &str, others: u64) -> String {
    format!("{what}, {others} others")
}

fn key(number: u64, others: u64) -> String {
    format!("work:{:02}", number % keys(others))
}

fn keys(others: u64) -> u64 {
    if others > MOST_IN_EACH_KEY {
        1
    } else {
        KEYS
    }
}

/// As long as an id that the module makes.
fn own_id(number: u64) -> String {
    format!("{number:022}")
}

/// A place in a semaphore, taken and released.
fn release(others: u64) -> Workload {
    let limit = others + ROOM;
    Workload::new(row("RL.ACQUIRE + RL.RELEASE", others), move |i| {
        format!("RL.ACQUIRE {} {limit} 0", key(i, others))
    })
    .settled_by(move |i, id| format!("RL.RELEASE {} {}", key(i, others), id))
    .prepared_by(held_for_long(others, limit, "0"))
    .expecting(allowed)
}

/// A reservation that becomes an event, in a full window that an event leaves at each call. The options begin with a blank.
fn apply(options: &'static str, others: u64) -> Workload {
    let limit = others + EVENTS + ROOM;
    let acquire = move |i| format!("RL.ACQUIRE {} {limit} 60{options}", key(i, others));
    let settle = move |i: u64, id: &str| format!("RL.APPLY {} {}", key(i, others), id);
    let pace_us = PERIOD_US as f64 / (EVENTS * KEYS) as f64;
    let filling = Workload::new("filling", acquire).settled_by(settle).paced(pace_us);
    Workload::new(row(&format!("RL.ACQUIRE{options} + RL.APPLY"), others), acquire)
        .settled_by(settle)
        .paced(pace_us)
        .led_in_by(filling, (EVENTS * KEYS) as usize)
        .prepared_by(held_for_long(others, limit, "60"))
        .expecting(allowed)
}

/// The commands that make the other reservations in one key, and copy it to the rest.
fn held_for_long(others: u64, limit: u64, period: &str) -> Vec<String> {
    let first = key(0, others);
    let acquire = format!("RL.ACQUIRE {first} {limit} {period} LEASE {LONG_LEASE_MS}");
    let copies =
        (1..keys(others)).map(|number| format!("COPY {first} {} REPLACE", key(number, others)));
    let copies = copies.filter(|_| others > 0);
    std::iter::repeat_n(acquire, others as usize).chain(copies).collect()
}

/// Milliseconds of the clients' clock at call number `i`, with `EVENTS` a period for each key.
fn now_ms(i: u64) -> u64 {
    START_US.unsigned_abs() / 1000 + i * (PERIOD_US / 1000) / (EVENTS * KEYS)
}

/// A place in a semaphore, taken by a script and released by ZREM.
fn lua_release(scripts: &Scripts, others: u64) -> Workload {
    let script = scripts.semaphore.clone();
    let limit = others + ROOM;
    Workload::new(row("semaphore Lua + ZREM", others), move |i| {
        let (key, now, id) = (key(i, others), now_ms(i), own_id(i));
        let ends = now + LEASE_MS;
        format!("EVALSHA {script} 1 {key} {now} {limit} {ends} {id}")
    })
    .settled_by(move |i, _: &str| format!("ZREM {} {}", key(i, others), own_id(i)))
    .prepared_by(zset_of_others(others, ""))
    .expecting(allowed)
}

/// A reservation that becomes an event, by two scripts, in a full window that an event leaves at each call.
fn lua_apply(scripts: &Scripts, others: u64) -> Workload {
    let (acquire, apply) = (scripts.acquire.clone(), scripts.apply.clone());
    let limit = others + EVENTS + ROOM;
    let filling = (0..EVENTS * KEYS)
        .map(move |i| format!("ZADD {}:events {} {}", key(i, others), now_ms(i), own_id(i)));
    let made = filling.chain(zset_of_others(others, ":reserved"));
    Workload::new(row("acquire Lua + apply Lua", others), move |i| {
        let i = EVENTS * KEYS + i;
        let (key, now, id) = (key(i, others), now_ms(i), own_id(i));
        let (before, ends) = (now - PERIOD_US / 1000, now + LEASE_MS);
        format!(
            "EVALSHA {acquire} 2 {key}:events {key}:reserved {now} {before} {limit} {ends} {id}"
        )
    })
    .settled_by(move |i, _: &str| {
        let i = EVENTS * KEYS + i;
        let (key, now, id) = (key(i, others), now_ms(i), own_id(i));
        format!("EVALSHA {apply} 2 {key}:events {key}:reserved {now} {id} 60")
    })
    .prepared_by(made)
    .expecting(allowed)
}

/// The commands that make them for the scripts, in each key's ZSET of reservations.
fn zset_of_others(others: u64, suffix: &'static str) -> impl Iterator<Item = String> {
    let ends = now_ms(0) + LONG_LEASE_MS;
    (0..keys(others)).flat_map(move |number| {
        let key = key(number, others);
        (0..others)
            .map(move |other| format!("ZADD {key}{suffix} {} other:{other:016}", ends + other))
    })
}

/// Counts them all.
pub fn table(decisions: usize, others: &[u64]) -> Result<Table> {
    let mut meter = Meter::start(Time::Held, decisions);
    let title = format!(
        "Instructions of the whole server per reservation, taken and ended (one key, or {KEYS} in turn with up to \
         {MOST_IN_EACH_KEY} others; windows of {EVENTS} events; pipeline 50)"
    );
    let mut table = Table::new("reserve", title, &Meter::COLUMNS);
    let scripts = meter.scripts();
    meter.add(&mut table, &throttle::set_ex(), None);
    for &others in others {
        let lua = lua_release(&scripts, others);
        meter.add(&mut table, &release(others), Some(&lua.name));
        meter.add(&mut table, &lua, None);
        if others <= MOST_IN_EACH_KEY {
            let (plain, lua) = (apply("", others), lua_apply(&scripts, others));
            meter.add(&mut table, &plain, Some(&lua.name));
            // With the options that a lease uses.
            meter.add(&mut table, &apply(" ATMOST COUNTLAPSED", others), Some(&plain.name));
            meter.add(&mut table, &lua, None);
        }
    }
    Ok(table)
}
