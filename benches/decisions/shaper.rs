//! How much of its rate a bucket lets through if it is a shaper: calls with BLOCK always wait in its line.

use std::time::Duration;

use crate::client::{Batch, BenchError, Client, Result};
use crate::report::{Column, Table};
use crate::rounds::medians;
use crate::server::{cpu_and_rate, Host};
use crate::workload::allowed;

/// The rates, a second.
const RATES: [u64; 5] = [10, 100, 300, 1_000, 3_000];

/// The max_burst of each rate.
const MAX_BURSTS: [u64; 4] = [0, 1, 3, 10];

/// The calls in the line.
const WAITING: usize = 50;

/// Clients in the line of a shaper. The one whose turn it is comes first.
struct Shaper {
    call: Batch,
    clients: Vec<Client>,
    turn: usize,
}

impl Shaper {
    fn stand_in_line(host: &Host, control: &mut Client, call: &str) -> Result<Shaper> {
        let mut shaper = Shaper { call: Batch::of(call), clients: Vec::new(), turn: 0 };
        for _ in 0..WAITING {
            let mut client = host.connect()?;
            client.send(&shaper.call)?;
            // The server replies to this only after the command before, so that the order is known.
            control.call("PING")?;
            shaper.clients.push(client);
        }
        Ok(shaper)
    }

    /// Waits for the call at the head of the line, and lets its client wait again.
    fn pass(&mut self) -> Result<usize> {
        let client = &mut self.clients[self.turn];
        let reply = client.receive()?;
        if !allowed(&reply) {
            return Err(BenchError::Refused(format!("{reply:?} to a call that waited")));
        }
        client.send(&self.call)?;
        self.turn = (self.turn + 1) % self.clients.len();
        Ok(1)
    }
}

/// Returns what passes, in percent of the rate, and the server's CPU time in percent: the medians of some rounds.
fn shape(rate: u64, max_burst: u64, call: &str, rounds: usize, time: Duration) -> Result<Vec<f64>> {
    let host = Host::bare()?;
    let mut control = host.connect()?;
    let mut shaper = Shaper::stand_in_line(&host, &mut control, call)?;
    // The burst, and what came free while the line was made.
    for _ in 0..=max_burst + rate / 10 {
        shaper.pass()?;
    }
    let round = |_| {
        let [cpu_us, passed] = cpu_and_rate(&mut control, time, || shaper.pass())?;
        Ok(vec![passed / rate as f64 * 100.0, cpu_us * passed / 10_000.0])
    };
    Ok(medians(&(0..rounds).map(round).collect::<Result<Vec<_>>>()?))
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
            let call = format!("RL.THROTTLE shaper {max_burst} {rate} 1s 1 BLOCK 0");
            let figures = shape(rate, max_burst, &call, rounds, time);
            table.add(call.replace("shaper", "key"), None, figures)?;
        }
    }
    Ok(table)
}
