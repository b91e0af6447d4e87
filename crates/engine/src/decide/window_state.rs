//! The state of a part whose key holds a window. A semaphore is a window that counts no events.
//!
//! `read` makes the [`WindowMoment`] before the call, and nothing changes it. Each way to plan makes the moment after the
//! call, a decision that describes it, and a [`WindowChange`] that leads from one to the other. The key is written last, so
//! the reservations in it are those before the call, and the moment after adds the new one.

use super::Action;
use crate::ban::{Ban, BanNow};
use crate::decision::{Decision, Manner, Obstacle, Quantity, Verdict};
use crate::entry::{check_clock, MAX_SUM};
use crate::expiry::Expiry;
use crate::refusal::Refusal;
use crate::request::{NewReservation, Request, WindowLimit};
use crate::reservation::{lease_end_us, Id, OwnedReservation, Reservation};
use crate::reservations::Reservations;
use crate::store::{Store, WindowEdit, WindowKey};
use crate::window::{
    freed_at_us, EventChange, EventEdit, EventPlan, Room, WindowCount, WindowUsage,
};

/// The window as the call found it, and the changes that were planned.
pub(crate) struct WindowState<'r, S: Store> {
    request: &'r Request,
    window: &'r WindowLimit,
    /// The reservation to make. `None` if the call counts an event.
    new: Option<&'r NewReservation>,
    store: S,
    pub(super) key: S::Window,
    pub(crate) before: WindowMoment,
    /// Whether it was judged as a request that waiters come before.
    barred: bool,
    /// The changes to write. `None` if there are none.
    pub(crate) change: Option<WindowChange>,
}

/// A window at one moment of a call: as the call found it, or as the call leaves it.
#[derive(Clone, Copy, Default)]
pub(crate) struct WindowMoment {
    pub(crate) count: WindowCount,
    /// The sum of the quantities that are held.
    held: u128,
    /// The time at which the last reservation is gone.
    held_until_us: Option<u64>,
    /// The number of running leases, if the reply has it.
    running: Option<u32>,
    ban: BanNow,
}

impl WindowMoment {
    fn now_us(&self) -> u64 {
        self.count.rule_now().now_us()
    }

    fn usage(&self, window: &WindowLimit) -> WindowUsage {
        WindowUsage { limit: window.limit, counted: self.count.counted(), held: self.held }
    }

    /// Returns whether nothing is counted or held.
    fn is_clear(&self) -> bool {
        self.count.counted() == 0 && self.held == 0
    }

    /// Returns the time at which the key's ban is over, in Unix microseconds. This is now if no ban runs.
    fn open_at_us(&self) -> u64 {
        self.now_us().saturating_add(self.ban.left_us())
    }

    fn add(&mut self, made: &OwnedReservation) {
        self.held = self.held.saturating_add(u128::from(made.quantity));
        self.held_until_us = self.held_until_us.max(Some(made.gone_us));
        self.running = self.running.map(|running| running.saturating_add(1));
    }

    /// Returns the verdict on a request in a window like this. Only RL.ACQUIRE distinguishes held from counted.
    #[inline(always)]
    fn verdict<K: WindowKey>(
        &self,
        key: &mut K,
        request: &Request,
        window: &WindowLimit,
        barred: bool,
    ) -> Result<Verdict, K::Error> {
        let verdict = match self.usage(window).room(&request.ask, barred) {
            Room::Enough(taken) => Verdict::taking(taken),
            Room::Never => Verdict::Never,
            Room::Missing { need, obstacle } => {
                let reserves = request.limit.reservation().is_some();
                let obstacle = if reserves { obstacle } else { Obstacle::Counted };
                let (events, reservations) = key.split();
                let freed_us = freed_at_us(events, &self.count, reservations, need)?;
                let wait_us = freed_us.map_or(0, |us| us.saturating_sub(self.now_us())).max(1);
                let verdict = Verdict::Denied { wait_us, obstacle };
                if barred {
                    verdict.deny_in_line(obstacle)
                } else {
                    verdict
                }
            }
        };
        let bannable = request.ask.takes_unforced();
        Ok(if bannable { verdict.deny_for_ban(self.ban.left_us()) } else { verdict })
    }

    /// Returns the decision of a call that leaves the window like this.
    // Inlined so that the large decision is not copied.
    #[inline(always)]
    fn decision(&self, verdict: Verdict, window: &WindowLimit, id: Option<Id>) -> Decision {
        let clear_us = self.count.empty_at_us().max(self.held_until_us);
        let clear_after_us = clear_us.map_or(0, |us| us.saturating_sub(self.now_us()));
        Decision {
            verdict,
            limit: window.limit,
            remaining: if self.ban.runs() { 0 } else { self.usage(window).remaining() },
            reset_after_us: clear_after_us.max(self.ban.left_us()),
            id,
            running: self.running,
        }
    }
}

pub(crate) struct WindowChange {
    pub(crate) events: EventPlan,
    reservation: Option<OwnedReservation>,
    /// The ban after the call, or the mark of a past one.
    ban: Option<Ban>,
    /// Drops reservations that are gone, and rewrites those from the future: a bounded number of each.
    clean: bool,
    /// The time for which the events need the key. `None` leaves the TTL as it is.
    expiry: Option<Expiry>,
}

impl WindowChange {
    #[inline(always)]
    pub(super) fn edit(&self) -> WindowEdit<'_> {
        WindowEdit {
            settled: &[],
            events: &self.events.edit,
            reservation: self.reservation.as_ref().map(Reservation::borrowed),
            clean: self.clean,
            ban: self.ban,
            expiry: self.expiry,
        }
    }
}

impl<'r, S: Store> WindowState<'r, S> {
    /// Creates the state of a part whose key has not been read yet.
    // Inlined so that the large value is built in the caller's frame, not copied.
    #[inline(always)]
    pub(super) fn new(
        mut store: S,
        request: &'r Request,
        window: &'r WindowLimit,
    ) -> WindowState<'r, S> {
        WindowState {
            request,
            window,
            new: request.limit.reservation(),
            key: store.window(),
            store,
            before: WindowMoment::default(),
            barred: false,
            change: None,
        }
    }

    pub(super) fn read(&mut self) -> Result<(), S::Error> {
        check_clock(self.store.now_us())?;
        let rule_now = self.store.rule_now(&self.window.rule).ok_or(Refusal::Clock)?;
        let rule_now = rule_now.with_max_entries(self.window.max_entries);
        self.key.read(self.request.id())?;
        if self.key.reservations().is_id_held() {
            return Err(Refusal::Duplicate.into());
        }
        let before = &mut self.before;
        before.held = self.key.reservations().total();
        before.held_until_us = self.key.reservations().last_gone_us();
        if self.new.is_some() && self.request.ask.manner == Manner::AtMost {
            let running = self.key.reservations_mut().count_running();
            before.running = Some(u32::try_from(running).unwrap_or(u32::MAX));
        }
        if let Some(ban) = self.key.ban() {
            before.ban = BanNow::at(Some(ban), rule_now.now_us());
        }
        before.count.set(self.key.events(), rule_now)?;
        if before.ban.ban_or_mark().is_some() && before.is_clear() {
            before.ban.drop_mark();
        }
        Ok(())
    }

    /// Judges the request on the window as it was found. With `barred` a waiter comes first.
    pub(super) fn judge(&mut self, barred: bool) -> Result<Verdict, S::Error> {
        self.barred = barred;
        self.before.verdict(&mut self.key, self.request, self.window, barred)
    }

    /// Refuses a reservation if the key holds as many as it may.
    pub(super) fn check_room(&self, verdict: Verdict) -> Result<(), Refusal> {
        let makes_one = matches!(verdict, Verdict::Allowed { taken: 1.., .. });
        let Some(new) = self.new.filter(|_| makes_one) else { return Ok(()) };
        match u64::try_from(self.key.reservations().live_len()) {
            Ok(live) if live < new.max_reservations => Ok(()),
            Ok(_) | Err(_) => Err(Refusal::TooManyReservations),
        }
    }

    /// Returns the earliest grant in Unix microseconds, ignoring reservations and waiters. `None` if there is none.
    pub(super) fn earliest_grant_us(&mut self) -> Result<Option<u64>, S::Error> {
        let before = WindowMoment { held: 0, ..self.before };
        match before.usage(self.window).room(&self.request.ask, false) {
            Room::Never => Ok(None),
            Room::Enough(_) => Ok(Some(before.open_at_us())),
            Room::Missing { need, .. } => {
                let none = Reservations::default();
                let freed_us = freed_at_us(self.key.events(), &before.count, &none, need)?;
                Ok(freed_us.map(|freed_us| freed_us.max(before.open_at_us())))
            }
        }
    }

    /// Returns whether a denial of this request counts (COUNTDENIED).
    pub(crate) fn counts_denial(&self) -> bool {
        let (ask, max) = (&self.request.ask, self.window.limit);
        self.request.count_denied
            && ask.quantity.takes()
            && ask.quantity.wanted() <= max
            && ask.min_available(max).is_some()
            && (self.before.ban.runs() || !self.before.usage(self.window).only_leave_denies(ask))
    }

    /// Plans what to write, and decides.
    #[inline(always)]
    pub(super) fn plan(
        &mut self,
        verdict: Verdict,
        action: Action,
        new_id: impl FnOnce() -> Id,
    ) -> Result<Decision, S::Error> {
        match action {
            Action::Look => Ok(self.keep(verdict)),
            Action::Grant => match (self.request.ask.quantity, self.new) {
                (Quantity::Look, _) => Ok(self.look(verdict)),
                (Quantity::GiveBack(quantity), _) => self.give_back(verdict, quantity),
                (Quantity::Take(_), None) => self.record(verdict),
                (Quantity::Take(_), Some(new)) => self.reserve(verdict, new, new_id),
            },
            Action::Heal => self.deny(verdict, None),
            Action::Deny { ban_ms } if self.counts_denial() => self.count_denial(verdict, ban_ms),
            Action::Deny { ban_ms } => self.deny(verdict, ban_ms),
        }
    }

    fn keep(&self, verdict: Verdict) -> Decision {
        self.before.decision(verdict, self.window, None)
    }

    /// Closes the key if the call does so with FORCE, and changes nothing else.
    fn look(&mut self, verdict: Verdict) -> Decision {
        let after = WindowMoment { ban: self.ban_if_closed(), ..self.before };
        let ban = after.ban.ban_or_mark();
        if self.request.closes_for_ms().is_some() && ban != self.key.ban() {
            let events = EventPlan { edit: EventEdit::default(), after: after.count };
            let expiry = Some(self.expiry(&events));
            self.change =
                Some(WindowChange { events, reservation: None, ban, clean: false, expiry });
        }
        after.decision(verdict, self.window, None)
    }

    /// Returns the ban, which begins with the call if that closes the key with FORCE.
    #[inline(always)]
    fn ban_if_closed(&self) -> BanNow {
        let ban = self.before.ban;
        match self.request.closes_for_ms() {
            None => ban,
            Some(ban_ms) => ban.close(self.before.now_us(), ban_ms),
        }
    }

    /// Changes the window as a call does that is granted, or that gives back.
    #[inline(always)]
    fn granted(
        &mut self,
        verdict: Verdict,
        events: EventPlan,
        reservation: Option<OwnedReservation>,
    ) -> Decision {
        let ban = self.ban_if_closed();
        let mut after = WindowMoment { count: events.after, ban, ..self.before };
        if let Some(made) = &reservation {
            after.add(made);
        }
        let ban = after.ban.ban_after(self.request.ask.takes_unforced(), after.is_clear());
        let id = reservation.as_ref().map(|made| made.id);
        // Giving back leaves reservations and the TTL as they are.
        let gives_back = matches!(self.request.ask.quantity, Quantity::GiveBack(_));
        let expiry = (!gives_back).then(|| self.expiry(&events));
        self.change = Some(WindowChange { events, reservation, ban, clean: !gives_back, expiry });
        after.decision(verdict, self.window, id)
    }

    /// Changes the window as a call does that is denied.
    fn denied(&mut self, events: EventPlan, ban: Option<Ban>) {
        let expiry = Some(self.expiry(&events));
        self.change = Some(WindowChange { events, reservation: None, ban, clean: true, expiry });
    }

    fn change_events(&mut self, change: EventChange) -> Result<EventPlan, S::Error> {
        self.before.count.plan_change(self.key.events(), change, self.store.max_healed())
    }

    /// Returns the time for which the events need the key after the call.
    #[inline(always)]
    fn expiry(&self, events: &EventPlan) -> Expiry {
        self.store.expiry(&self.window.rule, &events.after)
    }

    /// Counts the quantity that is taken as an event.
    fn record(&mut self, verdict: Verdict) -> Result<Decision, S::Error> {
        let (max, weight) = (self.window.limit, verdict.taken());
        let sum = u128::from(self.before.count.counted()).saturating_add(u128::from(weight));
        if self.request.ask.manner == Manner::Force && sum > u128::from(MAX_SUM) {
            return Err(Refusal::SumTooLarge.into());
        }
        let record = EventChange::Record { weight, denied: false, limit: max };
        // Not with `?`, which would copy the large plan once more.
        self.change_events(record).map(|events| self.granted(verdict, events, None))
    }

    /// Makes a reservation of the quantity that is taken.
    fn reserve(
        &mut self,
        verdict: Verdict,
        new: &NewReservation,
        new_id: impl FnOnce() -> Id,
    ) -> Result<Decision, S::Error> {
        let (now_us, lease_ms) = (self.before.now_us(), new.lease_ms);
        let lease_end_us = lease_end_us(now_us, lease_ms);
        let gone_us = self.store.gone_us(&self.window.rule, lease_end_us, new.count_lapsed)?;
        let arrival_us = self.key.reservations().next_arrival_us(now_us);
        let events = self.change_events(EventChange::DropDead)?;
        let made = Reservation {
            id: new.id.unwrap_or_else(new_id),
            quantity: verdict.taken(),
            lease_ms,
            lease_end_us,
            gone_us,
            arrival_us,
            rule: self.store.write_rule(&self.window.rule),
        };
        Ok(self.granted(verdict, events, Some(made)))
    }

    /// Gives back at most `quantity` of the counted events.
    fn give_back(&mut self, verdict: Verdict, quantity: u64) -> Result<Decision, S::Error> {
        if self.before.count.counted() == 0 {
            return Ok(self.keep(verdict));
        }
        let uncount = EventChange::Uncount { quantity };
        let events = self.change_events(uncount)?;
        Ok(self.granted(verdict, events, None))
    }

    /// Returns the ban after a denial. One begins if the counted events leave less than the quantity of the request, and
    /// something was granted since the last ban.
    #[inline(always)]
    fn ban_after_denial(&self, verdict: Verdict, ban_ms: Option<u64>) -> BanNow {
        let ban = self.before.ban;
        let Some(length_ms) = ban_ms else { return ban };
        let left = self.window.limit.saturating_sub(self.before.count.counted());
        let is_short = left < self.request.ask.quantity.wanted();
        match verdict {
            Verdict::Denied { .. } if is_short && ban.may_begin() => {
                BanNow::starting(self.before.now_us(), length_ms)
            }
            _ => ban,
        }
    }

    fn deny(&mut self, verdict: Verdict, ban_ms: Option<u64>) -> Result<Decision, S::Error> {
        if !self.request.takes() || verdict == Verdict::Never {
            return Ok(self.keep(verdict));
        }
        let mut after = WindowMoment { ban: self.ban_after_denial(verdict, ban_ms), ..self.before };
        let ban = after.ban.ban_or_mark();
        // A mark that is gone may stay stored until the next write.
        let is_new_ban = ban.is_some() && ban != self.key.ban();
        if is_new_ban || self.key.reservations().needs_cleaning() || after.count.has_future() {
            let events = self.change_events(EventChange::Heal)?;
            after.count = events.after;
            self.denied(events, ban);
        }
        Ok(after.decision(verdict.deny_for_ban(after.ban.left_us()), self.window, None))
    }

    /// Counts a denied call. The reply says what the next call meets, so the verdict is that on the window after it.
    fn count_denial(
        &mut self,
        verdict: Verdict,
        ban_ms: Option<u64>,
    ) -> Result<Decision, S::Error> {
        // Like the verdict, the ban is decided before the denial counts.
        let ban = self.ban_after_denial(verdict, ban_ms);
        let (weight, limit) = (self.request.ask.quantity.wanted(), self.window.limit);
        let record = EventChange::Record { weight, denied: true, limit };
        let events = self.change_events(record)?;
        let after = WindowMoment { count: events.after, ban, ..self.before };
        let ban = ban.ban_or_mark();
        self.denied(events, ban);
        let verdict = after.verdict(&mut self.key, self.request, self.window, self.barred)?;
        Ok(after.decision(verdict, self.window, None))
    }
}
