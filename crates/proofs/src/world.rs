//! A small world of keys: a few clients, each with a few calls to choose from, a clock that moves on and steps, and a
//! replica that takes over. Every order of all that is searched.
//!
//! ```text
//! State = the keys as a server keeps them + three clocks + what is left to happen + the books
//! ```
//!
//! The engine itself decides: each transition puts the stored values into a [`Memory`], makes the call there and takes the
//! values out again. The books know nothing of the engine's state. They note what was granted and when, and what must
//! hold is judged by them:
//!
//! - `wall_us` is the server's clock, which steps back and forward.
//! - `real_us` never steps. Nothing is held for longer by it than one lease from the first call after the last step back.
//! - `forward_us` is real time and all steps forward. What was granted at one moment of it counts at least until one
//!   period of it has passed: a step forward ends windows early, and a step back makes them longer at most.

use crate::mistake::{FaultyStore, Mistake};
use crate::outcome::{self, Claim, Event, HasOutcome, Outcome};
use engine::ban::Ban;
use engine::memory::{Memory, Saved, SavedValue};
use engine::model;
use engine::reservation::Id;
use engine::settle::{self, SettleOutcome};
use engine::store::Store;
use engine::{
    combine, judge, Ask, Decision, Limit, Manner, Mode, Part, PartOutcome, Place, Quantity,
    Refusal, Request, Verdict,
};
use stateright::{Model, Property};
use std::cmp::Reverse;

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

/// A key, and what must hold of it.
#[derive(Clone, Copy, Debug)]
pub struct WorldKey {
    /// The kind of its books.
    pub kind: BookKind,
    /// The limit, without a reservation.
    pub limit: Limit,
    /// The most that may be used at once.
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
    /// CHECK.
    pub check: bool,
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
    /// RL.APPLY of what was spent of it.
    ApplySpent(usize),
    /// RL.ALL.
    All(Vec<WorldClause>),
}

/// The world: what is there, and what may happen.
#[derive(Clone, Debug)]
pub struct World {
    /// Its name.
    pub name: &'static str,
    /// Its keys.
    pub keys: Vec<WorldKey>,
    /// What each client may do.
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

/// What happens next.
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

/// A quantity that was granted, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Grant {
    forward_us: u64,
    units: u64,
}

/// What a client was granted for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct BookedLease {
    client: usize,
    quantity: u64,
    length_us: u64,
    /// The time until which it holds at least, by `forward_us`.
    held_until_us: u64,
    /// The time after its lease for which it holds (COUNTLAPSED).
    after_us: u64,
    /// The latest end of its lease, by `real_us`.
    over_at_us: u64,
    /// The time from which its holder spends nothing, by `real_us`.
    spend_until_us: u64,
    spent: u64,
}

/// The ban of a key as the books know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct BanBook {
    /// The time until which nothing is taken, by `forward_us`.
    until_us: u64,
    /// Something was granted since, or the key was clear after it.
    may_again: bool,
}

/// The books of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Books {
    grants: Vec<Grant>,
    /// When the window was opened by its first event, and what was granted in it.
    opened: Option<(u64, u64)>,
    /// Of a bucket: when it is full, in microseconds by `forward_us` times the rate's count.
    full_at: u64,
    leases: Vec<BookedLease>,
    banned: Option<BanBook>,
    /// What holders have spent, by themselves or by taking.
    spent: Vec<Grant>,
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
    outcome: Outcome,
}

fn id_of(client: usize) -> Id {
    Id::from(&[b'a' + client as u8][..])
}

fn with_id(request: &Request, client: usize) -> Request {
    let mut request = *request;
    if let Limit::Reserve(_, reserve) = &mut request.limit {
        reserve.id = Some(id_of(client));
    }
    request
}

/// Returns the request that looks at the key.
fn looking(request: &Request) -> Request {
    let ask = Ask { quantity: Quantity::Look, leave: 0, manner: Manner::Whole };
    Request { ask, ..*request }
}

/// Returns the request that takes this quantity at once.
fn taking(key: &WorldKey, quantity: u64) -> Request {
    let mut request = Request::new(key.limit);
    request.ask.quantity = Quantity::Take(quantity);
    request
}

fn load(memory: &Memory, saved: &[Option<Saved>]) {
    for (name, saved) in NAMES.iter().zip(saved) {
        memory.delete(name);
        if let Some(saved) = saved {
            memory.restore(name, saved).expect("what was saved is sound");
        }
    }
}

fn unload(memory: &Memory, saved: &mut [Option<Saved>]) {
    for (name, saved) in NAMES.iter().zip(saved) {
        *saved = memory.save(name);
    }
}

/// Runs the engine on a copy of these keys and throws the copy away.
fn probe_all<T>(saved: &[Option<Saved>], body: impl FnOnce(&Memory) -> T) -> T {
    MEMORY.with(|memory| {
        load(memory, saved);
        body(memory)
    })
}

/// Runs the engine on a copy of one of these keys and throws the copy away.
fn probe<T>(saved: &[Option<Saved>], key: usize, body: impl FnOnce(&Memory) -> T) -> T {
    MEMORY.with(|memory| {
        memory.delete(NAMES[key]);
        if let Some(saved) = &saved[key] {
            memory.restore(NAMES[key], saved).expect("what was saved is sound");
        }
        body(memory)
    })
}

/// Makes a call on a copy of these keys.
fn decide(saved: &[Option<Saved>], key: usize, request: &Request, now_us: u64) -> Option<Decision> {
    probe(saved, key, |memory| memory.decide(NAMES[key], request, now_us, || id_of(25)).ok())
}

/// Returns the ban of a key, or the mark that a past ban left.
fn ban_of(saved: &Option<Saved>) -> Option<Ban> {
    match &saved.as_ref()?.value {
        SavedValue::Window { reserved, .. } => reserved.iter().find_map(|text| Ban::decode(text)),
        SavedValue::Bucket(text) => engine::throttle::Stored::decode(text)?.ban(),
    }
}

fn sum(grants: &[Grant], after_us: u64) -> u64 {
    grants.iter().filter(|grant| grant.forward_us > after_us).map(|grant| grant.units).sum()
}

impl Books {
    /// Returns the quantity that is certainly held.
    fn held(&self, forward_us: u64) -> u64 {
        let live = self.leases.iter().filter(|lease| lease.held_until_us > forward_us);
        live.map(|lease| lease.quantity).sum()
    }

    /// Notes a grant. Returns whether it was within the limit.
    fn grant(
        &mut self,
        key: &WorldKey,
        forward_us: u64,
        units: u64,
        go_after_us: u64,
        force: bool,
    ) -> bool {
        let held = self.held(forward_us);
        match key.kind {
            BookKind::Sliding | BookKind::Fixed => {
                self.grants.push(Grant { forward_us, units });
                let after_us = match key.kind {
                    BookKind::Sliding => forward_us.saturating_sub(key.period_us),
                    _ => 0,
                };
                force || sum(&self.grants, after_us) + held <= key.max
            }
            BookKind::First => {
                let (_, sum) = self.opened.get_or_insert((forward_us, 0));
                *sum += units;
                force || *sum + held <= key.max
            }
            BookKind::Bucket(count) => {
                self.full_at = self.full_at.max(forward_us * count) + units * key.period_us;
                let latest = (forward_us + go_after_us) * count + key.max * key.period_us;
                force || self.full_at <= latest
            }
            BookKind::Semaphore => true,
        }
    }

    /// Notes that a quantity was given back when the key counted `counted`. The oldest of it goes first.
    fn give_back(&mut self, key: &WorldKey, forward_us: u64, amount: u64, counted: u64) {
        match key.kind {
            BookKind::Sliding | BookKind::Fixed => {
                let known: u64 = self.grants.iter().map(|grant| grant.units).sum();
                // Some of what counts may be older than what the books still have, or the books older than what counts.
                let mut left = amount.min(counted).saturating_sub(counted.saturating_sub(known));
                let mut older = known.saturating_sub(counted);
                for grant in &mut self.grants {
                    let stays = older.min(grant.units);
                    older -= stays;
                    let goes = left.min(grant.units - stays);
                    grant.units -= goes;
                    left -= goes;
                }
                self.grants.retain(|grant| grant.units > 0);
            }
            BookKind::First => {
                if let Some((_, sum)) = &mut self.opened {
                    *sum = sum.saturating_sub(amount);
                }
            }
            BookKind::Bucket(count) => {
                let full = forward_us * count;
                let full_at = self.full_at.saturating_sub(amount * key.period_us);
                self.full_at = full_at.max(full);
            }
            BookKind::Semaphore => {}
        }
    }

    /// Notes that a call has seen the key. Every lease ends at most one lease from now.
    fn heal(&mut self, real_us: u64) {
        for lease in &mut self.leases {
            lease.over_at_us = lease.over_at_us.min(real_us + lease.length_us);
        }
    }

    /// Forgets what does not matter any more.
    fn forget(&mut self, key: &WorldKey, forward_us: u64) {
        let after_us = forward_us.saturating_sub(key.period_us);
        if key.kind == BookKind::Sliding {
            self.grants.retain(|grant| grant.forward_us > after_us);
        }
        self.spent.retain(|grant| grant.forward_us > after_us);
        if let BookKind::Bucket(count) = key.kind {
            // All times at which a bucket is full are equivalent.
            if self.full_at <= forward_us * count {
                self.full_at = 0;
            }
        }
    }
}

impl World {
    /// The server's clock as one client's calls see it.
    fn now_us(&self, state: &WorldState, client: usize) -> u64 {
        let ahead = self.mistake == Some(Mistake::ClientsClock) && client == 2;
        state.wall_us + if ahead { 600_000 } else { 0 }
    }

    fn store<'m>(
        &self,
        memory: &'m Memory,
        key: usize,
        client: usize,
        now_us: u64,
    ) -> impl Store<Error = Refusal> + 'm {
        FaultyStore { inner: memory.key(NAMES[key], now_us), mistake: self.mistake, client }
    }

    /// Makes the call in the world. `None` if it is an error, which changes nothing.
    fn take(
        &self,
        state: &mut WorldState,
        client: usize,
        at: usize,
        request: &Request,
    ) -> Option<()> {
        let (key, now_us) = (self.keys[at], self.now_us(state, client));
        let request = with_id(request, client);
        let (looked, before) = probe(&state.saved, at, |memory| {
            let looked = memory.look(NAMES[at], &request, now_us);
            (looked, memory.look(NAMES[at], &looking(&request), now_us))
        });
        let looked = looked.ok()?;
        let before = before.ok()?;
        let ban_before = ban_of(&state.saved[at]);
        let mut asked = request;
        if let (Some(Mistake::GenerousRefund), Quantity::GiveBack(n)) =
            (self.mistake, asked.ask.quantity)
        {
            asked.ask.quantity = Quantity::GiveBack(n + 1);
        }
        let decision = MEMORY.with(|memory| {
            load(memory, &state.saved);
            let store = self.store(memory, at, client, now_us);
            let heals = looked.allowed() || self.mistake != Some(Mistake::NoHealing);
            let mode = if heals { Mode::Final } else { Mode::Look };
            let decision = model::decide(store, &asked, false, mode, || id_of(client)).ok()?;
            unload(memory, &mut state.saved);
            Some(decision)
        })?;
        let verdict = decision.verdict;
        if !request.count_denied && request.ban_ms.is_none() {
            let same = looked.verdict == verdict || request.ask.quantity == Quantity::Look;
            state.outcome.check(same, Claim::SameReply);
        }
        self.note_ban(state, at, &key, &request, ban_before, &before, verdict);
        if request.ask.quantity.takes() && verdict != Verdict::Never {
            state.books[at].heal(state.real_us);
        }
        match verdict {
            Verdict::Allowed { taken, go_after_us } => {
                self.note_grant(state, client, at, &request, taken, go_after_us, &before)
            }
            Verdict::Denied { wait_us, .. } => {
                if state.outcome.event != Some(Event::Banned) {
                    state.outcome.event = Some(Event::Denied);
                }
                self.check_wait(state, at, &request, now_us, wait_us);
            }
            Verdict::Never => {}
        }
        Some(())
    }

    /// Checks that the returned wait is the wait that is needed.
    fn check_wait(
        &self,
        state: &mut WorldState,
        at: usize,
        request: &Request,
        now_us: u64,
        wait_us: u64,
    ) {
        let then = |us: u64| decide(&state.saved, at, request, now_us + us);
        let after = then(wait_us).is_some_and(|decision| decision.verdict.allowed());
        let before = then(wait_us - 1).is_some_and(|decision| !decision.verdict.allowed());
        state.outcome.check(after && before, Claim::RetryAfter);
    }

    #[allow(clippy::too_many_arguments)]
    fn note_grant(
        &self,
        state: &mut WorldState,
        client: usize,
        at: usize,
        request: &Request,
        taken: u64,
        go_after_us: u64,
        before: &Decision,
    ) {
        let key = self.keys[at];
        let (real_us, forward_us) = (state.real_us, state.forward_us);
        let counted = key.max.saturating_sub(before.remaining);
        let force = request.ask.manner == Manner::Force;
        let books = &mut state.books[at];
        if let Quantity::GiveBack(amount) = request.ask.quantity {
            books.give_back(&key, forward_us, amount, counted);
            return;
        }
        if taken == 0 {
            return;
        }
        if let Some(banned) = books.banned.as_mut().filter(|_| !force) {
            let is_over = forward_us + go_after_us >= banned.until_us;
            state.outcome.check(is_over, Claim::Banned);
            banned.may_again = true;
        }
        match &request.limit {
            Limit::Reserve(_, reserve) => {
                let length_us = reserve.lease_ms * 1_000;
                let after_us = match reserve.count_lapsed {
                    true => self.after_us(&key, state.wall_us + length_us),
                    false => 0,
                };
                let books = &mut state.books[at];
                books.leases.retain(|lease| lease.client != client);
                let held_until_us = forward_us + length_us + after_us;
                let over_at_us = real_us + length_us;
                books.leases.push(BookedLease {
                    client,
                    quantity: taken,
                    length_us,
                    held_until_us,
                    after_us,
                    over_at_us,
                    spend_until_us: over_at_us,
                    spent: 0,
                });
                let counted = match key.kind {
                    BookKind::Sliding => {
                        sum(&books.grants, forward_us.saturating_sub(key.period_us))
                    }
                    BookKind::Fixed => sum(&books.grants, 0),
                    BookKind::First => books.opened.map_or(0, |(_, sum)| sum),
                    BookKind::Bucket(_) | BookKind::Semaphore => 0,
                };
                let used = counted + books.held(forward_us);
                state.outcome.check(used <= key.max, Claim::Limit);
            }
            Limit::Rate(_) | Limit::Window(_) => {
                if key.kind == BookKind::First && before.remaining == key.max {
                    // A window is opened: the one before was over, or everything was given back.
                    let soon = books.opened.is_some_and(|(opened_us, sum)| {
                        sum > 0 && forward_us < opened_us + key.period_us
                    });
                    state.outcome.check(!soon, Claim::FirstWindow);
                    books.opened = None;
                }
                let is_within = books.grant(&key, forward_us, taken, go_after_us, force);
                state.outcome.check(is_within, Claim::Limit);
                books.spent.push(Grant { forward_us, units: taken });
                let after_us = forward_us.saturating_sub(key.period_us);
                let spent = sum(&books.spent, after_us);
                state.outcome.check(!self.spends() || spent <= key.max, Claim::Spent);
            }
        }
    }

    /// Returns whether holders spend without calls.
    fn spends(&self) -> bool {
        self.clients.iter().flatten().any(|act| matches!(act, ClientCall::Spend(_)))
    }

    /// Returns the time for which a reservation with COUNTLAPSED holds after the end of its lease.
    fn after_us(&self, key: &WorldKey, end_us: u64) -> u64 {
        match key.kind {
            BookKind::Fixed => key.period_us - end_us % key.period_us,
            _ => key.period_us,
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn note_ban(
        &self,
        state: &mut WorldState,
        at: usize,
        key: &WorldKey,
        request: &Request,
        old: Option<Ban>,
        before: &Decision,
        verdict: Verdict,
    ) {
        let new = ban_of(&state.saved[at]);
        let began = match (old, new) {
            (None, Some(_)) => true,
            (Some(old), Some(new)) => new.end_ms() > old.end_ms(),
            (_, None) => false,
        };
        if !began {
            return;
        }
        state.outcome.event = Some(Event::Banned);
        let is_clear = before.remaining == key.max && before.reset_after_us == 0;
        let may = state.books[at].banned.is_none_or(|banned| banned.may_again || is_clear);
        let denied = matches!(verdict, Verdict::Denied { .. }) && request.ban_ms.is_some();
        state.outcome.check(may && denied, Claim::BannedOnce);
        let length_us = request.ban_ms.unwrap_or(0) * 1_000;
        let until_us = state.forward_us + length_us;
        state.books[at].banned = Some(BanBook { until_us, may_again: false });
    }

    fn settle(
        &self,
        state: &mut WorldState,
        client: usize,
        at: usize,
        act: &ClientCall,
    ) -> Option<()> {
        let key = self.keys[at];
        let lease = state.books[at].leases.iter().find(|lease| lease.client == client).copied()?;
        let (id, now_us) = (id_of(client), state.wall_us);
        let (real_us, forward_us) = (state.real_us, state.forward_us);
        let (done, counted) = MEMORY.with(|memory| {
            load(memory, &state.saved);
            let done = match act {
                ClientCall::Apply(_, quantity) => {
                    let store = self.store(memory, at, client, now_us);
                    let (applied, _) = settle::apply(store, &id, *quantity, 4096).ok()?;
                    let units = quantity.unwrap_or(lease.quantity);
                    (
                        applied != SettleOutcome::NotHeld,
                        (applied == SettleOutcome::Counted).then_some(units),
                    )
                }
                ClientCall::ApplySpent(_) => {
                    let store = self.store(memory, at, client, now_us);
                    let (applied, _) = settle::apply(store, &id, Some(lease.spent), 4096).ok()?;
                    (applied != SettleOutcome::NotHeld, None)
                }
                ClientCall::Release(_) => {
                    let store = self.store(memory, at, client, now_us);
                    (settle::release(store, &[id.as_bytes()]).ok()?.0 > 0, None)
                }
                ClientCall::Renew(_, lease_ms) => {
                    let store = self.store(memory, at, client, now_us);
                    (settle::renew(store, &id, *lease_ms).ok()?, None)
                }
                _ => return None,
            };
            unload(memory, &mut state.saved);
            Some(done)
        })?;
        if !done {
            // It is no longer held, or its lease cannot be renewed.
            state.outcome.event = Some(Event::Lapsed);
            let certain = match act {
                ClientCall::Renew(..) => forward_us + lease.after_us < lease.held_until_us,
                _ => forward_us < lease.held_until_us,
            };
            state.outcome.check(!certain, Claim::HeldLongEnough);
            return Some(());
        }
        if let ClientCall::Renew(_, lease_ms) = act {
            let length_us = lease_ms.map_or(lease.length_us, |ms| ms * 1_000);
            let after_us = match lease.after_us {
                0 => 0,
                _ => self.after_us(&key, state.wall_us + length_us),
            };
            let renewed = BookedLease {
                length_us,
                after_us,
                held_until_us: forward_us + length_us + after_us,
                over_at_us: real_us + length_us,
                spend_until_us: real_us + length_us,
                ..lease
            };
            for other in &mut state.books[at].leases {
                if other.client == client {
                    *other = renewed;
                }
            }
            state.outcome.event = Some(Event::Renewed);
            return Some(());
        }
        let books = &mut state.books[at];
        books.leases.retain(|lease| lease.client != client);
        state.outcome.event = Some(Event::Settled);
        if let Some(units) = counted {
            if key.kind == BookKind::First
                && books.opened.is_some_and(|(us, _)| forward_us >= us + key.period_us)
            {
                books.opened = None;
            }
            books.grant(&key, forward_us, units, 0, true);
        }
        Some(())
    }

    /// Lets a holder spend a unit of its reservation while its own clock says that the lease runs.
    fn spend(&self, state: &mut WorldState, client: usize, at: usize) -> Option<()> {
        let (real_us, forward_us, key) = (state.real_us, state.forward_us, self.keys[at]);
        let books = &mut state.books[at];
        let lease = books.leases.iter_mut().find(|lease| lease.client == client)?;
        if real_us >= lease.spend_until_us || lease.spent >= lease.quantity {
            return None;
        }
        lease.spent += 1;
        books.spent.push(Grant { forward_us, units: 1 });
        let spent = sum(&books.spent, forward_us.saturating_sub(key.period_us));
        state.outcome.check(spent <= key.max, Claim::Spent);
        Some(())
    }

    /// Makes a call of RL.ALL.
    fn all(&self, state: &mut WorldState, client: usize, clauses: &[WorldClause]) -> Option<()> {
        let now_us = self.now_us(state, client);
        let before = state.saved.clone();
        let looks: Vec<_> = clauses
            .iter()
            .map(|clause| {
                let request = with_id(&clause.request, client);
                probe(&before, clause.key, |memory| {
                    memory.look(NAMES[clause.key], &request, now_us)
                })
                .ok()
            })
            .collect::<Option<_>>()?;
        let requests: Vec<_> = clauses.iter().map(|one| with_id(&one.request, client)).collect();
        let made = MEMORY.with(|memory| {
            load(memory, &state.saved);
            let made = decide_all(self.mistake, clauses, &requests, |at| {
                self.store(memory, at, client, now_us)
            });
            unload(memory, &mut state.saved);
            made
        });
        let Ok((allowed, outcomes)) = made else {
            state.saved = before;
            return None;
        };
        // The verdict follows from the decisions of the single limits.
        let mut chosen: Vec<usize> = Vec::new();
        let groups: Vec<usize> = clauses.iter().map(|clause| clause.group).collect();
        for group in 0..=groups.last().copied().unwrap_or(0) {
            let of_group = (0..clauses.len()).filter(|at| groups[*at] == group);
            let can = |at: &usize| clauses[*at].request.shadow || looks[*at].verdict.allowed();
            chosen.extend(of_group.into_iter().find(can));
        }
        let should = chosen.len() == groups.last().map_or(0, |last| last + 1);
        let mut right = allowed == should;
        for (at, clause) in clauses.iter().enumerate() {
            let takes =
                should && chosen.contains(&at) && !clause.check && looks[at].verdict.taken() > 0;
            // A key that has expired is dropped by the next call that looks at it.
            let is_live = |saved: &&Saved| saved.expires_at_ms >= now_us / 1_000;
            let moved = state.saved[clause.key].as_ref().filter(is_live)
                != before[clause.key].as_ref().filter(is_live);
            right &= moved == takes;
            if takes {
                let taken = looks[at].verdict.taken();
                let key = self.keys[clause.key];
                let look = looking(&requests[at]);
                let then = probe(&before, clause.key, |memory| {
                    memory.look(NAMES[clause.key], &look, now_us)
                });
                let then = then.unwrap_or(looks[at]);
                right &= key.kind == BookKind::Semaphore || then.remaining >= taken;
                self.note_grant(state, client, clause.key, &requests[at], taken, 0, &then);
            }
        }
        state.outcome.check(right, Claim::AllOrNothing);
        if allowed {
            if chosen.iter().any(|at| *at > 0 && groups[*at] == groups[*at - 1]) {
                state.outcome.event = Some(Event::Else);
            }
            return Some(());
        }
        state.outcome.event = Some(Event::Denied);
        if let Some(wait_us) = combine(&outcomes).and_then(|call| call.verdict.retry_after_us()) {
            let then = |us: u64| {
                probe_all(&state.saved, |memory| {
                    decide_all(None, clauses, &requests, |at| memory.key(NAMES[at], now_us + us))
                        .is_ok_and(|(allowed, _)| allowed)
                })
            };
            let right = then(wait_us) && !then(wait_us - 1);
            state.outcome.check(right, Claim::RetryAfter);
        }
        Some(())
    }
}

/// Makes a call of RL.ALL on a store, with a mistake or without. Returns whether it is allowed, and each decision.
fn decide_all<'r, S: Store<Error = Refusal>>(
    mistake: Option<Mistake>,
    clauses: &[WorldClause],
    requests: &'r [Request],
    store: impl Fn(usize) -> S,
) -> Result<(bool, Vec<PartOutcome<'r>>), Refusal> {
    let part = |at: usize| {
        let WorldClause { key, check, group, .. } = clauses[at];
        let place = Place { group, check };
        Part::new(store(key), &requests[at], place, false)
    };
    let mut order: Vec<_> = (0..clauses.len()).collect();
    if mistake == Some(Mistake::LastChoice) {
        order.sort_by_key(|at| (clauses[*at].group, Reverse(*at)));
    }
    let mut parts: Vec<_> = order.iter().map(|at| part(*at)).collect();
    let mut plan = judge(&mut parts, Mode::Final)?.plan(|| id_of(25))?;
    let outcomes: Vec<_> = plan.outcomes().collect();
    plan.write();
    let allowed = outcomes.iter().all(|one| one.group_allowed);
    drop(parts);
    for (at, one) in order.into_iter().zip(&outcomes).filter(|(_, one)| one.allowed) {
        let takes_by_mistake = match mistake {
            Some(Mistake::AllOfGroupTake) => allowed && !one.is_choice,
            Some(Mistake::NotAtomic) => !allowed,
            _ => false,
        };
        if takes_by_mistake {
            let mut alone = [part(at)];
            judge(&mut alone, Mode::Final)?.plan(|| id_of(25))?.write();
        }
    }
    Ok((allowed, outcomes))
}

impl HasOutcome for WorldState {
    fn outcome(&self) -> Outcome {
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
            outcome: Outcome::default(),
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
            WorldAction::Call(client, act) => {
                state.calls[client] -= 1;
                let act = &self.clients[client][act];
                match act {
                    ClientCall::Take(at, request) => self.take(&mut state, client, *at, request)?,
                    ClientCall::All(clauses) => self.all(&mut state, client, clauses)?,
                    ClientCall::Spend(at) => self.spend(&mut state, client, *at)?,
                    ClientCall::Apply(at, _)
                    | ClientCall::Release(at)
                    | ClientCall::Renew(at, _)
                    | ClientCall::ApplySpent(at) => self.settle(&mut state, client, *at, act)?,
                }
                if self.mistake == Some(Mistake::EarlyExpiry) {
                    for (new, old) in state.saved.iter_mut().zip(&last.saved) {
                        if let Some(new) = new.as_mut().filter(|new| Some(&**new) != old.as_ref()) {
                            new.expires_at_ms = new.expires_at_ms.saturating_sub(1_000);
                        }
                    }
                }
                if self.failovers.0 > 0 && state.saved != last.saved {
                    state.unreplicated.push((last.saved.clone(), last.books.clone()));
                    if state.unreplicated.len() > self.failovers.1 {
                        state.unreplicated.remove(0);
                    }
                }
            }
            WorldAction::Pass(us) => {
                state.time_passes -= 1;
                state.real_us += us;
                self.pass(&mut state, us, us);
            }
            WorldAction::Forward(us) => {
                state.steps_forward -= 1;
                state.outcome.event = Some(Event::Forward);
                self.pass(&mut state, us, us);
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
                let at = state.unreplicated.len() - lost;
                if let Some((saved, books)) = state.unreplicated.get(at).cloned() {
                    (state.saved, state.books) = (saved, books);
                }
                if self.mistake == Some(Mistake::FailoverLosesMore) && at > 0 {
                    state.saved = state.unreplicated[at - 1].0.clone();
                }
                state.unreplicated.clear();
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
    fn pass(&self, state: &mut WorldState, us: u64, forward_us: u64) {
        let before_us = state.wall_us;
        state.wall_us += us;
        state.forward_us += forward_us;
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

    /// Compares what the key holds with the books.
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
            let request = taking(key, key.max);
            let whole = match key.kind {
                BookKind::Semaphore => return true,
                _ => request,
            };
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
