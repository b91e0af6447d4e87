//! Instructions of a whole server, counted by callgrind.

use std::process::Command;

use crate::client::{Client, Error, Result};
use crate::report::{Column, Table};
use crate::server::{Installation, Server, Time, Tool};
use crate::workload::{Workload, PIPELINE};

/// Decisions before the counted ones, so that every key has seen the command and nothing is done for the first time.
const WARM_UP: usize = 50 * PIPELINE;

/// Of those, the ones made with the counting already on.
const LAST_OF_WARM_UP: usize = 4 * PIPELINE;

/// A server under callgrind.
pub struct Meter {
    pub server: Server,
    pub client: Client,
    /// Decisions that are counted in each row.
    decisions: usize,
}

impl Meter {
    /// The one column of all tables of instructions.
    pub const COLUMN: Column = Column { name: "instructions", decimals: 0 };

    pub fn start(installation: &Installation, time: Time, decisions: usize) -> Result<Meter> {
        let server = Server::start(installation, Tool::Callgrind, time)?;
        let client = server.connect()?;
        Ok(Meter { server, client, decisions })
    }

    /// Counts a workload on an empty server and adds the row.
    pub fn add(
        &mut self,
        table: &mut Table,
        workload: &Workload,
        peer: Option<String>,
    ) -> Result<()> {
        let mut unexpected = 0;
        let instructions = self.measure(workload, &mut unexpected);
        table.add(&workload.name, peer, instructions.map(|count| vec![count]))?;
        if unexpected > 0 {
            table.remark(format!("{unexpected} of {} answered otherwise", self.decisions));
        }
        Ok(())
    }

    /// Instructions for each decision. What runs beside the commands is in it: the event loop, the system calls' user
    /// side, the server's cron.
    fn measure(&mut self, workload: &Workload, unexpected: &mut usize) -> Result<f64> {
        let Meter { server, client, decisions } = self;
        client.call("FLUSHALL")?;
        workload.prepare(server, client)?;
        let mut pacer = workload.pacer(server);
        workload.run_paced(client, &mut pacer, WARM_UP - LAST_OF_WARM_UP)?;
        monitor(server, "instrumentation on")?;
        let mut count = || {
            workload.run_paced(client, &mut pacer, LAST_OF_WARM_UP)?;
            let before = instructions(server)?;
            *unexpected = workload.run_paced(client, &mut pacer, *decisions)?;
            let after = instructions(server)?;
            Ok((after - before) / *decisions as f64)
        };
        let counted = count();
        monitor(server, "instrumentation off")?;
        counted
    }
}

/// Instructions so far, of all threads.
fn instructions(server: &Server) -> Result<f64> {
    // Now and then callgrind answers nothing.
    for _ in 0..10 {
        let status = monitor(server, "status internal")?;
        // `events-1: 4711` is a thread's total, `events-1-0: 4711` that of a function it is in.
        let totals = status.lines().filter_map(|line| {
            let (thread, total) = line.strip_prefix("events-")?.split_once(": ")?;
            thread.parse::<u32>().ok()?;
            total.trim().parse::<f64>().ok()
        });
        match totals.sum::<f64>() {
            0.0 => continue,
            total => return Ok(total),
        }
    }
    Err(Error::other("callgrind does not tell what it counted"))
}

/// Gives the callgrind of a server one of its monitor commands.
fn monitor(server: &Server, command: &str) -> Result<String> {
    let process = format!("--pid={}", server.process_id());
    let output = Command::new("vgdb").args([&process, command]).output()?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(Error::other(String::from_utf8_lossy(&output.stderr)))
    }
}
