//! Memory of the server per key and per event.

use std::thread;
use std::time::Duration;

use crate::peers::Scripts;
use crate::report::{Column, Table, SET_EX};
use crate::server::{info, Host, Persistence, Time, Tool};
use crate::window::PERIOD_US;
use crate::workload::{allowed, Workload};
use crate::Result;
use support::{Conn, START_US};

/// Keys of the rows about keys.
const KEYS: u64 = 200_000;

/// Events of each row about events, on all its keys.
const ALL_EVENTS: u64 = 100_000;

/// Events of a key.
const EVENTS: [u64; 4] = [10, 100, 1_000, 100_000];

/// The name of a row about events.
fn row(what: &str, events: u64) -> String {
    format!("{what}, {events} events")
}

fn key(number: u64) -> String {
    format!("user:{number:06}")
}

/// One key each.
fn keys(scripts: &Scripts) -> [Workload; 5] {
    let gcra = scripts.gcra.clone();
    let tat = START_US * 1000;
    [
        Workload::new(SET_EX, move |i| format!("SET {} {tat} EX 60", key(i))),
        Workload::new("RL.THROTTLE 15 30 60", |i| format!("RL.THROTTLE {} 15 30 60", key(i)))
            .expecting(allowed),
        Workload::new("RL.THROTTLE 15 7 60", |i| format!("RL.THROTTLE {} 15 7 60", key(i)))
            .expecting(allowed),
        Workload::new("redis-cell", |i| format!("CL.THROTTLE {} 15 30 60", key(i)))
            .expecting(allowed),
        Workload::new("GCRA Lua", move |i| format!("EVALSHA {gcra} 1 {} 16 7 60 1", key(i)))
            .expecting(allowed),
    ]
}

/// One event each, `events` to a key, all within one period: RL.WINDOW, and the recipe with ZADD in its leanest and in its
/// usual form.
fn events(events: u64) -> [Workload; 3] {
    let key = move |i: u64| key(i % (ALL_EVENTS / events));
    let us = |i: u64| START_US.unsigned_abs() + i * PERIOD_US / ALL_EVENTS;
    let window = move |i| format!("RL.WINDOW {} {events} 60", key(i));
    let lean = move |i| {
        let (key, us) = (key(i), us(i));
        format!("ZADD {key} {us} {us}\nEXPIRE {key} 60")
    };
    let usual = move |i| {
        let (key, ms, random) = (key(i), us(i) / 1000, i * 7919 % 1_000_000);
        format!("ZADD {key} {ms} {ms}:{random:06}\nEXPIRE {key} 60")
    };
    // A little faster than needed, so that the first event is still there when the last one comes.
    let pace_us = 0.95 * PERIOD_US as f64 / ALL_EVENTS as f64;
    [
        Workload::new(row("RL.WINDOW", events), window).paced(pace_us).expecting(allowed),
        Workload::new(row("ZADD key us us", events), lean),
        Workload::new(row("ZADD key ms ms:random", events), usual),
    ]
}

/// Measures the bytes that each of these decisions adds to an empty server.
fn bytes_each(host: &Host, workload: &Workload, decisions: u64) -> Result<Vec<f64>> {
    let mut conn = host.server.conn();
    conn.cmd("FLUSHALL");
    let before = settled_memory(&mut conn);
    let unexpected =
        workload.run_paced(&mut conn, &mut workload.pacer(host), decisions as usize)?;
    if unexpected > 0 {
        return Err(format!("{unexpected} of {decisions} answered otherwise"));
    }
    host.tick(0);
    Ok(vec![(settled_memory(&mut conn) - before) / decisions as f64])
}

/// Returns `used_memory` once the server has finished rehashing.
fn settled_memory(conn: &mut Conn) -> f64 {
    let mut last = 0.0;
    loop {
        let now = info(conn, "memory", "used_memory");
        if now == last {
            return now;
        }
        last = now;
        thread::sleep(Duration::from_millis(300));
    }
}

/// Measures them all.
pub fn table() -> Result<Table> {
    const BYTES: Column = Column { name: "bytes", decimals: 1, compared: true };
    let title = format!(
        "Memory per key ({KEYS} keys of 11 bytes) and per event with its share of the key ({ALL_EVENTS} events)"
    );
    let mut table = Table::new("memory", title, &[BYTES]);
    let host = Host::start(Tool::None, Persistence::Bare, Time::Held);
    let mut measure = |workload: &Workload, peer: Option<&str>, decisions| {
        table.add(&workload.name, peer, bytes_each(&host, workload, decisions));
    };
    for workload in keys(&host.scripts) {
        measure(&workload, None, KEYS);
    }
    for number in EVENTS {
        let [window, lean, usual] = events(number);
        measure(&window, Some(&usual.name), ALL_EVENTS);
        measure(&lean, None, ALL_EVENTS);
        measure(&usual, None, ALL_EVENTS);
    }
    Ok(table)
}
