//! A small world of exact leases: processes that reserve, spend and settle a limit of a server in memory. Replies and
//! commands come late or are lost, processes die and sleep, and the server's clock steps back. A search visits every order
//! of these events.
//!
//! The crate `leases` decides what is sent and spent. The book has the real time of each unit that was spent: no period of
//! real time may have more than the limit.

use crate::mistake::Mistake;
use commands::memory::{MemoryServer, Outcome, Value};
use leases::{Decision, ErrorReply, Leases, Now, Round, Terms};
use stateright::{Model, Property};
use std::hash::{Hash, Hasher};

const KEY: &[u8] = b"k";
const PERIOD_MS: u64 = 100;
const LEASE_MS: u64 = 40;
const START_MS: u64 = 1_795_223_799_000;

/// The processes, and the events that may happen.
#[derive(Clone, Debug)]
pub struct LeasesWorld {
    /// The limit in any 100 ms.
    pub limit: u64,
    /// The quantity that each process takes at a time.
    pub quantities: Vec<u64>,
    /// The maximum number of takes of each process.
    pub takes: u8,
    /// The maximum number of times that time passes, and the length of each in milliseconds.
    pub passes: (u8, Vec<u64>),
    /// The maximum number of faults: a lost reply, a sleep, a death, and a step back of the server's clock.
    pub faults: u8,
    /// A planted mistake.
    pub mistake: Option<Mistake>,
}

/// A step of the world. Processes are named by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseAction {
    /// A process takes. It asks the server for what it lacks, and takes again when the server has answered.
    Take(usize),
    /// A process sends what is due.
    Send(usize),
    /// The server executes what a process sent, even if the process has given up.
    Execute(usize),
    /// The replies arrive.
    Receive(usize),
    /// The server executes what a process sent, and the replies arrive at once.
    Answer(usize),
    /// The process gives up waiting for the replies.
    Lose(usize),
    /// The process sleeps for 60 ms, while its monotonic clock stands still.
    Sleep(usize),
    /// The process dies.
    Die(usize),
    /// Time passes.
    Pass(u64),
    /// The server's clock steps back by 70 ms.
    Back,
}

type Replies = Vec<Result<leases::Value, ErrorReply<()>>>;

#[derive(Clone, Debug)]
struct Process {
    leases: Leases<()>,
    /// The time for which its monotonic clock stood still.
    slept_ms: u64,
    /// The commands that the server has not executed yet.
    on_the_way: Vec<Vec<Vec<u8>>>,
    /// The round that waits for its replies, and these once the server has executed it.
    round: Option<(Round, Option<Replies>)>,
    takes: u8,
    /// True while a take waits for the server.
    waits: bool,
    is_dead: bool,
}

/// A state of the world.
#[derive(Clone, Debug)]
pub struct LeasesState {
    processes: Vec<Process>,
    /// The commands that the server has executed, and their times by its clock.
    executed: Vec<(u64, Vec<Vec<u8>>)>,
    real_ms: u64,
    /// How far the server's clock has stepped back.
    back_ms: u64,
    /// The real time of each take that was allowed, and its quantity.
    spent: Vec<(u64, u64)>,
    passes: u8,
    faults: u8,
}

// The clocks and averages of leases are floating-point numbers, so states are compared by all that they print.
impl PartialEq for LeasesState {
    fn eq(&self, other: &LeasesState) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}

impl Hash for LeasesState {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        format!("{self:?}").hash(hasher);
    }
}

/// Converts a reply into what the leases need of it.
fn as_lease_value(value: &Value) -> leases::Value {
    match value {
        Value::Nil | Value::Error(_) => leases::Value::Nil,
        Value::Integer(number) => leases::Value::Integer(*number),
        Value::Bulk(_) => leases::Value::Text,
        Value::Array(values) => leases::Value::Array(values.iter().map(as_lease_value).collect()),
    }
}

fn call(server: &mut MemoryServer, now_ms: u64, words: &[Vec<u8>]) -> Value {
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    match server.call(&words, now_ms * 1_000) {
        Outcome::Reply(value) => value,
        Outcome::Waits(_) => unreachable!("leases do not wait"),
    }
}

impl LeasesState {
    fn now(&self, process: usize, mistake: Option<Mistake>) -> Now {
        let ns = |ms: u64| ms as i64 * 1_000_000;
        let monotonic_ns = ns(self.real_ms - self.processes[process].slept_ms);
        match mistake {
            Some(Mistake::SleepForgotten) => Now { monotonic_ns, wall_ns: monotonic_ns },
            _ => Now { monotonic_ns, wall_ns: ns(self.real_ms) },
        }
    }

    fn server_ms(&self) -> u64 {
        self.real_ms - self.back_ms
    }

    /// Returns the largest quantity that was spent in a period.
    fn most_spent(&self) -> u64 {
        let in_period = |end: &(u64, u64)| {
            let began = |(at, _): &&(u64, u64)| *at <= end.0 && *at + PERIOD_MS > end.0;
            self.spent.iter().filter(began).map(|(_, quantity)| quantity).sum()
        };
        self.spent.iter().map(in_period).max().unwrap_or(0)
    }

    fn execute(&mut self, process: usize, mistake: Option<Mistake>) {
        // A server in memory cannot be copied, so the past is repeated.
        let mut server = MemoryServer::new(|bytes| bytes.fill(7));
        for (at_ms, words) in &self.executed {
            call(&mut server, *at_ms, words);
        }
        let mut replies = Replies::new();
        for mut words in std::mem::take(&mut self.processes[process].on_the_way) {
            if mistake == Some(Mistake::SettlesLess) && words[0] == b"RL.APPLY" {
                words[3] = b"1".to_vec();
            }
            let reply = call(&mut server, self.server_ms(), &words);
            replies.push(match reply {
                Value::Error(text) => Err(ErrorReply { code: text, error: () }),
                reply => Ok(as_lease_value(&reply)),
            });
            self.executed.push((self.server_ms(), words));
        }
        if let Some((_, found)) = &mut self.processes[process].round {
            *found = Some(replies);
        }
    }
}

impl LeasesWorld {
    /// Takes, or asks for what is missing.
    fn take(&self, state: &mut LeasesState, number: usize) {
        let (now, quantity) = (state.now(number, self.mistake), self.quantities[number]);
        let process = &mut state.processes[number];
        let was_waiting = std::mem::take(&mut process.waits);
        match process.leases.take(quantity, was_waiting, now).expect("a window") {
            Some(reply) if reply.decision == Decision::Allowed => {
                state.spent.push((state.real_ms, quantity));
            }
            Some(_) => {}
            None => {
                process.leases.want(quantity, was_waiting, now).expect("they are not closed");
                process.waits = true;
                if process.round.is_none() && process.on_the_way.is_empty() {
                    let _ = self.send(state, number);
                }
            }
        }
    }

    /// Sends what is due; `None` if there is nothing.
    fn send(&self, state: &mut LeasesState, number: usize) -> Option<()> {
        let mut now = state.now(number, self.mistake);
        if self.mistake == Some(Mistake::LeaseFromReply) {
            now.monotonic_ns += 20_000_000;
            now.wall_ns += 20_000_000;
        }
        let process = &mut state.processes[number];
        let round = process.leases.next_round(now)?;
        process.on_the_way.clone_from(&round.commands);
        process.round = Some((round, None));
        Some(())
    }

    fn receive(&self, state: &mut LeasesState, number: usize) -> Option<()> {
        let now = state.now(number, self.mistake);
        let process = &mut state.processes[number];
        let (round, replies) = process.round.take()?;
        process.leases.receive(round, replies?, now);
        if process.waits {
            self.take(state, number);
        }
        Some(())
    }
}

impl Model for LeasesWorld {
    type State = LeasesState;
    type Action = LeaseAction;

    fn init_states(&self) -> Vec<LeasesState> {
        let words = |words: &[&str]| words.iter().map(|word| word.as_bytes().to_vec()).collect();
        let period = format!("{PERIOD_MS}ms");
        let terms = Terms {
            key: KEY.to_vec(),
            window: words(&[&self.limit.to_string(), &period]),
            options: Vec::new(),
            limit: Some(self.limit),
            counted_ms: PERIOD_MS,
            lease_ms: LEASE_MS,
            leave: 0,
        };
        let ns = START_MS as i64 * 1_000_000;
        let now = Now { monotonic_ns: ns, wall_ns: ns };
        let process = |number: usize| Process {
            leases: Leases::new(terms.clone(), format!("p{number}"), now),
            slept_ms: 0,
            on_the_way: Vec::new(),
            round: None,
            takes: self.takes,
            waits: false,
            is_dead: false,
        };
        let mut state = LeasesState {
            processes: (0..self.quantities.len()).map(process).collect(),
            executed: Vec::new(),
            real_ms: START_MS,
            back_ms: 0,
            spent: Vec::new(),
            passes: self.passes.0,
            faults: self.faults,
        };
        // The first process has asked already, so that a search sees more of what follows.
        state.processes[0].takes -= 1;
        self.take(&mut state, 0);
        vec![state]
    }

    fn actions(&self, state: &LeasesState, actions: &mut Vec<LeaseAction>) {
        for (number, process) in state.processes.iter().enumerate() {
            if !process.on_the_way.is_empty() {
                actions.push(LeaseAction::Execute(number));
            }
            if process.is_dead {
                continue;
            }
            if process.takes > 0 && !process.waits {
                actions.push(LeaseAction::Take(number));
            }
            match &process.round {
                // What a lost round sent is executed before the next one, as on one connection.
                None if process.on_the_way.is_empty() => actions.push(LeaseAction::Send(number)),
                Some((_, None)) => actions.push(LeaseAction::Answer(number)),
                Some((_, Some(_))) => actions.push(LeaseAction::Receive(number)),
                None => {}
            }
            if state.faults > 0 {
                actions.extend([LeaseAction::Sleep(number), LeaseAction::Die(number)]);
                if process.round.is_some() {
                    actions.push(LeaseAction::Lose(number));
                }
            }
        }
        if state.passes > 0 {
            actions.extend(self.passes.1.iter().copied().map(LeaseAction::Pass));
        }
        if state.faults > 0 && state.back_ms == 0 {
            actions.push(LeaseAction::Back);
        }
    }

    fn next_state(&self, last: &LeasesState, action: LeaseAction) -> Option<LeasesState> {
        let mut state = last.clone();
        match action {
            LeaseAction::Take(number) => {
                state.processes[number].takes -= 1;
                self.take(&mut state, number);
            }
            LeaseAction::Send(number) => self.send(&mut state, number)?,
            LeaseAction::Execute(number) => state.execute(number, self.mistake),
            LeaseAction::Receive(number) => self.receive(&mut state, number)?,
            LeaseAction::Answer(number) => {
                state.execute(number, self.mistake);
                self.receive(&mut state, number)?;
            }
            LeaseAction::Lose(number) => {
                state.faults -= 1;
                let now = state.now(number, self.mistake);
                let process = &mut state.processes[number];
                let (round, _) = process.round.take()?;
                process.leases.fail(round, (), true, now);
                process.waits = false;
            }
            LeaseAction::Sleep(number) => {
                state.faults -= 1;
                state.real_ms += 60;
                state.processes[number].slept_ms += 60;
            }
            LeaseAction::Die(number) => {
                state.faults -= 1;
                state.processes[number].is_dead = true;
            }
            LeaseAction::Pass(ms) => {
                state.passes -= 1;
                state.real_ms += ms;
            }
            LeaseAction::Back => {
                state.faults -= 1;
                state.back_ms = 70;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<LeasesWorld>> {
        vec![
            Property::always(
                "no period has more than the limit",
                |world: &LeasesWorld, state: &LeasesState| state.most_spent() <= world.limit,
            ),
            Property::sometimes(
                "all of the limit is spent",
                |world: &LeasesWorld, state: &LeasesState| state.most_spent() == world.limit,
            ),
        ]
    }
}
