//! A slow and obvious model of a window: a list of events and a list of leases, read from end to end. Tests and the fuzz
//! target make each call on the model and on the engine.
#![allow(
    clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::arithmetic_side_effects
)]

use super::{ModelCall, ModelCommand, ModelReply, START_US};
use crate::calendar::Zones;
use crate::decision::{Ask, Decision, Manner, Obstacle, Quantity, Verdict};
use crate::entry::Entry;
use crate::memory::Zset;
use crate::period::Length;
use crate::reservation::Hold;
use crate::reservations::SortedHolds;
use crate::rule::{Rule, RuleNow};
use crate::window::{EventChange, EventEdit, WindowCount};
use std::cell::RefCell;

/// The default of `ratelimit.window-entries`.
pub const MAX_ENTRIES: u32 = 4096;

/// The rule by which events expire, in the model.
#[derive(Clone, Copy, Debug)]
pub enum Obvious {
    Sliding(u64),
    Months(u32),
    /// Windows of this many microseconds, the first of which began at the second number.
    Fixed(u64, u64),
    /// Windows of this length, each opened by its first event. The list has all its events at that time.
    First(Length),
}

impl Obvious {
    pub fn expires_us(self, event_us: u64) -> u64 {
        match self {
            Obvious::Sliding(period_us) => event_us + period_us,
            Obvious::Months(months) => Length::Months(months).expires_us(event_us),
            Obvious::Fixed(period_us, from_us) => {
                event_us + period_us - (event_us - from_us) % period_us
            }
            Obvious::First(length) => length.expires_us(event_us),
        }
    }

    pub fn add(self, list: &mut Vec<Counted>, mut event: Counted) {
        if matches!(self, Obvious::First(_)) {
            match list.iter().find(|one| self.expires_us(one.at_us) > event.at_us) {
                Some(first) => event.at_us = first.at_us,
                // The window before is forgotten, and so does not count again if the clock is set back.
                None => list.clear(),
            }
        }
        list.push(event);
    }
}

/// A rule, and the zones that it was read with.
pub struct Ruled {
    pub rule: Rule,
    pub zones: RefCell<Zones>,
}

impl Ruled {
    pub fn at(&self, now_us: u64) -> Option<RuleNow> {
        self.rule.at(now_us, &mut self.zones.borrow_mut())
    }
}

pub fn rule(text: &str) -> Ruled {
    let mut zones = Zones::new();
    let rule = Rule::parse(text.as_bytes(), &mut zones).unwrap_or_else(|| panic!("{text}"));
    Ruled { rule, zones: RefCell::new(zones) }
}

/// An event that is counted whatever the limit.
pub fn event(weight: u64) -> EventChange {
    EventChange::Record { weight, denied: false, limit: u64::MAX }
}

/// Returns whether entries from the future stay after an edit.
pub fn leaves_future(edit: &EventEdit) -> bool {
    edit.merged.is_some_and(|merged| merged.to_us < u64::MAX)
}

#[derive(Clone, Copy, Debug)]
pub struct Counted {
    pub at_us: u64,
    pub weight: u64,
    /// Denied, or beyond the limit when a later call was: it may share an entry with such calls.
    pub coarse: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Reserved {
    pub end_us: u64,
    pub lease_us: u64,
    pub quantity: u64,
}

impl Reserved {
    pub fn seen_at(self, now_us: u64) -> Reserved {
        Reserved { end_us: self.end_us.min(now_us + self.lease_us), ..self }
    }
}

#[derive(Clone, Debug, Default)]
pub struct WindowWorld {
    pub now_us: u64,
    pub zset: Zset,
    pub list: Vec<Counted>,
    pub leases: Vec<Reserved>,
    /// About how many entries from the future a call merges at most.
    pub max_healed: usize,
}

/// What the model expects of one call.
#[derive(Debug)]
pub struct Expected {
    pub counted: u64,
    pub verdict: Verdict,
    pub remaining: u64,
    pub reset_after_us: u64,
}

/// The sum of `list` that counts at `us`.
pub fn counted_at(list: &[Counted], obvious: Obvious, us: u64) -> u64 {
    list.iter().filter(|one| obvious.expires_us(one.at_us) > us).map(|one| one.weight).sum()
}

pub fn held_at(leases: &[Reserved], us: u64) -> u64 {
    leases.iter().filter(|one| one.end_us > us).map(|one| one.quantity).sum()
}

/// A call that is not barred and heals everything.
pub fn plain(rule_now: RuleNow, limit: u64, ask: Ask, kind: ModelCommand) -> ModelCall {
    let (max_entries, max_healed) = (MAX_ENTRIES, usize::MAX);
    ModelCall { rule_now, limit, max_entries, max_healed, ask, kind, barred: false }
}

impl WindowWorld {
    pub fn new() -> WindowWorld {
        WindowWorld { now_us: START_US, max_healed: usize::MAX, ..WindowWorld::default() }
    }

    /// Creates a world in which the running total is `total`, perhaps about to wrap.
    pub fn with_total(total: u64) -> WindowWorld {
        let mut world = WindowWorld::new();
        world.zset.add(&Entry { newest_us: 7, span_us: 0, total, weight: 1, denied: false });
        world
    }

    /// Adds this many events that expired long ago.
    pub fn add_dead(&mut self, number: u64) {
        let before = self.zset.entries().last().map_or(0, |newest| newest.total);
        for at in 1..=number {
            let (newest_us, total) = (START_US - 60_000 + at, before.wrapping_add(at));
            self.zset.add(&Entry { newest_us, span_us: 0, total, weight: 1, denied: false });
        }
    }

    /// The sum of all entries, including dead ones, and of the events that were uncounted between them.
    pub fn whole_sum(&self) -> u128 {
        let entries: Vec<Entry> = self.zset.entries().collect();
        let growth = entries.windows(2).map(|pair| pair[1].total.wrapping_sub(pair[0].total));
        entries.iter().take(1).map(|oldest| oldest.weight).chain(growth).map(u128::from).sum()
    }

    pub fn pass(&mut self, us: i64) {
        self.now_us = self.now_us.checked_add_signed(us).unwrap();
    }

    pub fn held(&self, now_us: u64) -> SortedHolds {
        let leases = self.leases.iter().map(|lease| lease.seen_at(now_us));
        let live = leases.filter(|lease| lease.end_us > now_us);
        live.map(|lease| Hold { gone_us: lease.end_us, quantity: lease.quantity }).collect()
    }

    pub fn look(&mut self, rule: &Ruled, limit: u64, ask: &Ask, us: u64) -> ModelReply {
        let held = self.held(us);
        let kind = ModelCommand::Look;
        let rule_now = rule.at(us).unwrap();
        let call = ModelCall { max_healed: self.max_healed, ..plain(rule_now, limit, *ask, kind) };
        let done = call.make(&mut self.zset, &held).unwrap();
        assert_eq!(done.edit, None, "looking writes");
        done
    }

    /// Makes a call on the product, and checks that what it wrote is what it planned.
    pub fn call(&mut self, rule: &Ruled, limit: u64, ask: &Ask, kind: ModelCommand) -> ModelReply {
        let now_us = self.now_us;
        let rule_now = rule.at(now_us).unwrap();
        let held = self.held(now_us);
        let times: Vec<u64> = self.zset.entries().map(|entry| entry.newest_us).collect();
        let call = ModelCall { max_healed: self.max_healed, ..plain(rule_now, limit, *ask, kind) };
        let done = call.make(&mut self.zset, &held).unwrap();
        if let (ModelCommand::Hold(lease_ms), Verdict::Allowed { taken: quantity @ 1.., .. }) =
            (kind, done.decision.verdict)
        {
            let lease_us = lease_ms * 1_000;
            self.leases.push(Reserved { end_us: now_us + lease_us, lease_us, quantity });
        }
        // A denied call rewrites leases from the future, even if there is nothing else to write.
        let heals =
            matches!(done.decision.verdict, Verdict::Denied { .. }) && kind != ModelCommand::Look;
        if done.edit.is_some() || heals {
            for lease in &mut self.leases {
                *lease = lease.seen_at(now_us);
            }
        }
        if let Some(edit) = &done.edit {
            self.forget_dropped(&rule_now, edit, &times);
            self.check_written(rule, limit, ask, kind, &done);
        }
        let future_leases = self.leases.iter().any(|one| one.seen_at(now_us).end_us < one.end_us);
        let healed = done.edit.is_some_and(|edit| !leaves_future(&edit));
        if !future_leases && (!done.window_count.has_future() || healed) {
            self.check_waits(rule, limit, ask, kind, &done.decision);
        }
        done
    }

    /// Checks that an edit drops only dead entries, and drops them from the list too.
    pub fn forget_dropped(&mut self, rule_now: &RuleNow, edit: &EventEdit, times: &[u64]) {
        let Some(last_us) = edit.dropped.checked_sub(1).map(|last| times[last]) else { return };
        assert!(
            rule_now.horizon_us().is_some_and(|horizon_us| last_us <= horizon_us),
            "drops live entries"
        );
        self.list.retain(|one| one.at_us > last_us);
    }

    pub fn check_written(
        &mut self,
        rule: &Ruled,
        limit: u64,
        ask: &Ask,
        kind: ModelCommand,
        done: &ModelReply,
    ) {
        let times: Vec<u64> = self.zset.entries().map(|entry| entry.newest_us).collect();
        assert!(times.windows(2).all(|pair| pair[0] < pair[1]), "two entries at one time");
        let again = WindowCount::read(&mut self.zset, rule.at(self.now_us).unwrap());
        if !matches!(rule.rule, Rule::Semaphore) {
            let again = again.unwrap();
            assert_eq!(again.counted(), done.window_count.counted(), "counted anew");
            assert_eq!(again.empty_at_us(), done.window_count.empty_at_us());
            let stays = done.edit.is_some_and(|edit| leaves_future(&edit));
            assert_eq!(again.has_future(), stays, "from the future");
        }
        if !done.decision.verdict.allowed() {
            let later = self.look(rule, limit, ask, self.now_us).decision;
            assert_eq!(later.verdict.retry_after_us(), done.decision.verdict.retry_after_us());
            assert_eq!(later.remaining, done.decision.remaining, "{kind:?}");
        }
    }

    /// The wait in a reply is long enough, a shorter one is not, and the key is clear after the reset in the reply.
    pub fn check_waits(
        &mut self,
        rule: &Ruled,
        limit: u64,
        ask: &Ask,
        kind: ModelCommand,
        decision: &Decision,
    ) {
        if let Some(wait_us) = decision.verdict.retry_after_us() {
            let then_us = self.now_us + wait_us;
            let then = self.look(rule, limit, ask, then_us).decision.verdict;
            assert!(then.allowed(), "{wait_us} is too short: {then:?}");
            let before = self.look(rule, limit, ask, then_us - 1).decision.verdict;
            assert!(matches!(before, Verdict::Denied { .. }), "{wait_us} is too long: {before:?}");
        }
        if kind == ModelCommand::Look {
            return;
        }
        let clear_us = self.now_us + decision.reset_after_us;
        let mut is_clear = |us: u64| {
            let seen = self.look(rule, u64::MAX, &Ask::whole(Quantity::Look), us).decision;
            seen.remaining == u64::MAX
        };
        assert!(is_clear(clear_us), "not clear when it should be");
        if decision.reset_after_us > 0 {
            assert!(!is_clear(clear_us - 1), "clear sooner than it should be");
        }
    }

    /// Returns what the same call does according to the lists.
    pub fn expect(&self, obvious: Obvious, limit: u64, ask: &Ask, kind: ModelCommand) -> Expected {
        let now_us = self.now_us;
        let mut list = self.list.clone();
        list.iter_mut().for_each(|event| event.at_us = event.at_us.min(now_us));
        let mut leases: Vec<Reserved> =
            self.leases.iter().map(|lease| lease.seen_at(now_us)).collect();
        let (counted, held) = (counted_at(&list, obvious, now_us), held_at(&leases, now_us));
        let free = limit.saturating_sub(counted).saturating_sub(held);
        let wanted = ask.quantity.wanted();
        let atmost = ask.manner == Manner::AtMost;
        let least = u128::from(if atmost { 1 } else { wanted }) + u128::from(ask.leave);
        let verdict = if !ask.quantity.takes() {
            Verdict::taking(0)
        } else if ask.manner == Manner::Force {
            Verdict::taking(wanted)
        } else if least > u128::from(limit) {
            Verdict::Never
        } else if least <= u128::from(free) {
            Verdict::taking(if atmost { wanted.min(free - ask.leave) } else { wanted })
        } else {
            let only_leave_denies = least - u128::from(ask.leave) <= u128::from(free);
            if kind == ModelCommand::CountDenied && wanted <= limit && !only_leave_denies {
                obvious.add(&mut list, Counted { at_us: now_us, weight: wanted, coarse: true });
            }
            let leaving = list.iter().map(|one| obvious.expires_us(one.at_us));
            let mut ends: Vec<u64> = leaving.chain(leases.iter().map(|one| one.end_us)).collect();
            ends.sort_unstable();
            let fits = |us: &u64| {
                let used = u128::from(counted_at(&list, obvious, *us));
                used + u128::from(held_at(&leases, *us)) + least <= u128::from(limit)
            };
            let then_us = ends.into_iter().filter(|us| *us > now_us).find(fits).unwrap();
            let only_held = matches!(kind, ModelCommand::Hold(_))
                && u128::from(counted) + least <= u128::from(limit);
            let obstacle = if only_held { Obstacle::Held } else { Obstacle::Counted };
            Verdict::Denied { wait_us: then_us - now_us, obstacle }
        };
        if kind != ModelCommand::Look {
            let quantity = verdict.taken();
            match (ask.quantity, kind) {
                (Quantity::GiveBack(amount), _) => give_back(&mut list, obvious, now_us, amount),
                (_, ModelCommand::Hold(lease_ms)) if quantity > 0 => {
                    let lease_us = lease_ms * 1_000;
                    leases.push(Reserved { end_us: now_us + lease_us, lease_us, quantity });
                }
                _ if quantity > 0 => {
                    obvious
                        .add(&mut list, Counted { at_us: now_us, weight: quantity, coarse: false });
                }
                _ => {}
            }
        }
        let used = counted_at(&list, obvious, now_us);
        let remaining = limit.saturating_sub(used).saturating_sub(held_at(&leases, now_us));
        let leaving = list.iter().map(|one| obvious.expires_us(one.at_us));
        let ends = leaving.chain(leases.iter().map(|one| one.end_us));
        let clear_us = ends.filter(|us| *us > now_us).max().unwrap_or(now_us);
        Expected { counted, verdict, remaining, reset_after_us: clear_us - now_us }
    }

    /// Applies to the list what the product did.
    pub fn note(&mut self, obvious: Obvious, ask: &Ask, kind: ModelCommand, done: &ModelReply) {
        let at_us = match &done.edit {
            Some(edit) => self.heal(edit),
            None => self.now_us,
        };
        let taken = done.decision.verdict.taken();
        match ask.quantity {
            _ if kind == ModelCommand::Look || matches!(kind, ModelCommand::Hold(_)) => {}
            Quantity::GiveBack(amount) => give_back(&mut self.list, obvious, at_us, amount),
            _ if taken > 0 => {
                obvious.add(&mut self.list, Counted { at_us, weight: taken, coarse: false });
            }
            Quantity::Take(weight) if done.denial_counted => {
                obvious.add(&mut self.list, Counted { at_us, weight, coarse: true });
            }
            _ => {}
        }
    }

    /// Takes events from the future as happening now, as far as an edit does; returns when what it counts happens.
    pub fn heal(&mut self, edit: &EventEdit) -> u64 {
        let now_us = self.now_us;
        let until_us = edit.merged.map_or(u64::MAX, |merged| merged.to_us);
        for event in self.list.iter_mut().filter(|event| event.at_us <= until_us) {
            event.at_us = event.at_us.min(now_us);
        }
        let joined = edit.other.new.filter(|_| leaves_future(edit));
        joined.map_or(now_us, |grown| grown.newest_us)
    }

    /// Makes a call on the product and the model, and checks that they agree.
    pub fn agree(
        &mut self,
        rule: &Ruled,
        obvious: Obvious,
        limit: u64,
        ask: &Ask,
        kind: ModelCommand,
    ) -> ModelReply {
        let expected = self.expect(obvious, limit, ask, kind);
        let done = self.call(rule, limit, ask, kind);
        self.note(obvious, ask, kind, &done);
        let decision = done.decision;
        let what =
            || format!("{limit} {ask:?} {kind:?}\n{decision:?}\n{expected:?}\n{:?}", self.list);
        assert_eq!(done.counted, expected.counted, "counted {}", what());
        assert_eq!(decision.verdict, expected.verdict, "verdict {}", what());
        assert_eq!(decision.remaining, expected.remaining, "remaining {}", what());
        assert_eq!(decision.reset_after_us, expected.reset_after_us, "reset {}", what());
        done
    }

    /// Applies some reservation: its lease goes, and an event of this weight comes now, whatever the limit.
    pub fn settle(&mut self, rule: &Ruled, obvious: Obvious, which: usize, weight: u64) {
        let now_us = self.now_us;
        self.leases.retain(|lease| lease.seen_at(now_us).end_us > now_us);
        if self.leases.is_empty() {
            return;
        }
        self.leases.remove(which % self.leases.len());
        if weight > 0 {
            let rule_now = rule.at(now_us).unwrap();
            let times: Vec<u64> = self.zset.entries().map(|entry| entry.newest_us).collect();
            let window_count = WindowCount::read(&mut self.zset, rule_now).unwrap();
            let plan =
                window_count.plan_change(&mut self.zset, event(weight), self.max_healed).unwrap();
            let edit = plan.edit;
            self.zset.apply(&edit);
            self.forget_dropped(&rule_now, &edit, &times);
            let at_us = self.heal(&edit);
            obvious.add(&mut self.list, Counted { at_us, weight, coarse: false });
        }
    }

    /// Those that count, except those from the future that a call which changes nothing has left there.
    pub fn live_entries(&self, rule: &Ruled) -> usize {
        let horizon_us = rule.at(self.now_us).unwrap().horizon_us();
        let live = |us: u64| us <= self.now_us && horizon_us.is_none_or(|horizon| us > horizon);
        self.zset.entries().filter(|event| live(event.newest_us)).count()
    }

    pub fn dead_entries(&self, rule: &Ruled) -> usize {
        let horizon_us = rule.at(self.now_us).unwrap().horizon_us();
        let dead = |us: u64| horizon_us.is_some_and(|horizon_us| us <= horizon_us);
        self.zset.entries().filter(|event| dead(event.newest_us)).count()
    }

    /// The entries: time after the start, weight, and span.
    pub fn entries(&self) -> Vec<(i64, u64, u64)> {
        let since = |us: u64| i64::try_from(us).unwrap() - i64::try_from(START_US).unwrap();
        self.zset.entries().map(|one| (since(one.newest_us), one.weight, one.span_us)).collect()
    }
}

/// Uncounts the oldest of what counts.
pub fn give_back(list: &mut Vec<Counted>, obvious: Obvious, now_us: u64, amount: u64) {
    let mut left = amount;
    for one in list.iter_mut().filter(|one| obvious.expires_us(one.at_us) > now_us) {
        let gone = one.weight.min(left);
        one.weight -= gone;
        left -= gone;
    }
    list.retain(|one| one.weight > 0);
}
