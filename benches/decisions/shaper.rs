//! How much of its rate a bucket lets through if it is a shaper: calls with BLOCK always wait in its line.

use std::collections::VecDeque;

use crate::report::Table;
use crate::server::{self, cpu_and_rate, median};
use crate::{Effort, Result};
use support::limited;

/// The rates, a second.
const RATES: [u64; 4] = [10, 100, 1_000, 3_000];

/// The max_burst of each rate.
const MAX_BURSTS: [u64; 2] = [0, 1];

/// The calls in the line.
const WAITING: usize = 50;

/// Returns what passes, in percent of the rate, and the server's CPU time in percent: the medians of some rounds.
fn shape(rate: u64, max_burst: u64, call: &str, effort: &Effort) -> Result<Vec<f64>> {
    let (server, mut control) = server::builder().connect();
    let mut line = VecDeque::new();
    for _ in 0..WAITING {
        let mut conn = server.conn();
        conn.send(call);
        // The server replies to this only after the command before, so that the order is known.
        control.cmd("PING");
        line.push_back(conn);
    }
    // Waits for the call at the head of the line, and lets its client wait again.
    let mut pass = || {
        line.rotate_left(1);
        let conn = &mut line[WAITING - 1];
        let reply = conn.recv();
        conn.send(call);
        match limited(&reply) {
            0 => Ok(1),
            _ => Err(format!("{reply:?} to a call that waited")),
        }
    };
    // The burst, and what came free while the line was made.
    for _ in 0..=max_burst + rate / 10 {
        pass()?;
    }
    let (mut shares, mut times) = (vec![], vec![]);
    for _ in 0..effort.rounds {
        let [cpu_us, passed] = cpu_and_rate(&server, effort.round, &mut pass)?;
        shares.push(passed / rate as f64 * 100.0);
        times.push(cpu_us * passed / 10_000.0);
    }
    Ok(vec![median(shares), median(times)])
}

/// Measures every rate with every max_burst.
pub fn table(effort: &Effort) -> Result<Table> {
    let title = format!("Shaper: what passes while {WAITING} calls wait (medians)");
    let mut table = Table::new(title, &[("% of the rate", 1), ("server CPU %", 1)]);
    for rate in RATES {
        for max_burst in MAX_BURSTS {
            let call = format!("RL.THROTTLE key {max_burst} {rate} 1s 1 BLOCK 0");
            table.add(&call, None, shape(rate, max_burst, &call, effort));
        }
    }
    Ok(table)
}
