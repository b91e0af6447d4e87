//! The worlds that are searched, each in two sizes.

use crate::leases::LeasesWorld;
use crate::mistake::Mistake;
use crate::outcome::Event;
use crate::search::{search, Extent, SearchResult};
use crate::waiting::{LineCall, LineLimit, WaitingWorld};
use crate::world::ClientCall::{All, Apply, ApplySpent, Release, Renew, Spend, Take};
use crate::world::{BookKind, ClientCall, World, WorldClause, WorldKey};
use engine::calendar::Zones;
use engine::rule::Rule;
use engine::throttle::Rate;
use engine::{Limit, Manner, NewReservation, Quantity, Request, WindowLimit};

/// Some day in 2026, at the beginning of a second.
const START_US: u64 = 1_795_223_799_000_000;
const SECOND_US: u64 = 1_000_000;

/// The size of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Searched in seconds, by the tests.
    Small,
    /// At least a million states, searched by `make prove`.
    Large,
}

impl Size {
    fn of<T>(self, small: T, large: T) -> T {
        match self {
            Size::Small => small,
            Size::Large => large,
        }
    }
}

fn window(rule: &str, max: u64) -> WindowLimit {
    let rule = Rule::parse(rule.as_bytes(), &mut Zones::new()).expect("a rule");
    WindowLimit { limit: max, rule, max_entries: 4096 }
}

fn key(kind: BookKind, rule: &str, max: u64) -> WorldKey {
    let period_us = if kind == BookKind::Semaphore { 0 } else { SECOND_US };
    let limit = Limit::Window(window(rule, max));
    WorldKey { kind, limit, max, period_us, longest_wait_us: SECOND_US }
}

fn bucket(max: u64, count: u64) -> WorldKey {
    let rate = Rate::new(max - 1, count, 1_000).expect("a rate");
    let longest_wait_us = (max * SECOND_US).div_ceil(count);
    let (kind, limit) = (BookKind::Bucket(count), Limit::Rate(rate));
    WorldKey { kind, limit, max, period_us: SECOND_US, longest_wait_us }
}

/// Returns a request for this quantity on a key: 0 looks, and a negative quantity gives back.
fn ask(key: &WorldKey, quantity: i64) -> Request {
    let mut request = Request::new(key.limit);
    request.ask.quantity = Quantity::from_signed(quantity);
    request
}

fn with(request: Request, manner: Manner) -> Request {
    let mut request = request;
    request.ask.manner = manner;
    request
}

fn leaving(request: Request, leave: u64) -> Request {
    let mut request = request;
    request.ask.leave = leave;
    request
}

fn banning(request: Request, ban_ms: u64) -> Request {
    Request { ban_ms: Some(ban_ms), ..request }
}

fn reserving(key: &WorldKey, quantity: i64, lease_ms: u64, count_lapsed: bool) -> Request {
    let Limit::Window(window) = key.limit else { unreachable!("a bucket reserves nothing") };
    let reserve = NewReservation { lease_ms, count_lapsed, id: None, max_reservations: 100 };
    Request { limit: Limit::Reserve(window, reserve), ..ask(key, quantity) }
}

fn world(
    name: &'static str,
    size: Size,
    keys: Vec<WorldKey>,
    clients: Vec<Vec<ClientCall>>,
) -> World {
    World {
        name,
        keys,
        clients,
        calls: 2,
        time_passes: (size.of(2, 3), size.of(vec![500_000], vec![500_000, 499_999, 1])),
        steps_back: (0, vec![]),
        steps_forward: (0, vec![]),
        failovers: (0, 0),
        start_us: START_US,
        must_happen: vec![Event::Denied, Event::Back],
        mistake: None,
    }
}

/// Searches all worlds of one size, one after the other, in at most 8 GB of memory.
pub fn search_all(size: Size, extent: Extent) -> impl Iterator<Item = SearchResult> {
    let worlds = [
        sliding(size),
        fixed(size),
        first(size),
        gcra(size),
        thirds(size),
        reserve(size),
        lapsed(size),
        spend(size),
        bans(size),
        groups(size),
        failover(size),
    ];
    let worlds = worlds.into_iter().map(move |world| search(world.name, world, extent));
    // A state with lines or leases takes kilobytes of memory until its steps have been made.
    let fewer = match extent {
        Extent::Steps(steps) => Extent::Steps(steps / 3),
        other => other,
    };
    let line = std::iter::once_with(move || search("line", line(size), fewer));
    let lines = std::iter::once_with(move || search("lines", lines(size), fewer));
    let leases = std::iter::once_with(move || search("leases", leases(size), fewer));
    worlds.chain(line).chain(lines).chain(leases)
}

/// Searches the world in which the mistake must be found.
pub fn search_mistake(mistake: Mistake, extent: Extent) -> SearchResult {
    let size = Size::Small;
    let world = match mistake {
        Mistake::ClientsClock | Mistake::LostWrite | Mistake::EarlyExpiry | Mistake::NoHealing => {
            sliding(size)
        }
        Mistake::LapsedForgotten => lapsed(size),
        Mistake::SettledStays | Mistake::LongLease => reserve(size),
        Mistake::MarkForgotten | Mistake::BanLifted => bans(size),
        Mistake::GenerousRefund => gcra(size),
        Mistake::AllOfGroupTake | Mistake::LastChoice | Mistake::NotAtomic => groups(size),
        Mistake::FailoverLosesMore => failover(size),
        Mistake::NoWake
        | Mistake::TriedWithin
        | Mistake::NoTimer
        | Mistake::Overtakes
        | Mistake::LastIsGranted
        | Mistake::GhostInLine => {
            return search("line", WaitingWorld { mistake: Some(mistake), ..line(size) }, extent);
        }
        Mistake::JoinsAtTheEnd
        | Mistake::TwoPlaces
        | Mistake::OneKeyAlone
        | Mistake::CountsTwice => {
            let world = WaitingWorld { mistake: Some(mistake), ..lines(size) };
            return search("lines", world, extent);
        }
        Mistake::LeaseFromReply | Mistake::SettlesLess | Mistake::SleepForgotten => {
            let faults = u8::from(mistake == Mistake::SleepForgotten);
            let world = LeasesWorld { mistake: Some(mistake), faults, ..leases(size) };
            // One step more than elsewhere, because two processes have to be answered.
            return search("leases", world, Extent::UntilWrong(8));
        }
    };
    search(world.name, World { mistake: Some(mistake), ..world }, extent)
}

/// The world of a line: three calls wait for a semaphore of two.
fn line(size: Size) -> WaitingWorld {
    WaitingWorld {
        limits: vec![LineLimit { limit: 2, period_ms: 0 }],
        lease_ms: 30,
        clients: vec![
            vec![asks(&[(0, 1)], 0, Some(0)), asks(&[(0, 2)], 0, None)],
            vec![asks(&[(0, 2)], 0, Some(20)), asks(&[(0, 1)], 1, Some(0))],
            vec![asks(&[(0, 1)], 1, Some(100)), asks(&[(0, 1)], 0, None)],
        ],
        calls: size.of(2, 3),
        time_passes: size.of((2, vec![10_000, 100_000]), (3, vec![10_000, 29_999, 100_000])),
        faults: size.of(0, 1),
        must_happen: vec![Event::Waits, Event::GrantedAfterWaiting, Event::Dismissed],
        mistake: None,
    }
}

fn asks(asks: &[(usize, u64)], leave: u64, block_ms: Option<u64>) -> LineCall {
    LineCall { asks: asks.to_vec(), leave, block_ms }
}

/// The world of two lines: calls wait for a semaphore of one, for a window of three that counts denials, or for both at
/// once.
fn lines(size: Size) -> WaitingWorld {
    WaitingWorld {
        limits: vec![LineLimit { limit: 1, period_ms: 0 }, LineLimit { limit: 3, period_ms: 40 }],
        lease_ms: 30,
        clients: vec![
            vec![asks(&[(0, 1), (1, 1)], 0, Some(0)), asks(&[(1, 1)], 0, None)],
            vec![asks(&[(0, 1)], 0, Some(20)), asks(&[(1, 1), (0, 1)], 0, Some(20))],
            vec![asks(&[(1, 3)], 0, None), asks(&[(1, 1)], 0, Some(100))],
        ],
        calls: size.of(2, 3),
        time_passes: size.of((2, vec![10_000, 100_000]), (3, vec![10_000, 29_999, 100_000])),
        faults: size.of(0, 1),
        must_happen: vec![
            Event::Waits,
            Event::ChangesLine,
            Event::GrantedAfterWaiting,
            Event::Dismissed,
        ],
        mistake: None,
    }
}

/// Processes that decide a limit of three by themselves.
fn leases(size: Size) -> LeasesWorld {
    LeasesWorld {
        limit: 3,
        quantities: size.of(vec![3, 1], vec![2, 1]),
        takes: size.of(2, 3),
        passes: (size.of(2, 3), vec![50, 91]),
        faults: size.of(1, 2),
        mistake: None,
    }
}

/// A limit of two in any second: whole calls, ATMOST, LEAVE and give-backs. The clock steps back.
fn sliding(size: Size) -> World {
    let key = key(BookKind::Sliding, "1s", 2);
    let clients = vec![
        vec![Take(0, ask(&key, 1)), Take(0, ask(&key, -1))],
        vec![Take(0, with(ask(&key, 2), Manner::AtMost)), Take(0, ask(&key, 2))],
        vec![Take(0, leaving(ask(&key, 1), 1)), Take(0, ask(&key, -2))],
    ];
    World {
        steps_back: (1, size.of(vec![700_000], vec![700_000, 5_000_000, 300_000])),
        ..world("sliding window", size, vec![key], clients)
    }
}

/// A limit of two in each second of the calendar.
fn fixed(size: Size) -> World {
    let key = key(BookKind::Fixed, "1s@UTC", 2);
    let clients = vec![
        vec![Take(0, ask(&key, 1)), Take(0, ask(&key, -1))],
        vec![Take(0, ask(&key, 2)), Take(0, with(ask(&key, 2), Manner::AtMost))],
        vec![Take(0, leaving(ask(&key, 1), 1)), Take(0, with(ask(&key, 3), Manner::Force))],
    ];
    World {
        steps_back: (size.of(0, 1), vec![400_000, 1_300_000]),
        start_us: START_US + 300_000,
        must_happen: size.of(vec![Event::Denied], vec![Event::Denied, Event::Back]),
        ..world("FIXED window", size, vec![key], clients)
    }
}

/// A limit of two in each second that a first event opens.
fn first(size: Size) -> World {
    let key = key(BookKind::First, "1s^first", 2);
    let clients = vec![
        vec![Take(0, ask(&key, 1)), Take(0, ask(&key, -1))],
        vec![Take(0, ask(&key, 2)), Take(0, with(ask(&key, 2), Manner::AtMost))],
        vec![
            Take(0, leaving(ask(&key, 1), 1)),
            Take(0, Request { count_denied: true, ..ask(&key, 1) }),
        ],
    ];
    World {
        steps_back: (1, size.of(vec![700_000], vec![700_000, 5_000_000, 300_000])),
        ..world("FROM first window", size, vec![key], clients)
    }
}

/// A bucket of two that fills in a second, with FORCE, AHEAD and give-backs.
fn gcra(size: Size) -> World {
    let key = WorldKey { longest_wait_us: 6 * SECOND_US, ..bucket(2, 2) };
    let clients = vec![
        vec![Take(0, ask(&key, 1)), Take(0, ask(&key, -1))],
        vec![
            Take(0, ask(&key, 2)),
            Take(0, with(ask(&key, 2), Manner::Ahead { within_us: SECOND_US })),
        ],
        vec![
            Take(0, with(ask(&key, 2), Manner::Force)),
            Take(0, leaving(with(ask(&key, 2), Manner::AtMost), 1)),
        ],
    ];
    World {
        steps_back: (1, size.of(vec![700_000], vec![700_000, 5_000_000])),
        ..world("bucket", size, vec![key], clients)
    }
}

/// A bucket whose emission interval is not a whole number of any unit: three in a second.
fn thirds(size: Size) -> World {
    let key = bucket(2, 3);
    let clients = vec![
        vec![Take(0, ask(&key, 1)), Take(0, ask(&key, -1))],
        vec![Take(0, ask(&key, 2)), Take(0, ask(&key, -2))],
        vec![Take(0, with(ask(&key, 2), Manner::AtMost))],
    ];
    World {
        time_passes: (size.of(2, 3), size.of(vec![333_333], vec![333_333, 333_334, 1])),
        steps_back: (1, vec![700_000]),
        steps_forward: (size.of(0, 1), vec![600_000]),
        must_happen: size
            .of(vec![Event::Denied, Event::Back], vec![Event::Denied, Event::Back, Event::Forward]),
        ..world("bucket of thirds", size, vec![key], clients)
    }
}

/// A limit of two in any second for reservations and counted events.
fn reserve(size: Size) -> World {
    let key = WorldKey { longest_wait_us: 2 * SECOND_US, ..key(BookKind::Sliding, "1s", 2) };
    let clients = vec![
        vec![Take(0, reserving(&key, 1, 500, false)), Apply(0, None), Renew(0, None)],
        vec![
            Take(0, with(reserving(&key, 2, 700, false), Manner::AtMost)),
            Release(0),
            Apply(0, Some(1)),
        ],
        vec![Take(0, ask(&key, 1))],
    ];
    World {
        steps_back: (1, size.of(vec![600_000], vec![600_000, 5_000_000])),
        steps_forward: (size.of(0, 1), vec![600_000]),
        must_happen: vec![
            Event::Denied,
            Event::Settled,
            Event::Lapsed,
            Event::Renewed,
            Event::Back,
        ],
        ..world("reservations", size, vec![key], clients)
    }
}

/// The same, with reservations that count when they lapse.
fn lapsed(size: Size) -> World {
    let key = WorldKey { longest_wait_us: 2 * SECOND_US, ..key(BookKind::Sliding, "1s", 2) };
    let clients = vec![
        vec![Take(0, reserving(&key, 1, 500, true)), Apply(0, None), Renew(0, None)],
        vec![
            Take(0, with(reserving(&key, 2, 700, true), Manner::AtMost)),
            Release(0),
            Renew(0, Some(300)),
        ],
        vec![Take(0, ask(&key, 1)), Take(0, reserving(&key, 1, 500, false))],
    ];
    World {
        time_passes: (size.of(2, 3), size.of(vec![500_000], vec![500_000, 700_000, 1])),
        steps_back: (1, size.of(vec![600_000], vec![600_000, 5_000_000])),
        must_happen: vec![Event::Denied, Event::Settled, Event::Renewed, Event::Back],
        ..world("reservations with COUNTLAPSED", size, vec![key], clients)
    }
}

/// Holders that spend reservations with COUNTLAPSED unit by unit, and then settle or let them lapse.
fn spend(size: Size) -> World {
    let key = WorldKey { longest_wait_us: 2 * SECOND_US, ..key(BookKind::Sliding, "1s", 2) };
    let holder = |quantity, lease_ms| {
        vec![
            Take(0, with(reserving(&key, quantity, lease_ms, true), Manner::AtMost)),
            Spend(0),
            ApplySpent(0),
            Renew(0, None),
        ]
    };
    let clients = vec![holder(1, 500), holder(2, 700), vec![Take(0, ask(&key, 1))]];
    World {
        time_passes: (size.of(2, 4), size.of(vec![499_999], vec![499_999, 700_000, 1])),
        steps_back: (1, vec![600_000]),
        must_happen: vec![Event::Denied, Event::Settled, Event::Back],
        ..world("spending from a reservation", size, vec![key], clients)
    }
}

/// A window and a bucket that denials ban.
fn bans(size: Size) -> World {
    let window = WorldKey { longest_wait_us: 2 * SECOND_US, ..key(BookKind::Sliding, "1s", 1) };
    let bucket = WorldKey { longest_wait_us: 4 * SECOND_US, ..bucket(1, 2) };
    let clients = vec![
        vec![Take(0, banning(ask(&window, 1), 400)), Take(1, banning(ask(&bucket, 1), 800))],
        vec![Take(0, ask(&window, 1)), Take(1, ask(&bucket, -1))],
        vec![
            Take(0, with(ask(&window, 1), Manner::Force)),
            Take(1, with(ask(&bucket, 1), Manner::Ahead { within_us: SECOND_US })),
        ],
    ];
    World {
        calls: size.of(2, 3),
        time_passes: (size.of(2, 3), size.of(vec![500_000], vec![500_000, 1_000_000])),
        steps_back: (size.of(0, 1), vec![700_000, 5_000_000]),
        must_happen: vec![Event::Denied, Event::Banned],
        ..world("bans", size, vec![window, bucket], clients)
    }
}

/// RL.ALL with a window, a semaphore, and a plan or else credits.
fn groups(size: Size) -> World {
    let rpm = key(BookKind::Sliding, "1s", 2);
    let plan = key(BookKind::Fixed, "1s@UTC", 1);
    let credits = bucket(2, 1);
    let slots = WorldKey { longest_wait_us: 0, ..key(BookKind::Semaphore, "-", 1) };
    let clause = |key: usize, request: Request, group: usize| WorldClause { key, request, group };
    let both = vec![
        clause(0, ask(&rpm, 1), 0),
        clause(1, ask(&plan, 1), 1),
        clause(2, ask(&credits, 1), 1),
    ];
    let job = vec![
        clause(3, reserving(&slots, 1, 600, false), 0),
        clause(1, ask(&plan, 1), 1),
        clause(2, ask(&credits, 2), 1),
    ];
    let checked = vec![
        clause(3, Request { check: true, ..ask(&slots, 1) }, 0),
        clause(0, ask(&rpm, 2), 1),
        clause(1, Request { shadow: true, ..ask(&plan, 1) }, 2),
    ];
    let clients = vec![
        vec![All(both), Release(3)],
        vec![All(job), Release(3)],
        vec![All(checked), Take(2, ask(&credits, -1))],
    ];
    World {
        calls: size.of(2, 4),
        time_passes: (size.of(2, 4), size.of(vec![500_000], vec![500_000, 499_999, 1])),
        start_us: START_US + 300_000,
        must_happen: vec![Event::Denied, Event::Else, Event::Settled],
        ..world("groups with ELSE", size, vec![rpm, plan, credits, slots], clients)
    }
}

/// A replica that lacks up to two effects takes over. Its clock may be behind.
fn failover(size: Size) -> World {
    let window = WorldKey { longest_wait_us: 2 * SECOND_US, ..key(BookKind::Sliding, "1s", 2) };
    let bucket = bucket(2, 2);
    let clients = vec![
        vec![Take(0, ask(&window, 1)), Take(1, ask(&bucket, 1))],
        vec![Take(0, reserving(&window, 1, 500, true)), Apply(0, None), Release(0)],
        vec![Take(0, with(ask(&window, 2), Manner::AtMost))],
    ];
    World {
        time_passes: (size.of(2, 3), size.of(vec![500_000], vec![500_000, 499_999])),
        steps_back: (size.of(0, 1), vec![300_000]),
        failovers: (1, size.of(1, 2)),
        must_happen: vec![Event::Denied, Event::Failover],
        ..world("failover", size, vec![window, bucket], clients)
    }
}
