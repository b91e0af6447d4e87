//! The state of a part whose key holds a window. A semaphore is a window that counts no events.

use super::Action;
use crate::ban::{Ban, BanNow};
use crate::decision::{Decision, Manner, Obstacle, Quantity, Verdict};
use crate::entry::{check_clock, MAX_SUM};
use crate::refusal::Refusal;
use crate::request::{NewReservation, Request, WindowLimit};
use crate::reservation::{lease_end_us, Id, OwnedReservation, Reservation};
use crate::reservations::Reservations;
use crate::store::{Store, WindowEdit, WindowKey};
use crate::window::{
    freed_at_us, EventChange, EventEdit, UntimedVerdict, WindowCount, WindowUsage,
};

/// What a request asks of a window: the window as it was read, and the changes to write.
pub(crate) struct WindowState<'r, S: Store> {
    request: &'r Request,
    limit: &'r WindowLimit,
    /// The reservation to make. `None` if the call counts an event.
    reservation: Option<&'r NewReservation>,
    store: S,
    pub(super) key: S::Window,
    pub(crate) count: WindowCount,
    ban: BanNow,
    /// Whether it was judged as a request that waiters come before. That is also how a denial is counted.
    barred: bool,
    /// The changes to write. `None` if there are none.
    pub(crate) planned: Option<WindowPlan>,
}

/// The changes to write to a window.
pub(crate) struct WindowPlan {
    pub(crate) events: EventEdit,
    reservation: Option<OwnedReservation>,
    /// The ban after the call, or the mark of a past one.
    ban: Option<Ban>,
    /// The call gives back: reservations and the TTL stay as they are.
    gives_back: bool,
}

impl WindowPlan {
    /// Returns the edit of the key, whose events `count` counts.
    #[inline(always)]
    pub(super) fn edit<'p>(&'p self, count: &'p WindowCount) -> WindowEdit<'p> {
        WindowEdit {
            events: &self.events,
            reservation: self.reservation.as_ref().map(Reservation::borrowed),
            settled: &[],
            clean: !self.gives_back,
            ban: self.ban,
            expiry: (!self.gives_back).then(|| count.expiry()),
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
        limit: &'r WindowLimit,
    ) -> WindowState<'r, S> {
        WindowState {
            request,
            limit,
            reservation: request.limit.reservation(),
            key: store.window(),
            store,
            count: WindowCount::default(),
            ban: BanNow::default(),
            barred: false,
            planned: None,
        }
    }

    /// Returns the use of the limit now.
    fn usage(&self) -> WindowUsage {
        let held = self.key.reservations().total();
        WindowUsage { limit: self.limit.max, counted: self.count.counted(), held }
    }

    /// Returns the verdict with its times. Only RL.ACQUIRE distinguishes held from counted.
    fn verdict(&mut self, untimed: UntimedVerdict) -> Result<Verdict, S::Error> {
        let verdict = match untimed {
            UntimedVerdict::Allowed(taken) => Verdict::taking(taken),
            UntimedVerdict::Never => Verdict::Never,
            UntimedVerdict::Denied { need, obstacle } => {
                let obstacle =
                    if self.reservation.is_some() { obstacle } else { Obstacle::Counted };
                let (events, reservations) = self.key.split();
                let freed_us = freed_at_us(events, &self.count, reservations, need)?;
                let now_us = self.count.rule_now().now_us();
                let wait_us = freed_us.map_or(0, |then_us| then_us.saturating_sub(now_us)).max(1);
                let verdict = Verdict::Denied { wait_us, obstacle };
                if self.barred {
                    verdict.deny_in_line(obstacle)
                } else {
                    verdict
                }
            }
        };
        let bannable = self.request.ask.takes_unforced();
        Ok(if bannable { verdict.deny_for_ban(self.ban.left_us()) } else { verdict })
    }

    /// Returns the decision about a call with this verdict, after the changes that are planned.
    // Inlined so that the large decision is not copied.
    #[inline(always)]
    pub(super) fn decision(&mut self, verdict: Verdict) -> Decision {
        let mut after = self.usage();
        let mut empty_at_us = self.count.empty_at_us().max(self.key.reservations().last_gone_us());
        let with_running = self.reservation.is_some() && self.request.ask.manner == Manner::AtMost;
        let mut running = with_running.then(|| self.key.reservations_mut().running());
        let new = self.planned.as_ref().and_then(|planned| planned.reservation.as_ref());
        if let Some(new) = new {
            after.held = after.held.saturating_add(u128::from(new.quantity));
            empty_at_us = empty_at_us.max(Some(new.gone_us));
            running = running.map(|running| running.saturating_add(1));
        }
        let now_us = self.count.rule_now().now_us();
        let reset_after_us = empty_at_us.map_or(0, |then_us| then_us.saturating_sub(now_us));
        Decision {
            verdict,
            limit: after.limit,
            remaining: if self.ban.runs() { 0 } else { after.remaining() },
            reset_after_us: reset_after_us.max(self.ban.left_us()),
            id: new.map(|new| new.id),
            running,
            earliest_grant_us: None,
        }
    }

    /// Begins a ban of `ban_ms` if the counted events leave less than the quantity of the request, and something was granted
    /// since the last ban.
    #[inline(always)]
    fn begin_ban(&mut self, verdict: Verdict, ban_ms: Option<u64>) {
        let Some(length_ms) = ban_ms else { return };
        let usage = self.usage();
        let leaves_less =
            usage.limit.saturating_sub(usage.counted) < self.request.ask.quantity.wanted();
        if matches!(verdict, Verdict::Denied { .. }) && leaves_less && self.ban.may_begin() {
            self.ban = BanNow::starting(self.count.rule_now().now_us(), length_ms);
        }
    }

    /// Returns the ban, or the mark of one, that stays after a call that is granted, or that gives back.
    fn ban_after_grant(&self) -> Option<Ban> {
        self.ban.ban_after(self.request.ask.takes_unforced(), self.is_clear())
    }

    /// Returns whether nothing is counted or held.
    fn is_clear(&self) -> bool {
        let usage = self.usage();
        usage.counted == 0 && usage.held == 0
    }

    /// Plans a change of the events that count, and this ban after it.
    fn plan_events(
        &mut self,
        change: EventChange,
        ban: Option<Ban>,
    ) -> Result<&mut WindowPlan, S::Error> {
        let events = self.count.plan(self.key.events(), change, self.store.max_healed())?;
        Ok(self.planned.insert(WindowPlan { events, reservation: None, ban, gives_back: false }))
    }

    /// Returns the time at which the key's ban is over, in Unix microseconds. This is now if no ban runs.
    fn open_at_us(&self) -> u64 {
        self.count.rule_now().now_us().saturating_add(self.ban.left_us())
    }

    /// Plans to count `quantity` as an event.
    fn record(&mut self, quantity: u64) -> Result<(), S::Error> {
        let sum = u128::from(self.count.counted()).saturating_add(u128::from(quantity));
        if self.request.ask.manner == Manner::Force && sum > u128::from(MAX_SUM) {
            return Err(Refusal::SumTooLarge.into());
        }
        let max = self.limit.max;
        let event = EventChange::Record { weight: quantity, denied: false, limit: max };
        self.plan_events(event, self.ban_after_grant())?;
        Ok(())
    }

    /// Plans a reservation of `quantity`.
    fn reserve(
        &mut self,
        new: &NewReservation,
        quantity: u64,
        new_id: impl FnOnce() -> Id,
    ) -> Result<(), S::Error> {
        let (now_us, lease_ms) = (self.count.rule_now().now_us(), new.lease_ms);
        let order_us = self.key.reservations().next_order_us(now_us);
        let lease_end_us = lease_end_us(now_us, lease_ms);
        let gone_us = self.store.gone_us(&self.limit.rule, lease_end_us, new.count_lapsed)?;
        let rule = self.store.write_rule(&self.limit.rule);
        let planned = self.plan_events(EventChange::DropDead, self.ban_after_grant())?;
        let id = new.id.unwrap_or_else(new_id);
        let reservation =
            Reservation { id, quantity, lease_ms, lease_end_us, gone_us, order_us, rule };
        planned.reservation = Some(reservation);
        Ok(())
    }

    /// Plans to give back at most `quantity` of the counted events.
    fn give_back(&mut self, quantity: u64) -> Result<(), S::Error> {
        if self.count.counted() == 0 {
            return Ok(());
        }
        let events = EventChange::Uncount { quantity };
        let events = self.count.plan(self.key.events(), events, self.store.max_healed())?;
        // The key may be clear only now.
        let ban = self.ban_after_grant();
        self.planned = Some(WindowPlan { events, reservation: None, ban, gives_back: true });
        Ok(())
    }

    /// Reads the key and judges the request. With `barred` a waiter comes first.
    pub(super) fn judge(&mut self, barred: bool) -> Result<Verdict, S::Error> {
        self.barred = barred;
        check_clock(self.store.now_us())?;
        let rule_now = self.store.rule_now(&self.limit.rule).ok_or(Refusal::Clock)?;
        let rule_now = rule_now.with_entries(self.limit.max_entries);
        self.key.read(self.request.id())?;
        if self.key.reservations().has_id() {
            return Err(Refusal::Duplicate.into());
        }
        if let Some(ban) = self.key.ban() {
            self.ban = BanNow::at(Some(ban), rule_now.now_us());
        }
        self.count = WindowCount::read(self.key.events(), rule_now)?;
        if self.ban.ban_or_mark().is_some() && self.is_clear() {
            self.ban.end_mark();
        }
        let untimed = self.usage().judge(&self.request.ask, self.barred);
        self.verdict(untimed)
    }

    /// Refuses a reservation if the key holds as many as it may.
    pub(super) fn check_room(&self, verdict: Verdict) -> Result<(), Refusal> {
        let makes_one = matches!(verdict, Verdict::Allowed { taken: 1.., .. });
        let Some(new) = self.reservation.filter(|_| makes_one) else { return Ok(()) };
        match u64::try_from(self.key.reservations().live_len()) {
            Ok(live) if live < new.max_reservations => Ok(()),
            Ok(_) | Err(_) => Err(Refusal::TooManyReservations),
        }
    }

    /// Returns the earliest grant in Unix microseconds, ignoring reservations and waiters. `None` if there is none.
    pub(super) fn earliest_grant_us(&mut self) -> Result<Option<u64>, S::Error> {
        match (WindowUsage { held: 0, ..self.usage() }).judge(&self.request.ask, false) {
            UntimedVerdict::Never => Ok(None),
            UntimedVerdict::Allowed(_) => Ok(Some(self.open_at_us())),
            UntimedVerdict::Denied { need, .. } => {
                let none = Reservations::default();
                let freed_us = freed_at_us(self.key.events(), &self.count, &none, need)?;
                Ok(freed_us.map(|freed_us| freed_us.max(self.open_at_us())))
            }
        }
    }

    /// Returns whether a denial of this request counts (COUNTDENIED).
    pub(crate) fn counts_denial(&self) -> bool {
        let (ask, max) = (&self.request.ask, self.limit.max);
        self.request.count_denied
            && ask.quantity.takes()
            && ask.quantity.wanted() <= max
            && ask.min_available(max).is_some()
            && (self.ban.runs() || !self.usage().only_leave_denies(ask))
    }

    /// Plans what to write, and returns the verdict after it.
    pub(super) fn plan(
        &mut self,
        verdict: Verdict,
        action: Action,
        new_id: impl FnOnce() -> Id,
    ) -> Result<Verdict, S::Error> {
        match action {
            Action::Look => Ok(verdict),
            Action::Grant => self.grant(verdict, new_id),
            Action::Deny { counts: true, ban_ms } if self.counts_denial() => {
                self.count_denial(verdict, ban_ms)
            }
            Action::Deny { ban_ms, .. } => self.deny(verdict, ban_ms),
        }
    }

    fn grant(
        &mut self,
        verdict: Verdict,
        new_id: impl FnOnce() -> Id,
    ) -> Result<Verdict, S::Error> {
        match (self.request.ask.quantity, self.reservation) {
            (Quantity::Look, _) => {}
            (Quantity::GiveBack(quantity), _) => self.give_back(quantity)?,
            (Quantity::Take(_), None) => self.record(verdict.taken())?,
            (Quantity::Take(_), Some(new)) => self.reserve(new, verdict.taken(), new_id)?,
        }
        Ok(verdict)
    }

    fn deny(&mut self, verdict: Verdict, ban_ms: Option<u64>) -> Result<Verdict, S::Error> {
        if !self.request.takes() || verdict == Verdict::Never {
            return Ok(verdict);
        }
        self.begin_ban(verdict, ban_ms);
        let ban = self.ban.ban_or_mark();
        // A mark that is gone may stay stored until the next write.
        let is_new_ban = ban.is_some() && ban != self.key.ban();
        if is_new_ban || self.key.reservations().must_write() || self.count.has_future() {
            self.plan_events(EventChange::Heal, ban)?;
        }
        Ok(verdict.deny_for_ban(self.ban.left_us()))
    }

    fn count_denial(&mut self, verdict: Verdict, ban_ms: Option<u64>) -> Result<Verdict, S::Error> {
        // Like the verdict, the ban is decided before the denial counts.
        self.begin_ban(verdict, ban_ms);
        let ban = self.ban.ban_or_mark();
        let (ask, max) = (&self.request.ask, self.limit.max);
        let event = EventChange::Record { weight: ask.quantity.wanted(), denied: true, limit: max };
        self.plan_events(event, ban)?;
        let untimed = self.usage().judge(ask, self.barred);
        self.verdict(untimed)
    }
}
