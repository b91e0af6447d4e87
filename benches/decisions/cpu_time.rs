//! CPU time of the server for a decision: in pipelines, and one command at a time.

use std::time::Duration;

use crate::callgrind::median;
use crate::report::{Column, Table, SET_EX};
use crate::server::{cpu_and_rate, Host, Persistence, Time, Tool};
use crate::throttle;
use crate::workload::{Workload, PIPELINE};
use crate::Result;
use support::Conn;

/// Exchanges before the rounds.
const WARM_UP: usize = 100;

/// Connections that each send one command at a time.
const CONNECTIONS: usize = 50;

const NAMES: [&str; 8] = [
    "INCR",
    SET_EX,
    throttle::ALLOWED,
    throttle::DENIED,
    throttle::CELL_ALLOWED,
    throttle::CELL_DENIED,
    throttle::LUA_ALLOWED,
    throttle::LUA_DENIED,
];

/// A row with a server of its own, which idles while the others are measured.
struct Subject {
    workload: Workload,
    _host: Host,
    control: Conn,
    conns: Vec<Conn>,
    /// The figures of all rounds.
    pipelined: Vec<f64>,
    single: Vec<f64>,
}

impl Subject {
    fn start(workload: Workload) -> Result<Subject> {
        let host = Host::start(Tool::None, Persistence::Bare, Time::Real);
        let mut control = host.server.conn();
        workload.prepare(&host, &mut control)?;
        for _ in 0..WARM_UP {
            workload.run(&mut control)?;
        }
        let conns = (0..CONNECTIONS).map(|_| host.server.conn()).collect();
        let (pipelined, single) = (vec![], vec![]);
        Ok(Subject { workload, _host: host, control, conns, pipelined, single })
    }

    /// Runs one round of each kind.
    fn round(&mut self, time: Duration) -> Result<()> {
        let Subject { workload, control, conns, .. } = self;
        let [pipelined, _] = cpu_and_rate(control, time, || {
            workload.run(&mut conns[0])?;
            Ok(PIPELINE)
        })?;
        let [single, _] = cpu_and_rate(control, time, || {
            workload.run_on_each(conns)?;
            Ok(CONNECTIONS)
        })?;
        self.pipelined.push(pipelined);
        self.single.push(single);
        Ok(())
    }
}

/// Measures all rows in turn, `rounds` times, so that a disturbance affects all of them, and takes the medians.
pub fn table(rounds: usize, time: Duration) -> Result<Table> {
    const COLUMNS: [Column; 2] = [
        Column { name: "pipelines", decimals: 2, compared: true },
        Column { name: "one at a time", decimals: 2, compared: true },
    ];
    let title = format!(
        "Microseconds of the server's CPU time per decision: in pipelines of {PIPELINE} on one connection, and from \
         {CONNECTIONS} connections that each send one command at a time (medians of {rounds} interleaved rounds)"
    );
    let mut table = Table::new("time", title, &COLUMNS);
    let scripts = Host::start(Tool::None, Persistence::Bare, Time::Real).scripts;
    let rows = throttle::workloads(&scripts).into_iter();
    let rows: Vec<_> =
        rows.filter(|(workload, _)| NAMES.contains(&workload.name.as_str())).collect();
    let start = |(workload, _): &(Workload, _)| Subject::start(workload.clone());
    let mut subjects: Vec<Result<Subject>> = rows.iter().map(start).collect();
    for _ in 0..rounds {
        for subject in subjects.iter_mut().flatten() {
            subject.round(time)?;
        }
    }
    for ((workload, peer), subject) in rows.iter().zip(subjects) {
        let figures = subject.map(|it| vec![median(it.pipelined), median(it.single)]);
        table.add(&workload.name, *peer, figures);
    }
    Ok(table)
}
