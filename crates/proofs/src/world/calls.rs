//! The calls of a world: each runs the engine, and notes the result in the books.

use super::books::{sum, BanBook, BookedLease, Grant};
use super::{
    decide, id_of, load, looking, probe, probe_all, unload, BookKind, ClientCall, World,
    WorldClause, WorldKey, WorldState, MEMORY, NAMES,
};
use crate::mistake::{FaultyStore, Mistake};
use crate::outcome::{Claim, Event};
use engine::ban::Ban;
use engine::memory::{Memory, Saved, SavedValue};
use engine::model;
use engine::settle::{self, SettleOutcome};
use engine::store::Store;
use engine::{
    combine, judge, Decision, Limit, Manner, Mode, Part, PartOutcome, Place, Quantity, Refusal,
    Request, Verdict,
};
use std::cmp::Reverse;

fn with_id(request: &Request, client: usize) -> Request {
    let mut request = *request;
    if let Limit::Reserve(_, reserve) = &mut request.limit {
        reserve.id = Some(id_of(client));
    }
    request
}

/// Returns the ban of a key, or the mark that a past ban left.
fn ban_of(saved: &Option<Saved>) -> Option<Ban> {
    match &saved.as_ref()?.value {
        SavedValue::Window { reserved, .. } => reserved.iter().find_map(|text| Ban::decode(text)),
        SavedValue::Bucket(text) => engine::throttle::Stored::decode(text)?.ban(),
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
    pub(super) fn take(
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

    pub(super) fn settle(
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
    pub(super) fn spend(&self, state: &mut WorldState, client: usize, at: usize) -> Option<()> {
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
    pub(super) fn all(
        &self,
        state: &mut WorldState,
        client: usize,
        clauses: &[WorldClause],
    ) -> Option<()> {
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
