//! CPU time and rate of decisions on more keys than any cache holds.

use std::time::Duration;

use crate::client::Result;
use crate::cpu_time::{self, PlannedRow, NAMES};
use crate::peers::Scripts;
use crate::report::Table;
use crate::server::Host;
use crate::throttle;
use crate::workload::{allowed, denied, Workload};
use support::Random;

/// A command on every key, in random order.
fn workload(name: &'static str, keys: u64, scripts: &Scripts) -> Workload {
    let gcra = scripts.gcra.clone();
    let command = move |number: u64| {
        let key = format!("user:{number:07}");
        match name {
            throttle::ALLOWED => format!("RL.THROTTLE {key} 1000000 30 60"),
            throttle::DENIED => format!("RL.THROTTLE {key} 15 1 86400"),
            throttle::CELL_ALLOWED => format!("CL.THROTTLE {key} 1000000 30 60"),
            throttle::LUA_ALLOWED => format!("EVALSHA {gcra} 1 {key} 1000000 30 60 1"),
            _ => format!("SET {key} 1893456000000000000 EX 3600"),
        }
    };
    // Calls are denied once everything is used up.
    let all = if name == throttle::DENIED { " 16" } else { "" };
    let prepare: Vec<String> = (0..keys).map(|number| command(number) + all).collect();
    let expected = match name {
        throttle::ALLOWED | throttle::CELL_ALLOWED | throttle::LUA_ALLOWED => allowed,
        throttle::DENIED => denied,
        _ => |_: &_| true,
    };
    Workload::new(name, move |i| command(Random::new(i).draw() % keys))
        .prepared_by(prepare)
        .expecting(expected)
}

/// Measures each command on this many keys in turn, `rounds` times, and takes the medians.
pub fn table(keys: u64, rounds: usize, time: Duration) -> Result<Table> {
    let title = format!(
        "CPU time of the server per decision and decisions a second, over {keys} keys in random order (one connection, \
         pipelines of 50, medians of {rounds} interleaved rounds)"
    );
    let mut table = Table::new("cold", title, &cpu_time::COLUMNS);
    let scripts = Host::bare()?.scripts;
    let plans = NAMES.map(|name| {
        let peer = (name == throttle::ALLOWED).then_some(throttle::LUA_ALLOWED);
        PlannedRow::new(workload(name, keys, &scripts), peer, 1)
    });
    cpu_time::measure(&mut table, &plans, rounds, time)?;
    Ok(table)
}
