//! A small world of keys: a few clients, each with a few calls to choose from, a clock that advances and steps, and a
//! replica that takes over. A search visits every order of these events.
//!
//! ```text
//! state = the stored keys + three clocks + the number of events that are left + the books
//! ```
//!
//! The engine itself decides. Each transition loads the stored values into a [`Memory`], makes the call there and saves the
//! values again. The books record each grant and its time, and know nothing of the engine's state. Claims are checked
//! against the books and three clocks:
//!
//! - `wall_us` is the server's clock, which may step back and forward.
//! - `real_us` never steps. By this clock, a reservation ends at most one lease after the first call that follows a step
//!   back.
//! - `forward_us` is real time plus all steps forward. By this clock, a grant counts for at least one period: a step forward
//!   ends windows early, and a step back can only make them longer.

mod books;
mod calls;

use crate::mistake::Mistake;
use crate::outcome::{self, Claim, Event, HasOutcome, StepOutcome};
use books::{BanBook, Books};
use engine::memory::{Memory, Saved, SavedValue};
use engine::reservation::Id;
use engine::{Ask, Decision, Limit, Quantity, Request, Verdict};
use stateright::{Model, Property};

thread_local! {
    static MEMORY: Memory = {
        let memory = Memory::default();
        // Rules name their zone by its number in a store.
        memory.zones(|zones| zones.zone_by_name(b"UTC"));
        memory
    };
}

/// The keys of a world, the first of them alone in most.
const NAMES: [&[u8]; 4] = [b"k0", b"k1", b"k2", b"k3"];

/// The kind of books by which a key is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BookKind {
    /// Events leave one period after they happened.
    Sliding,
    /// Windows begin at whole periods of the server's clock.
    Fixed,
    /// Windows begin with their first event.
    First,
    /// A number of units comes back in each period: a bucket.
    Bucket(u64),
    /// Nothing is counted.
    Semaphore,
}

/// A key and its bounds.
#[derive(Clone, Copy, Debug)]
pub struct WorldKey {
    /// The kind of its books.
    pub kind: BookKind,
    /// The limit, without a reservation.
    pub limit: Limit,
    /// The largest quantity that may be used at once.
    pub max: u64,
    /// One period, in microseconds; 0 for a semaphore.
    pub period_us: u64,
    /// The longest wait of a call if no other call takes anything.
    pub longest_wait_us: u64,
}

/// One of several limits in a call.
#[derive(Clone, Copy, Debug)]
pub struct WorldClause {
    /// The key's number.
    pub key: usize,
    /// The request.
    pub request: Request,
    /// The number of its group.
    pub group: usize,
}

/// A call that a client may choose.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a world has a few of them")]
pub enum ClientCall {
    /// RL.THROTTLE, RL.WINDOW or RL.ACQUIRE on a key.
    Take(usize, Request),
    /// RL.APPLY of the client's own reservation.
    Apply(usize, Option<u64>),
    /// RL.RELEASE of it.
    Release(usize),
    /// RL.RENEW of it, with this lease.
    Renew(usize, Option<u64>),
    /// Spends a unit of it without a call.
    Spend(usize),
    /// RL.APPLY of the quantity that was spent of it.
    ApplySpent(usize),
    /// RL.ALL.
    All(Vec<WorldClause>),
}

/// The keys and clients of a world, and the events that may happen.
#[derive(Clone, Debug)]
pub struct World {
    /// Its name.
    pub name: &'static str,
    /// Its keys.
    pub keys: Vec<WorldKey>,
    /// The calls that each client may make.
    pub clients: Vec<Vec<ClientCall>>,
    /// The maximum number of calls of each client.
    pub calls: u8,
    /// The maximum number of times that time passes, and the length of each.
    pub time_passes: (u8, Vec<u64>),
    /// The maximum number of steps back of the clock, and the length of each.
    pub steps_back: (u8, Vec<u64>),
    /// The maximum number of steps forward of the clock, and the length of each.
    pub steps_forward: (u8, Vec<u64>),
    /// The maximum number of failovers, and of effects that the replica may lack.
    pub failovers: (u8, usize),
    /// Unix microseconds at the beginning.
    pub start_us: u64,
    /// The events that must occur in some state.
    pub must_happen: Vec<Event>,
    /// A planted mistake.
    pub mistake: Option<Mistake>,
}

/// A step of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorldAction {
    /// A client makes one of its calls.
    Call(usize, usize),
    /// Time passes.
    Pass(u64),
    /// The clock steps back.
    Back(u64),
    /// The clock steps forward.
    Forward(u64),
    /// The replica has caught up.
    Sync,
    /// The replica takes over without the last this many effects.
    Failover(usize),
}

/// A state of the world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WorldState {
    saved: Vec<Option<Saved>>,
    wall_us: u64,
    real_us: u64,
    forward_us: u64,
    calls: Vec<u8>,
    time_passes: u8,
    steps_back: u8,
    steps_forward: u8,
    failovers: u8,
    books: Vec<Books>,
    /// The states before each effect that the replica lacks, the oldest first.
    unreplicated: Vec<(Vec<Option<Saved>>, Vec<Books>)>,
    outcome: StepOutcome,
}

fn id_of(client: usize) -> Id {
    Id::from(&[b'a' + client as u8][..])
}

/// Returns the request that looks at the key.
fn looking(request: &Request) -> Request {
    let ask = Ask::whole(Quantity::Look);
    Request { ask, ..*request }
}

/// Returns the request that takes this quantity at once.
fn taking(key: &WorldKey, quantity: u64) -> Request {
    let mut request = Request::new(key.limit);
    request.ask.quantity = Quantity::Take(quantity);
    request
}

fn load_key(memory: &Memory, saved: &[Option<Saved>], key: usize) {
    memory.delete(NAMES[key]);
    if let Some(saved) = &saved[key] {
        memory.restore(NAMES[key], saved).expect("what was saved is sound");
    }
}

fn load(memory: &Memory, saved: &[Option<Saved>]) {
    (0..saved.len()).for_each(|key| load_key(memory, saved, key));
}

fn unload(memory: &Memory, saved: &mut [Option<Saved>]) {
    for (name, saved) in NAMES.iter().zip(saved) {
        *saved = memory.save(name);
    }
}

/// Runs the engine on a copy of one of these keys and throws the copy away.
fn probe<T>(saved: &[Option<Saved>], key: usize, body: impl FnOnce(&Memory) -> T) -> T {
    MEMORY.with(|memory| {
        load_key(memory, saved, key);
        body(memory)
    })
}

/// Makes a call on a copy of these keys.
fn decide(saved: &[Option<Saved>], key: usize, request: &Request, now_us: u64) -> Option<Decision> {
    probe(saved, key, |memory| memory.decide(NAMES[key], request, now_us, || id_of(25)).ok())
}

impl HasOutcome for WorldState {
    fn outcome(&self) -> StepOutcome {
        self.outcome
    }
}

impl Model for World {
    type State = WorldState;
    type Action = WorldAction;

    fn init_states(&self) -> Vec<WorldState> {
        vec![WorldState {
            saved: vec![None; self.keys.len()],
            wall_us: self.start_us,
            real_us: self.start_us,
            forward_us: self.start_us,
            calls: vec![self.calls; self.clients.len()],
            time_passes: self.time_passes.0,
            steps_back: self.steps_back.0,
            steps_forward: self.steps_forward.0,
            failovers: self.failovers.0,
            books: vec![Books::default(); self.keys.len()],
            unreplicated: Vec::new(),
            outcome: StepOutcome::default(),
        }]
    }

    fn actions(&self, state: &WorldState, actions: &mut Vec<WorldAction>) {
        if state.outcome.violated.is_some() {
            return;
        }
        for (client, client_calls) in self.clients.iter().enumerate() {
            if state.calls[client] > 0 {
                actions.extend((0..client_calls.len()).map(|act| WorldAction::Call(client, act)));
            }
        }
        let each = |left: u8, by: &[u64]| if left > 0 { by.to_vec() } else { Vec::new() };
        actions.extend(
            each(state.time_passes, &self.time_passes.1).into_iter().map(WorldAction::Pass),
        );
        actions
            .extend(each(state.steps_back, &self.steps_back.1).into_iter().map(WorldAction::Back));
        actions.extend(
            each(state.steps_forward, &self.steps_forward.1).into_iter().map(WorldAction::Forward),
        );
        if !state.unreplicated.is_empty() {
            actions.push(WorldAction::Sync);
        }
        if state.failovers > 0 {
            actions.extend((0..=state.unreplicated.len()).map(WorldAction::Failover));
        }
    }

    fn next_state(&self, last: &WorldState, action: WorldAction) -> Option<WorldState> {
        let mut state = last.clone();
        state.outcome.event = None;
        match action {
            WorldAction::Call(client, which) => {
                self.call(&mut state, client, &self.clients[client][which])?;
            }
            WorldAction::Pass(us) => {
                state.time_passes -= 1;
                state.real_us += us;
                self.pass(&mut state, us);
            }
            WorldAction::Forward(us) => {
                state.steps_forward -= 1;
                state.outcome.event = Some(Event::Forward);
                self.pass(&mut state, us);
            }
            WorldAction::Back(us) => {
                state.steps_back -= 1;
                state.outcome.event = Some(Event::Back);
                self.step_back(&mut state, us);
            }
            WorldAction::Sync => state.unreplicated.clear(),
            WorldAction::Failover(lost) => {
                state.failovers -= 1;
                state.outcome.event = Some(Event::Failover);
                self.fail_over(&mut state, lost);
            }
        }
        for (at, key) in self.keys.iter().enumerate() {
            state.books[at].forget(key, state.forward_us);
            self.check_held(&mut state, at);
            self.check_clear(&mut state, at);
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<World>> {
        let mut properties = outcome::properties(&self.must_happen);
        properties.extend([
            Property::always(
                "no wait is longer than it may be, and then all is free",
                World::heals,
            ),
            Property::always(
                "remaining can be had, and one more cannot",
                World::remaining_is_right,
            ),
        ]);
        properties
    }
}

impl World {
    /// Makes a client's call. Returns `None` if it is an error, which changes nothing.
    fn call(&self, state: &mut WorldState, client: usize, call: &ClientCall) -> Option<()> {
        state.calls[client] -= 1;
        let (saved, books) = (state.saved.clone(), state.books.clone());
        match call {
            ClientCall::Take(at, request) => self.take(state, client, *at, request)?,
            ClientCall::All(clauses) => self.all(state, client, clauses)?,
            ClientCall::Spend(at) => self.spend(state, client, *at)?,
            ClientCall::Apply(at, _)
            | ClientCall::Release(at)
            | ClientCall::Renew(at, _)
            | ClientCall::ApplySpent(at) => self.settle(state, client, *at, call)?,
        }
        if self.mistake == Some(Mistake::EarlyExpiry) {
            for (new, old) in state.saved.iter_mut().zip(&saved) {
                if let Some(new) = new.as_mut().filter(|new| Some(&**new) != old.as_ref()) {
                    new.expires_at_ms = new.expires_at_ms.saturating_sub(1_000);
                }
            }
        }
        if self.failovers.0 > 0 && state.saved != saved {
            state.unreplicated.push((saved, books));
            if state.unreplicated.len() > self.failovers.1 {
                state.unreplicated.remove(0);
            }
        }
        Some(())
    }

    /// Lets the replica take over without the last `lost` effects.
    fn fail_over(&self, state: &mut WorldState, lost: usize) {
        let lacked = std::mem::take(&mut state.unreplicated);
        let at = lacked.len() - lost;
        if let Some(last) = lacked.get(at) {
            (state.saved, state.books) = last.clone();
        }
        if self.mistake == Some(Mistake::FailoverLosesMore) && at > 0 {
            state.saved = lacked[at - 1].0.clone();
        }
    }

    fn pass(&self, state: &mut WorldState, us: u64) {
        let before_us = state.wall_us;
        state.wall_us += us;
        state.forward_us += us;
        self.new_windows(state, before_us);
    }

    /// Ends each window of the calendar whose end the clock has crossed, in either direction.
    fn new_windows(&self, state: &mut WorldState, before_us: u64) {
        let (now_us, keys) = (state.wall_us, &self.keys);
        let lacked = state.unreplicated.iter_mut().map(|(_, books)| books);
        for books in lacked.chain([&mut state.books]) {
            for (books, key) in books.iter_mut().zip(keys) {
                if key.kind == BookKind::Fixed
                    && before_us / key.period_us != now_us / key.period_us
                {
                    books.grants.clear();
                }
            }
        }
    }

    fn step_back(&self, state: &mut WorldState, us: u64) {
        let before_us = state.wall_us;
        state.wall_us -= us;
        self.new_windows(state, before_us);
        let keys = &self.keys;
        let lacked = state.unreplicated.iter_mut().map(|(_, books)| books);
        for books in lacked.chain([&mut state.books]) {
            for (books, key) in books.iter_mut().zip(keys) {
                for lease in &mut books.leases {
                    // Until a call sees that, it lasts as long as the clock says.
                    lease.over_at_us += us;
                    // The window of the calendar in which its lease ends may be an earlier one now.
                    if key.kind == BookKind::Fixed && lease.after_us > 0 {
                        lease.held_until_us -= lease.after_us;
                        lease.after_us = 1;
                        lease.held_until_us += 1;
                    }
                }
            }
        }
    }

    /// Compares the reservations of the key with the books.
    fn check_held(&self, state: &mut WorldState, at: usize) {
        let key = self.keys[at];
        if matches!(key.kind, BookKind::Bucket(_)) {
            return;
        }
        let held = probe(&state.saved, at, |memory| memory.held(NAMES[at], state.wall_us));
        let Ok(held) = held else { return state.outcome.check(false, Claim::Readable) };
        let (mut freed, mut beyond) = (false, false);
        let (real_us, forward_us) = (state.real_us, state.forward_us);
        let stored: Vec<Vec<u8>> = match state.saved[at].as_ref().map(|saved| &saved.value) {
            Some(SavedValue::Window { reserved, .. }) => reserved.clone(),
            _ => Vec::new(),
        };
        for one in &held {
            let lease = state.books[at]
                .leases
                .iter()
                .find(|lease| id_of(lease.client).as_bytes() == one.id.as_bytes());
            beyond |= match lease {
                None => true,
                Some(lease) => {
                    // In a window of the calendar this is at most the whole window.
                    let after_us = if lease.after_us > 0 { key.period_us } else { 0 };
                    real_us >= lease.over_at_us + after_us
                        || one.left_us > lease.length_us
                        || (one.left_us > 0 && real_us >= lease.over_at_us)
                        || one.quantity != lease.quantity
                }
            };
        }
        state.books[at].leases.retain(|lease| {
            let id = id_of(lease.client);
            let is_held = held.iter().any(|one| one.id.as_bytes() == id.as_bytes());
            freed |= !is_held && forward_us < lease.held_until_us;
            let mark = [b"#01:", id.as_bytes(), b":"].concat();
            is_held || stored.iter().any(|member| member.starts_with(&mark))
        });
        state.outcome.check(!freed, Claim::HeldLongEnough);
        state.outcome.check(!beyond, Claim::HeldNoLonger);
    }

    /// Notes that a past ban may be followed by another once the key is clear.
    fn check_clear(&self, state: &mut WorldState, at: usize) {
        let Some(banned) = state.books[at].banned else { return };
        if banned.may_again || state.forward_us < banned.until_us {
            return;
        }
        let key = &self.keys[at];
        let look = looking(&Request::new(key.limit));
        let looked = probe(&state.saved, at, |memory| memory.look(NAMES[at], &look, state.wall_us));
        if looked.is_ok_and(|looked| looked.reset_after_us == 0) {
            state.books[at].banned = Some(BanBook { may_again: true, ..banned });
        }
    }

    /// Checks that the whole limit is granted after the returned wait, and that the wait is no longer than allowed.
    fn heals(&self, state: &WorldState) -> bool {
        self.keys.iter().enumerate().all(|(at, key)| {
            if key.kind == BookKind::Semaphore {
                return true;
            }
            let whole = taking(key, key.max);
            probe(&state.saved, at, |memory| {
                let ask = |now_us| memory.decide(NAMES[at], &whole, now_us, || id_of(25));
                let Ok(decision) = ask(state.wall_us) else { return false };
                match decision.verdict {
                    Verdict::Allowed { .. } => true,
                    Verdict::Never => false,
                    Verdict::Denied { wait_us, .. } => {
                        wait_us <= key.longest_wait_us
                            && ask(state.wall_us + wait_us).is_ok_and(|decision| decision.allowed())
                    }
                }
            })
        })
    }

    /// Checks that the reported remainder can be taken, and not one more.
    fn remaining_is_right(&self, state: &WorldState) -> bool {
        self.keys.iter().enumerate().all(|(at, key)| {
            if key.kind == BookKind::Semaphore {
                return true;
            }
            let look = looking(&Request::new(key.limit));
            let Ok(looked) =
                probe(&state.saved, at, |memory| memory.look(NAMES[at], &look, state.wall_us))
            else {
                return false;
            };
            let can = |quantity| {
                let decision = decide(&state.saved, at, &taking(key, quantity), state.wall_us);
                decision.is_some_and(|decision| decision.verdict.allowed())
            };
            (looked.remaining == 0 || can(looked.remaining)) && !can(looked.remaining + 1)
        })
    }
}
