//! Memory of the server per key and per event.

use std::thread;

use crate::report::{Table, SET_EX};
use crate::server;
use crate::workload::{load_scripts, Scripts, Workload, PIPELINE};
use crate::{Effort, Result};
use support::{ms, Conn, Server, START_US};

/// Keys of the rows about keys.
const KEYS: u64 = 200_000;

/// Events of each row about events, on all its keys, within one period.
const ALL_EVENTS: u64 = 100_000;

/// One key each.
fn keys(scripts: &Scripts) -> [Workload; 4] {
    let row = |name: &str, call: String| Workload::new(name, KEYS, call);
    [
        row(SET_EX, format!("SET <key> {START_US}000 EX 60")),
        row("RL.THROTTLE 15 30 60", "RL.THROTTLE <key> 15 30 60".into()).allowed(),
        row("redis-cell", "CL.THROTTLE <key> 15 30 60".into()).allowed(),
        row("GCRA Lua", format!("{} 1 <key> 16 7 60 1", scripts["gcra"])).allowed(),
    ]
}

/// One event each, `events` to a key: RL.WINDOW, and the recipe with ZADD in its leanest and in its usual form.
fn events(events: u64) -> [Workload; 3] {
    let keys = ALL_EVENTS / events;
    let pace_us = 60_000_000 / ALL_EVENTS * PIPELINE.min(keys);
    let row = |what: &str, calls: String| {
        Workload::new(format!("{what}, {events} events"), keys, calls).paced(pace_us)
    };
    let usual =
        row("ZADD key ms ms:random", "ZADD <key> <ms> <ms>:<number>\nEXPIRE <key> 60".into());
    [
        row("RL.WINDOW", format!("RL.WINDOW <key> {events} 60")).allowed().peer(&usual.name),
        row("ZADD key us us", "ZADD <key> <us> <us>\nEXPIRE <key> 60".into()),
        usual,
    ]
}

/// Measures the bytes that each of these decisions adds to an empty server.
fn bytes_each(server: &Server, conn: &mut Conn, row: &mut Workload, decisions: u64) -> Result<f64> {
    let clock = Some(server.clock());
    row.prepare(clock, conn)?;
    let before = settled_memory(server);
    let mut made = 0;
    while made < decisions {
        made += row.run(clock, conn)?;
    }
    Ok((settled_memory(server) - before) as f64 / decisions as f64)
}

/// Returns `used_memory` once the server has finished rehashing.
fn settled_memory(server: &Server) -> i64 {
    let mut last = 0;
    loop {
        let now = server.info_number("used_memory");
        if now == last {
            return now;
        }
        last = now;
        thread::sleep(ms(300));
    }
}

/// Measures them all.
pub fn table(_: &Effort) -> Result<Table> {
    let title = format!(
        "Memory per key ({KEYS} keys of 11 bytes) and per event with its share of the key ({ALL_EVENTS} events)"
    );
    let mut table = Table::new(title, &[("bytes", 1)]);
    let (server, mut conn) = server::builder().with_held_clock();
    let keys = keys(&load_scripts(&mut conn)).map(|row| (row, KEYS));
    let events = [10, 100, 1_000, 100_000].into_iter().flat_map(events);
    for (mut row, decisions) in keys.into_iter().chain(events.map(|row| (row, ALL_EVENTS))) {
        let bytes = bytes_each(&server, &mut conn, &mut row, decisions);
        table.add(&row.name, row.peer, bytes.map(|bytes| vec![bytes]));
    }
    Ok(table)
}
