//! CPU time of the server for a decision: in pipelines, and one command at a time.

use crate::report::Table;
use crate::server::{self, cpu_and_rate, median};
use crate::throttle;
use crate::workload::{load_scripts, Workload, PIPELINE};
use crate::{Effort, Result};
use support::{Conn, Server};

/// Exchanges before the rounds.
const WARM_UP: usize = 100;

/// Connections that each send one command at a time.
const CONNECTIONS: usize = 50;

/// A row with a server of its own, which idles while the others are measured.
struct Subject {
    row: Workload,
    server: Server,
    conns: Vec<Conn>,
    /// The figures of all rounds.
    pipelined: Vec<f64>,
    single: Vec<f64>,
}

impl Subject {
    fn start(mut row: Workload) -> Result<Subject> {
        let server = server::builder().start();
        let mut conns: Vec<_> = (0..CONNECTIONS).map(|_| server.conn()).collect();
        load_scripts(&mut conns[0]);
        row.prepare(None, &mut conns[0])?;
        for _ in 0..WARM_UP {
            row.run(None, &mut conns[0])?;
        }
        Ok(Subject { row, server, conns, pipelined: vec![], single: vec![] })
    }

    /// Runs one round of each kind.
    fn round(&mut self, effort: &Effort) -> Result<()> {
        let Subject { row, server, conns, .. } = self;
        let [pipelined, _] = cpu_and_rate(server, effort.round, || row.run(None, &mut conns[0]))?;
        let [single, _] = cpu_and_rate(server, effort.round, || Ok(row.run_on_each(conns)))?;
        self.pipelined.push(pipelined);
        self.single.push(single);
        Ok(())
    }
}

/// Measures all rows in turn, so that a disturbance affects all of them, and takes the medians.
pub fn table(effort: &Effort) -> Result<Table> {
    let title = format!(
        "Microseconds of the server's CPU time per decision: in pipelines of {PIPELINE} on one connection, and from \
         {CONNECTIONS} connections that each send one command at a time (medians of {} interleaved rounds)",
        effort.rounds
    );
    let mut table = Table::new(title, &[("pipelines", 2), ("one at a time", 2)]);
    let scripts = load_scripts(&mut server::builder().start().conn());
    let rows = [vec![throttle::set_ex()], throttle::main_rows(&scripts)].concat();
    let mut subjects: Vec<_> = rows.iter().cloned().map(Subject::start).collect();
    for _ in 0..effort.rounds {
        subjects.iter_mut().flatten().try_for_each(|subject| subject.round(effort))?;
    }
    for (row, subject) in rows.into_iter().zip(subjects) {
        let figures = subject.map(|it| vec![median(it.pipelined), median(it.single)]);
        table.add(&row.name, row.peer, figures);
    }
    Ok(table)
}
