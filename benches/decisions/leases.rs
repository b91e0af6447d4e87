//! Instructions of the server for a call of processes that take leases of a large limit and spend them by themselves.

use crate::callgrind::Meter;
use crate::client::Result;
use crate::report::Table;
use crate::server::Time;
use crate::workload::{allowed, Workload};

/// Calls in a second, which is the window's period.
const LIMIT: u64 = 20_000;

/// Calls in a batch: those that each of 16 processes expects within half a lease, which is a twentieth of the period.
const BATCH: u64 = 31;

const CALL_US: f64 = 1e6 / LIMIT as f64;

pub const CALLS: &str = "RL.WINDOW for each call";
pub const LEASES: &str = "a lease for 31 calls";

/// Every call asks the server.
fn calls() -> Workload {
    let command = |_| format!("RL.WINDOW gateway {LIMIT} 1s");
    let filling = Workload::new("filling", command).paced(CALL_US);
    // 5 % slower than the limit, so that the window stays nearly full and nothing is denied.
    Workload::new(CALLS, command)
        .paced(CALL_US * 1.05)
        .led_in_by(filling, LIMIT as usize)
        .expecting(allowed)
}

/// Each batch is reserved, spent in the process, and settled with its size.
fn leases() -> Workload {
    // An exchange reserves 50 batches and then settles them, so more are held at a time than by 16 processes.
    let ask = |number| {
        format!(
            "RL.ACQUIRE gateway {LIMIT} 1s {BATCH} ATMOST LEASE 500 COUNTLAPSED ID {number:026} MS"
        )
    };
    let settle = |number, _: &_| format!("RL.APPLY gateway {number:026} {BATCH}");
    let batch_us = CALL_US * BATCH as f64;
    let batches = (LIMIT / BATCH) as usize;
    let filling = Workload::new("filling", ask).settled_by(settle).paced(batch_us);
    Workload::new(LEASES, ask)
        .settled_by(settle)
        .paced(batch_us * 1.05)
        .led_in_by(filling, batches)
        .expecting(allowed)
        .standing_for(BATCH)
}

/// Counts both.
pub fn table(decisions: usize) -> Result<Table> {
    let mut meter = Meter::start(Time::Held, decisions)?;
    let title = format!(
        "Instructions of the whole server per call, {LIMIT} calls a second on one key with that limit (pipeline 50; a batch is \
         RL.ACQUIRE ATMOST COUNTLAPSED and RL.APPLY)"
    );
    let mut table = Table::new("leases", title, &Meter::COLUMNS);
    meter.add(&mut table, &calls(), None)?;
    meter.add(&mut table, &leases(), Some(CALLS.to_string()))?;
    Ok(table)
}
