//! The duration of single calls that find a lot to do, at the default settings, including the way to the server and back.

use std::time::Duration;

use crate::client::{Batch, Client, Result};
use crate::report::{Column, Table};
use crate::server::{Host, Persistence, Time, Tool};
use support::START_US;

/// The default of `ratelimit.max-reservations`.
const RESERVATIONS: usize = 65_536;

/// The default of `ratelimit.window-entries`, and the most that BUCKETS can ask for.
const ENTRIES: u64 = 4_096;
const BUCKETS: u64 = 65_536;

/// A step of the clock before the call.
#[derive(Clone, Copy)]
enum ClockMove {
    None,
    /// Forward, beyond every window and lease.
    Forward,
    /// An hour back.
    Back,
}

/// One call that has a lot to do.
struct LongestCase {
    name: &'static str,
    make: Make,
    step: ClockMove,
    /// Commands that are not measured, one a line.
    before: &'static str,
    call: &'static str,
}

/// The contents of the key.
#[derive(Clone, Copy)]
enum Make {
    /// An event in each of this many parts of an hour, under a limit of a million, so that no two share an entry.
    Window { parts: u64, options: &'static str },
    /// This many reservations in a semaphore, named 0, 1, 2 and so on.
    Semaphore(usize),
    /// This many reservations and a hundred events in a window of an hour.
    Reservations(usize),
}

const EXACT: Make = Make::Window { parts: ENTRIES, options: "" };
const BUCKETED: Make = Make::Window { parts: BUCKETS, options: "BUCKETS 65536" };
const BESIDE_EVENTS: Make = Make::Reservations(RESERVATIONS);
const FULL: Make = Make::Semaphore(RESERVATIONS);
const NEARLY_FULL: Make = Make::Semaphore(RESERVATIONS - 1);

const fn case(
    name: &'static str,
    make: Make,
    step: ClockMove,
    before: &'static str,
    call: &'static str,
) -> LongestCase {
    LongestCase { name, make, step, before, call }
}

#[rustfmt::skip]
const CASES: [LongestCase; 16] = [
    case("RL.WINDOW, 4096 entries are dead",
        EXACT, ClockMove::Forward, "", "RL.WINDOW k 1000000 1h"),
    case("RL.WINDOW, 4096 entries are from the future",
        EXACT, ClockMove::Back, "", "RL.WINDOW k 1000000 1h"),
    case("RL.WINDOW denied, waits for the last of 4096 entries",
        EXACT, ClockMove::None, "", "RL.WINDOW k 1000000 1h 1000000"),
    case("RL.WINDOW BUCKETS 65536, all entries are dead",
        BUCKETED, ClockMove::Forward, "", "RL.WINDOW k 1000000 1h 1 BUCKETS 65536"),
    case("RL.WINDOW BUCKETS 65536, all entries are from the future",
        BUCKETED, ClockMove::Back, "", "RL.WINDOW k 1000000 1h 1 BUCKETS 65536"),
    case("RL.WINDOW BUCKETS 65536 denied, waits for the last entry",
        BUCKETED, ClockMove::None, "", "RL.WINDOW k 1000000 1h 1000000 BUCKETS 65536"),
    case("RL.ACQUIRE, 65,535 held",
        NEARLY_FULL, ClockMove::None, "RL.ACQUIRE_RO k 65536 0", "RL.ACQUIRE k 65536 0 ID x"),
    case("RL.ACQUIRE denied, 65,536 held, waits for the last lease",
        FULL, ClockMove::None, "", "RL.ACQUIRE k 65536 0 65536"),
    case("RL.ACQUIRE, 65,536 leases have lapsed",
        FULL, ClockMove::Forward, "RL.ACQUIRE_RO k 65536 0", "RL.ACQUIRE k 65536 0 ID x"),
    case("RL.ACQUIRE, 65,535 held and the clock went back",
        NEARLY_FULL, ClockMove::Back, "", "RL.ACQUIRE k 65536 0 ID x"),
    case("RL.ACQUIRE, the first after a change by hand, 65,534 held",
        NEARLY_FULL, ClockMove::None, "RL.ACQUIRE_RO k 65536 0\nZPOPMAX k", "RL.ACQUIRE k 65536 0 ID x"),
    case("RL.WINDOW beside 65,536 held",
        BESIDE_EVENTS, ClockMove::None, "", "RL.WINDOW k 1000000 1h"),
    case("RL.APPLY, 65,536 held",
        BESIDE_EVENTS, ClockMove::None, "", "RL.APPLY k 40000"),
    case("RL.RENEW, 65,536 held",
        FULL, ClockMove::None, "", "RL.RENEW k 40000"),
    case("RL.RELEASE of one, 65,536 held",
        FULL, ClockMove::None, "", "RL.RELEASE k 40000"),
    case("RL.RELEASE of one, 65,536 leases have lapsed",
        FULL, ClockMove::Forward, "", "RL.RELEASE k 40000"),
];

/// Makes reservations in the key `k`, named 0, 1, 2 and so on, with leases of half an hour.
fn reserve(client: &mut Client, number: usize, window: &str) -> Result<()> {
    let calls = (0..number).map(|id| format!("RL.ACQUIRE k {window} 1 ID {id} LEASE 1800000"));
    client.call_all(&calls.collect::<Vec<_>>())
}

impl Make {
    fn make(self, host: &Host, client: &mut Client) -> Result<()> {
        match self {
            Make::Window { parts, options } => {
                let clock = host.server.clock();
                for part in 0..parts {
                    clock.set_us(START_US + (part * (3_600_000_000 / parts + 1)) as i64);
                    client.call(&format!("RL.WINDOW k 1000000 1h 1 {options}"))?;
                }
                Ok(())
            }
            Make::Semaphore(number) => reserve(client, number, "65536 0"),
            Make::Reservations(number) => {
                client.call("RL.WINDOW k 1000000 1h 100")?;
                reserve(client, number, "1000000 1h")
            }
        }
    }
}

impl LongestCase {
    /// Makes the call once.
    fn run(&self) -> Result<Duration> {
        let host = Host::start(Tool::None, Persistence::Bare, Time::Held)?;
        let clock = host.server.clock();
        let mut client = host.connect()?;
        // So that the code of the call has run before.
        client.call_all(&[self.call.replace(" k ", " other ")])?;
        self.make.make(&host, &mut client)?;
        match self.step {
            ClockMove::None => {}
            ClockMove::Forward => {
                // So that the server does not delete the key. It counts as a change by hand.
                client.call("PERSIST k")?;
                clock.advance_ms(86_400_000);
            }
            ClockMove::Back => clock.advance_ms(-3_600_000),
        }
        client.call_all(&self.before.lines().collect::<Vec<_>>())?;
        let (_, took) = client.exchange(&Batch::of(self.call))?;
        Ok(took)
    }
}

/// Makes each call `times` times, each on a new server, and takes the shortest time, as other work on the machine only adds.
pub fn table(times: usize) -> Result<Table> {
    const MS: Column = Column { name: "ms", decimals: 2, compared: false };
    let title = format!(
        "The longest single calls, one of each on a fresh server (the shortest of {times})"
    );
    let mut table = Table::new("longest", title, &[MS]);
    for case in &CASES {
        let times: Result<Vec<Duration>> = (0..times).map(|_| case.run()).collect();
        let shortest = times.map(|times| times.into_iter().min().unwrap_or_default());
        table.add(case.name, None, shortest.map(|took| vec![took.as_secs_f64() * 1e3]))?;
    }
    Ok(table)
}
