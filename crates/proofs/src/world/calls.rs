//! The calls of a world: each runs the engine, and notes the result in the books.

use super::books::{BanBook, BookedLease};
use super::{
    decide, id_of, load, looking, probe, unload, BookKind, ClientCall, World, WorldClause,
    WorldKey, WorldState, MEMORY, NAMES,
};
use crate::mistake::{FaultyStore, Mistake};
use crate::outcome::{Claim, Event};
use engine::ban::Ban;
use engine::memory::{Memory, Saved, SavedValue};
use engine::model;
use engine::settle::Settling;
use engine::store::Store;
use engine::{
    combine, read, Decision, Limit, Manner, Mode, Part, PartDecision, Quantity, Refusal, Request,
    Standing, Verdict,
};
use std::cmp::Reverse;

fn with_id(request: &Request, client: usize) -> Request {
    let mut request = *request;
    if let Limit::Reserve(_, reserve) = &mut request.limit {
        reserve.id = Some(id_of(client));
    }
    request
}

/// A call that takes from a key or gives back to it, and the decision on a look at the key before.
#[derive(Clone, Copy)]
struct TakeCall<'r> {
    client: usize,
    at: usize,
    request: &'r Request,
    before: Decision,
}

/// Returns the ban of a key, or the mark that a past ban left.
fn ban_of(saved: &Option<Saved>) -> Option<Ban> {
    match &saved.as_ref()?.value {
        SavedValue::Window { reserved, .. } => reserved.iter().find_map(|text| Ban::decode(text)),
        SavedValue::Bucket(text) => engine::throttle::StoredBucket::decode(text)?.ban(),
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

    /// Makes a call of RL.THROTTLE, RL.WINDOW or RL.ACQUIRE. Returns `None` if it is an error, which changes nothing.
    pub(super) fn take(
        &self,
        state: &mut WorldState,
        client: usize,
        at: usize,
        request: &Request,
    ) -> Option<()> {
        let now_us = self.now_us(state, client);
        let request = with_id(request, client);
        let (looked, before) = probe(&state.saved, at, |memory| {
            let looked = memory.look(NAMES[at], &request, now_us);
            (looked, memory.look(NAMES[at], &looking(&request), now_us))
        });
        let looked = looked.ok()?;
        let call = TakeCall { client, at, request: &request, before: before.ok()? };
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
        self.note_ban(state, &call, ban_before, verdict);
        if request.ask.quantity.takes() && verdict != Verdict::Never {
            state.books[at].heal(state.real_us);
        }
        match verdict {
            Verdict::Allowed { taken, go_after_us } => {
                self.note_grant(state, &call, taken, go_after_us)
            }
            Verdict::Denied { wait_us, .. } => {
                state.outcome.event.get_or_insert(Event::Denied);
                let then = |us: u64| decide(&state.saved, at, &request, now_us + us);
                let after = then(wait_us).is_some_and(|decision| decision.verdict.allowed());
                let before = then(wait_us - 1).is_some_and(|decision| !decision.verdict.allowed());
                state.outcome.check(after && before, Claim::RetryAfter);
            }
            Verdict::Never => {}
        }
        Some(())
    }

    /// Notes in the books what was granted or given back.
    fn note_grant(&self, state: &mut WorldState, call: &TakeCall, taken: u64, go_after_us: u64) {
        let TakeCall { client, at, request, before } = *call;
        let (key, forward_us) = (&self.keys[at], state.forward_us);
        let books = &mut state.books[at];
        if let Quantity::GiveBack(amount) = request.ask.quantity {
            let counted = key.max.saturating_sub(before.remaining);
            return books.give_back(key, forward_us, amount, counted);
        }
        if taken == 0 {
            return;
        }
        let force = request.ask.manner == Manner::Force;
        if let Some(banned) = books.banned.as_mut().filter(|_| !force) {
            let is_over = forward_us + go_after_us >= banned.until_us;
            state.outcome.check(is_over, Claim::Banned);
            banned.may_again = true;
        }
        if let Limit::Reserve(_, reserve) = &request.limit {
            let length_us = reserve.lease_ms * 1_000;
            let lease = self.lease(state, (client, at), taken, length_us, reserve.count_lapsed);
            let books = &mut state.books[at];
            books.leases.retain(|lease| lease.client != client);
            books.leases.push(lease);
            let used = books.counted(key, forward_us) + books.held(forward_us);
            return state.outcome.check(used <= key.max, Claim::Limit);
        }
        if key.kind == BookKind::First && before.remaining == key.max {
            // A window is opened: the one before was over, or everything was given back.
            let soon = books
                .opened
                .is_some_and(|(opened_us, sum)| sum > 0 && forward_us < opened_us + key.period_us);
            state.outcome.check(!soon, Claim::FirstWindow);
            books.opened = None;
        }
        let is_within = books.grant(key, forward_us, taken, go_after_us, force);
        state.outcome.check(is_within, Claim::Limit);
        let spent = books.spend(key, forward_us, taken);
        state.outcome.check(!self.spends() || spent <= key.max, Claim::Spent);
    }

    /// Returns whether holders spend without calls.
    fn spends(&self) -> bool {
        self.clients.iter().flatten().any(|act| matches!(act, ClientCall::Spend(_)))
    }

    /// Returns a lease that begins now. With `count_lapsed`, it holds until its event would have left the window.
    fn lease(
        &self,
        state: &WorldState,
        (client, at): (usize, usize),
        quantity: u64,
        length_us: u64,
        count_lapsed: bool,
    ) -> BookedLease {
        let WorldKey { kind, period_us, .. } = self.keys[at];
        let after_us = match kind {
            _ if !count_lapsed => 0,
            BookKind::Fixed => period_us - (state.wall_us + length_us) % period_us,
            _ => period_us,
        };
        BookedLease {
            client,
            quantity,
            length_us,
            held_until_us: state.forward_us + length_us + after_us,
            after_us,
            over_at_us: state.real_us + length_us,
            spend_until_us: state.real_us + length_us,
            spent: 0,
        }
    }

    /// Notes a ban that the call started.
    fn note_ban(
        &self,
        state: &mut WorldState,
        call: &TakeCall,
        old: Option<Ban>,
        verdict: Verdict,
    ) {
        let TakeCall { at, request, before, .. } = *call;
        let began = ban_of(&state.saved[at])
            .is_some_and(|new| old.is_none_or(|old| new.end_ms() > old.end_ms()));
        if !began {
            return;
        }
        state.outcome.event = Some(Event::Banned);
        let is_clear = before.remaining == self.keys[at].max && before.reset_after_us == 0;
        let may = state.books[at].banned.is_none_or(|banned| banned.may_again || is_clear);
        let denied = matches!(verdict, Verdict::Denied { .. }) && request.ban_ms.is_some();
        state.outcome.check(may && denied, Claim::BannedOnce);
        let until_us = state.forward_us + request.ban_ms.unwrap_or(0) * 1_000;
        state.books[at].banned = Some(BanBook { until_us, may_again: false });
    }

    /// Applies, releases or renews the client's reservation.
    pub(super) fn settle(
        &self,
        state: &mut WorldState,
        client: usize,
        at: usize,
        act: &ClientCall,
    ) -> Option<()> {
        let lease = *state.books[at].lease_mut(client)?;
        let (done, counted) = self.settle_in_engine(state, at, &lease, act)?;
        let (key, forward_us) = (&self.keys[at], state.forward_us);
        if !done {
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
            let count_lapsed = lease.after_us > 0;
            let renewed = self.lease(state, (client, at), lease.quantity, length_us, count_lapsed);
            let booked = state.books[at].lease_mut(client)?;
            *booked = BookedLease { spent: lease.spent, ..renewed };
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
            books.grant(key, forward_us, units, 0, true);
        }
        Some(())
    }

    /// Makes the engine's call. Returns whether it found the reservation, and the quantity that it counted.
    fn settle_in_engine(
        &self,
        state: &mut WorldState,
        at: usize,
        lease: &BookedLease,
        act: &ClientCall,
    ) -> Option<(bool, Option<u64>)> {
        MEMORY.with(|memory| {
            load(memory, &state.saved);
            let store = self.store(memory, at, lease.client, state.wall_us);
            let max_entries = 4096;
            let (settling, counted) = match act {
                ClientCall::Apply(_, quantity) => {
                    let units = quantity.unwrap_or(lease.quantity);
                    (Settling::Apply { quantity: *quantity, max_entries }, units)
                }
                ClientCall::ApplySpent(_) => {
                    (Settling::Apply { quantity: Some(lease.spent), max_entries }, 0)
                }
                ClientCall::Release(_) => (Settling::Release, 0),
                ClientCall::Renew(_, lease_ms) => (Settling::Renew { lease_ms: *lease_ms }, 0),
                _ => return None,
            };
            let done = model::settle(store, &id_of(lease.client), settling).ok()?;
            let counted = Some(counted).filter(|units| done && *units > 0);
            unload(memory, &mut state.saved);
            Some((done, counted))
        })
    }

    /// Lets a holder spend a unit of its reservation while its own clock says that the lease runs.
    pub(super) fn spend(&self, state: &mut WorldState, client: usize, at: usize) -> Option<()> {
        let (key, books) = (&self.keys[at], &mut state.books[at]);
        let lease = books.lease_mut(client)?;
        if state.real_us >= lease.spend_until_us || lease.spent >= lease.quantity {
            return None;
        }
        lease.spent += 1;
        let spent = books.spend(key, state.forward_us, 1);
        state.outcome.check(spent <= key.max, Claim::Spent);
        Some(())
    }

    /// Makes a call of RL.ALL.
    pub(super) fn all(
        &self,
        state: &mut WorldState,
        client: usize,
        clauses: &[WorldClause],
    ) -> Option<()> {
        let now_us = self.now_us(state, client);
        let before = state.saved.clone();
        let requests: Vec<_> = clauses.iter().map(|one| with_id(&one.request, client)).collect();
        let look = |at: usize, request: &Request| {
            let key = clauses[at].key;
            probe(&before, key, |memory| memory.look(NAMES[key], request, now_us)).ok()
        };
        let looks: Vec<_> =
            requests.iter().enumerate().map(|(at, one)| look(at, one)).collect::<Option<_>>()?;
        let made = MEMORY.with(|memory| {
            load(memory, &state.saved);
            let made = decide_all(self.mistake, clauses, &requests, |key| {
                self.store(memory, key, client, now_us)
            });
            unload(memory, &mut state.saved);
            made
        });
        let Ok((allowed, decisions)) = made else {
            state.saved = before;
            return None;
        };
        let chosen = first_choices(clauses, &looks);
        let should = chosen.len() == clauses.last().map_or(0, |last| last.group + 1);
        let mut right = allowed == should;
        for (at, clause) in clauses.iter().enumerate() {
            let taken = looks[at].verdict.taken();
            let takes = should && chosen.contains(&at) && !clause.request.check && taken > 0;
            // A key that has expired is dropped by the next call that looks at it.
            let is_live = |saved: &&Saved| saved.expires_at_ms >= now_us / 1_000;
            let changed = state.saved[clause.key].as_ref().filter(is_live)
                != before[clause.key].as_ref().filter(is_live);
            right &= changed == takes;
            if takes {
                let before = look(at, &looking(&requests[at])).unwrap_or(looks[at]);
                let is_semaphore = self.keys[clause.key].kind == BookKind::Semaphore;
                right &= is_semaphore || before.remaining >= taken;
                let call = TakeCall { client, at: clause.key, request: &requests[at], before };
                self.note_grant(state, &call, taken, 0);
            }
        }
        state.outcome.check(right, Claim::AllOrNothing);
        if allowed {
            if chosen.iter().any(|at| *at > 0 && clauses[*at].group == clauses[*at - 1].group) {
                state.outcome.event = Some(Event::Else);
            }
            return Some(());
        }
        state.outcome.event = Some(Event::Denied);
        if let Some(wait_us) =
            combine(&decisions, Mode::Final).and_then(|(verdict, _)| verdict.retry_after_us())
        {
            let then = |us: u64| all_allowed(&state.saved, clauses, &requests, now_us + us);
            let right = then(wait_us) && !then(wait_us - 1);
            state.outcome.check(right, Claim::RetryAfter);
        }
        Some(())
    }
}

/// Returns the first limit of each group that would be allowed alone, or that is in shadow.
fn first_choices(clauses: &[WorldClause], looks: &[Decision]) -> Vec<usize> {
    let can = |at: &usize| clauses[*at].request.shadow || looks[*at].verdict.allowed();
    let mut chosen: Vec<usize> = (0..clauses.len()).filter(can).collect();
    chosen.dedup_by_key(|at| clauses[*at].group);
    chosen
}

/// Returns whether a call of RL.ALL is allowed on a copy of these keys.
fn all_allowed(
    saved: &[Option<Saved>],
    clauses: &[WorldClause],
    requests: &[Request],
    now_us: u64,
) -> bool {
    MEMORY.with(|memory| {
        load(memory, saved);
        let made = decide_all(None, clauses, requests, |key| memory.key(NAMES[key], now_us));
        made.is_ok_and(|(allowed, _)| allowed)
    })
}

/// Makes a call of RL.ALL on a store, with a mistake or without. Returns whether it is allowed, and each decision.
fn decide_all<'r, S: Store<Error = Refusal>>(
    mistake: Option<Mistake>,
    clauses: &[WorldClause],
    requests: &'r [Request],
    store: impl Fn(usize) -> S,
) -> Result<(bool, Vec<PartDecision<'r>>), Refusal> {
    let part = |at: usize| {
        let WorldClause { key, group, .. } = clauses[at];
        Part::new(store(key), &requests[at], group, false)
    };
    let mut order: Vec<_> = (0..clauses.len()).collect();
    if mistake == Some(Mistake::LastChoice) {
        order.sort_by_key(|at| (clauses[*at].group, Reverse(*at)));
    }
    let mut parts: Vec<_> = order.iter().map(|at| part(*at)).collect();
    let plan = read(&mut parts)?.judge()?.plan(Mode::Final, || id_of(25))?;
    let decisions: Vec<_> = plan.decisions().collect();
    plan.write();
    let allowed = decisions.iter().all(|one| one.standing != Standing::Denied);
    drop(parts);
    for (at, one) in order.into_iter().zip(&decisions).filter(|(_, one)| one.decision.allowed()) {
        let takes_by_mistake = match mistake {
            Some(Mistake::AllOfGroupTake) => allowed && one.standing == Standing::Spare,
            Some(Mistake::NotAtomic) => !allowed,
            _ => false,
        };
        if takes_by_mistake {
            let mut alone = [part(at)];
            read(&mut alone)?.judge()?.plan(Mode::Final, || id_of(25))?.write();
        }
    }
    Ok((allowed, decisions))
}
