//! How much of its rate a bucket lets through if it is a shaper: calls with BLOCK always wait in its line.

use std::time::Duration;

use crate::callgrind::median;
use crate::report::{Column, Table};
use crate::server::{cpu_and_rate, Host, Persistence, Time, Tool};
use crate::workload::allowed;
use crate::Result;
use support::Conn;

/// The rates, a second.
const RATES: [u64; 5] = [10, 100, 300, 1_000, 3_000];

/// The max_burst of each rate.
const MAX_BURSTS: [u64; 3] = [0, 1, 10];

/// The calls in the line.
const WAITING: usize = 50;

/// Clients in the line of a shaper. The one whose turn it is comes first.
struct Shaper<'c> {
    call: &'c str,
    conns: Vec<Conn>,
    turn: usize,
}

impl Shaper<'_> {
    /// Waits for the call at the head of the line, and lets its client wait again.
    fn pass(&mut self) -> Result<usize> {
        let conn = &mut self.conns[self.turn];
        let reply = conn.recv();
        if !allowed(&reply) {
            return Err(format!("{reply:?} to a call that waited"));
        }
        conn.send(self.call);
        self.turn = (self.turn + 1) % self.conns.len();
        Ok(1)
    }
}

/// Returns what passes, in percent of the rate, and the server's CPU time in percent: the medians of some rounds.
fn shape(rate: u64, max_burst: u64, call: &str, rounds: usize, time: Duration) -> Result<Vec<f64>> {
    let host = Host::start(Tool::None, Persistence::Bare, Time::Real);
    let mut control = host.server.conn();
    let mut shaper = Shaper { call, conns: Vec::new(), turn: 0 };
    for _ in 0..WAITING {
        let mut conn = host.server.conn();
        conn.send(call);
        // The server replies to this only after the command before, so that the order is known.
        control.cmd("PING");
        shaper.conns.push(conn);
    }
    // The burst, and what came free while the line was made.
    for _ in 0..=max_burst + rate / 10 {
        shaper.pass()?;
    }
    let (mut shares, mut times) = (vec![], vec![]);
    for _ in 0..rounds {
        let [cpu_us, passed] = cpu_and_rate(&mut control, time, || shaper.pass())?;
        shares.push(passed / rate as f64 * 100.0);
        times.push(cpu_us * passed / 10_000.0);
    }
    Ok(vec![median(shares), median(times)])
}

/// Measures every rate with every max_burst, in rounds of some time.
pub fn table(rounds: usize, time: Duration) -> Result<Table> {
    const COLUMNS: [Column; 2] = [
        Column { name: "% of the rate", decimals: 1, compared: false },
        Column { name: "server CPU %", decimals: 1, compared: false },
    ];
    let title = format!("Shaper: what passes while {WAITING} calls wait (medians)");
    let mut table = Table::new("shaper", title, &COLUMNS);
    for rate in RATES {
        for max_burst in MAX_BURSTS {
            let call = format!("RL.THROTTLE key {max_burst} {rate} 1s 1 BLOCK 0");
            table.add(&call, None, shape(rate, max_burst, &call, rounds, time));
        }
    }
    Ok(table)
}
