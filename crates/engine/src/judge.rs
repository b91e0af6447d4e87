//! One limit on one key, for one call: read and judged; then exactly one of granted, denied, counted though denied, or
//! looked at, which gives a plan; then written.
//!
//! ```text
//! KeyRequest --judge--> Judged --grant | deny | count_denial | look--> Plan --apply-->
//!      may fail            may fail                                    cannot fail
//! ```
//!
//! Each step consumes the one before. What is large stays in [`KeyRequest`], which the others borrow: moving it from step to
//! step costs as much as deciding.

use super::ban::{Ban, BanNow};
use super::decision::{Decision, Manner, Quantity, Verdict};
use super::entry::MAX_SUM;
use super::held::{Leases, SortedLeases};
use super::request::{Limit, Request, Reserve, WindowLimit};
use super::reservation::{end_us, Id, Reservation};
use super::store::{BanEdit, BucketKey, Change, Refused, Reservations, Store, WindowKey};
use super::throttle::{Bucket, BucketEdit};
use super::window::{decision, freed_at_us, verdict, UntimedVerdict, WindowCount, WindowUse};

/// What a call may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A grant, and what heals. A denial counts for nothing, as the call goes on waiting.
    Try,
    /// All that, and a denial with COUNTDENIED.
    Final,
    /// Nothing.
    Look,
}

/// On which terms a request is carried out.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// What may be written.
    pub mode: Mode,
    /// It takes nothing where it is allowed (CHECK, or another limit of its group was chosen).
    pub check: bool,
    /// A denial may be counted (COUNTDENIED).
    pub may_count: bool,
    /// A denial may close the key (BAN).
    pub may_ban: bool,
}

impl Terms {
    /// Those of a single command.
    pub fn of(mode: Mode) -> Terms {
        Terms { mode, check: false, may_count: true, may_ban: true }
    }
}

/// A request and its key.
#[expect(clippy::large_enum_variant, reason = "a call allocates nothing")]
pub enum KeyRequest<'r, S: Store> {
    /// On a bucket.
    Bucket(BucketCall<'r, S>),
    /// On a window, or a semaphore.
    Window(WindowCall<'r, S>),
}

/// A request on a bucket.
pub struct BucketCall<'r, S: Store> {
    request: &'r Request,
    key: S::Bucket,
    bucket: Bucket<'r>,
}

/// A request on a window, or a semaphore.
pub struct WindowCall<'r, S: Store> {
    request: &'r Request,
    window: &'r WindowLimit,
    /// The reservation that a grant makes.
    reserve: Option<&'r Reserve>,
    store: S,
    key: S::Window,
    count: WindowCount,
    bans: BanNow,
    barred: bool,
    /// What is to be written once it is planned.
    planned: WindowWrite,
}

/// A request that was judged.
pub enum Judged<'c, 'r, S: Store> {
    /// On a bucket.
    Bucket(&'c mut BucketCall<'r, S>, Verdict),
    /// On a window.
    Window(&'c mut WindowCall<'r, S>, Verdict),
}

/// What is to be written, and what the caller is told.
pub struct Plan<'c, 'r, S: Store> {
    decision: Decision,
    write: PlannedWrite<'c, 'r, S>,
}

enum PlannedWrite<'c, 'r, S: Store> {
    Nothing,
    Bucket(&'c mut BucketCall<'r, S>, BucketEdit),
    /// What its call says.
    Window(&'c mut WindowCall<'r, S>),
}

/// A reservation that is made.
struct Made {
    id: Id,
    quantity: u64,
    lease_ms: u64,
    /// When its lease ends.
    end_us: u64,
    /// When it stops holding.
    gone_us: u64,
    /// Its place in the order of arrival.
    order_us: u64,
}

/// What is to be written to a window beside the entries of events.
struct WindowWrite {
    /// The reservation that is made.
    reserve: Option<Made>,
    ban: BanEdit,
    clean: bool,
    keep_ttl: bool,
}

impl WindowWrite {
    /// What a call that takes or heals writes.
    const USUAL: WindowWrite =
        WindowWrite { reserve: None, ban: BanEdit::Keep, clean: true, keep_ttl: false };
    /// What a call that gives back writes.
    const GIVEN_BACK: WindowWrite =
        WindowWrite { reserve: None, ban: BanEdit::Keep, clean: false, keep_ttl: true };
}

impl<'r, S: Store> KeyRequest<'r, S> {
    /// A request on a key that is yet to be read.
    pub fn new(store: S, request: &'r Request) -> KeyRequest<'r, S> {
        let (window, reserve) = match &request.limit {
            Limit::Bucket(rate) => {
                let (key, bucket) = (store.bucket(), Bucket::read(rate, None, store.now_us()));
                return KeyRequest::Bucket(BucketCall { request, key, bucket });
            }
            Limit::Window(window) => (window, None),
            Limit::Reserve(window, reserve) => (window, Some(reserve)),
        };
        let (key, count, bans) = (store.window(), WindowCount::default(), BanNow::default());
        KeyRequest::Window(WindowCall {
            request,
            window,
            reserve,
            store,
            key,
            count,
            bans,
            barred: false,
            planned: WindowWrite::USUAL,
        })
    }

    /// Opens the key, reads it and judges the request. With `barred` others wait in line before it.
    ///
    /// # Errors
    ///
    /// The key's own, [`Refused::Foreign`], [`Refused::Clock`], [`Refused::DebtTooLong`] and [`Refused::Duplicate`].
    pub fn judge(&mut self, barred: bool) -> Result<Judged<'_, 'r, S>, S::Error> {
        match self {
            KeyRequest::Bucket(call) => {
                let barred = is_barred(call.request, barred);
                let verdict = call.read(barred)?;
                Ok(Judged::Bucket(call, verdict))
            }
            KeyRequest::Window(call) => {
                call.barred = is_barred(call.request, barred);
                let verdict = call.read()?;
                Ok(Judged::Window(call, verdict))
            }
        }
    }
}

impl<'r, S: Store> KeyRequest<'r, S> {
    /// The request as it was judged, with this verdict.
    pub(crate) fn judged(&mut self, verdict: Verdict) -> Judged<'_, 'r, S> {
        match self {
            KeyRequest::Bucket(call) => Judged::Bucket(call, verdict),
            KeyRequest::Window(call) => Judged::Window(call, verdict),
        }
    }
}

/// Only what takes is ever barred.
fn is_barred(request: &Request, barred: bool) -> bool {
    barred && request.takes() && request.ask.manner != Manner::Force
}

impl<S: Store> BucketCall<'_, S> {
    fn read(&mut self, barred: bool) -> Result<Verdict, S::Error> {
        Refused::check_clock(self.bucket.now_us())?;
        if let Some(stored) = self.key.read()? {
            self.bucket.set(stored);
        }
        Ok(self.bucket.judge(&self.request.ask, barred)?)
    }
}

impl<'r, S: Store> WindowCall<'r, S> {
    fn read(&mut self) -> Result<Verdict, S::Error> {
        Refused::check_clock(self.store.now_us())?;
        let moment = self.store.moment(&self.window.rule).ok_or(Refused::Clock)?;
        let moment = moment.with_entries(self.window.most_entries);
        self.key.read(self.reserve.and_then(|reserve| reserve.id.as_ref()).map(Id::as_bytes))?;
        if self.key.reservations().has_id() {
            return Err(Refused::Duplicate.into());
        }
        if let Some(ban) = self.key.ban() {
            self.bans = BanNow::at(Some(ban), moment.now_us());
        }
        self.count.begin(moment);
        if moment.counts() {
            self.count.count(&mut self.key.events())?;
        }
        let untimed = self.used().judge(&self.request.ask, self.barred);
        self.verdict(untimed)
    }

    fn used(&self) -> WindowUse {
        let held = self.key.reservations().total();
        WindowUse { limit: self.window.limit, counted: self.count.counted(), held }
    }

    /// The verdict with its times. Only a reservation tells what is held from what is counted.
    fn verdict(&mut self, untimed: UntimedVerdict) -> Result<Verdict, S::Error> {
        let (mut events, reservations) = self.key.split();
        let verdict = verdict(&mut events, &self.count, reservations, untimed, self.barred)?;
        let verdict = if self.reserve.is_none() { verdict.as_counted() } else { verdict };
        let takes = self.request.takes() && self.request.ask.manner != Manner::Force;
        Ok(if takes { verdict.closed_for(self.bans.left_us()) } else { verdict })
    }

    /// What a call with this verdict is told of the key as it stands, or will stand with a reservation of so much that
    /// holds until that time.
    fn decision(&self, verdict: Verdict, reserved: Option<(u64, u64)>) -> Decision {
        let mut after = self.used();
        let mut empty_at_us = self.count.empty_at_us().max(self.key.reservations().last_end_us());
        if let Some((quantity, gone_us)) = reserved {
            after.held = after.held.saturating_add(u128::from(quantity));
            empty_at_us = empty_at_us.max(Some(gone_us));
        }
        let mut decision = decision(verdict, &after, self.count.moment().now_us(), empty_at_us);
        if self.bans.runs() {
            decision.remaining = 0;
            decision.reset_after_us = decision.reset_after_us.max(self.bans.left_us());
        }
        decision
    }

    /// The ban that a denial of this request begins: where what is counted leaves less than its quantity, and nothing was
    /// granted since the last ban.
    fn begin_ban(&mut self, verdict: Verdict, length_ms: u64) -> Option<Ban> {
        let used = self.used();
        let leaves_less =
            used.limit.saturating_sub(used.counted) < self.request.ask.quantity.wanted();
        let denied = matches!(verdict, Verdict::Denied { .. });
        if !denied || !leaves_less || !self.bans.permits(self.is_as_new()) {
            return None;
        }
        self.bans = BanNow::starting(self.count.moment().now_us(), length_ms);
        self.bans.seen()
    }

    /// What becomes of the ban in a granted call, or one that gives back.
    fn ban_edit(&self) -> BanEdit {
        let ask = &self.request.ask;
        let granted = ask.quantity.takes() && ask.manner != Manner::Force;
        match self.bans.kept(granted, self.is_as_new()) {
            None if self.bans.seen().is_some() => BanEdit::Remove,
            None | Some(_) => self.healed_ban(),
        }
    }

    /// Whether nothing is counted or held.
    fn is_as_new(&self) -> bool {
        let used = self.used();
        used.counted == 0 && used.held == 0
    }

    /// The ban as it is seen now, where a clock went back.
    fn healed_ban(&self) -> BanEdit {
        let seen = self.bans.seen().filter(|_| self.bans.from_future());
        seen.map_or(BanEdit::Keep, BanEdit::Put)
    }

    /// Plans what is to be written to the events, and drops dead ones with it if `trims`. All that will be removed is
    /// ours, or this is an error.
    fn plan(&mut self, trims: bool) -> Result<(), S::Error> {
        let mut events = self.key.events();
        if trims {
            self.count.trim(&mut events, self.window.most_entries)?;
        }
        self.count.edit(&mut events, self.store.heal_most())?;
        Ok(())
    }

    /// Whether a denial of this request counts in its key (COUNTDENIED).
    fn counts_denial(&self) -> bool {
        let (ask, limit) = (&self.request.ask, self.window.limit);
        self.request.count_denied
            && ask.quantity.takes()
            && ask.quantity.wanted() <= limit
            && ask.least(limit).is_some()
            && (self.bans.runs() || !self.used().only_leave_denies(ask))
    }

    /// When the request could be granted if nothing were held and nobody waited; `None` if never.
    fn earliest_grant_us(&mut self) -> Result<Option<u64>, S::Error> {
        match self.used().judge_alone(&self.request.ask) {
            UntimedVerdict::Never => Ok(None),
            UntimedVerdict::Allowed(_) => Ok(Some(self.open_at_us())),
            UntimedVerdict::Wanting { need, .. } => {
                let held = SortedLeases::default();
                let freed_us = freed_at_us(&mut self.key.events(), &self.count, &held, need)?;
                Ok(freed_us.map(|freed_us| freed_us.max(self.open_at_us())))
            }
        }
    }

    /// When its ban is over; now if none runs.
    fn open_at_us(&self) -> u64 {
        self.count.moment().now_us().saturating_add(self.bans.left_us())
    }

    /// Counts `taken` in the window.
    fn record(&mut self, taken: u64) -> Result<(), S::Error> {
        let sum = u128::from(self.count.counted()).saturating_add(u128::from(taken));
        if self.request.ask.manner == Manner::Force && sum > u128::from(MAX_SUM) {
            return Err(Refused::SumTooLarge.into());
        }
        self.planned.ban = self.ban_edit();
        self.count.record(taken, false, self.window.limit);
        self.plan(true)
    }

    fn write(&mut self) -> usize {
        let WindowWrite { reserve, ban, clean, keep_ttl } = &self.planned;
        let rule = reserve.as_ref().map(|_| self.store.write_rule(&self.window.rule));
        let reserve = match (reserve, &rule) {
            (Some(made), Some(rule)) => Some(Reservation {
                id: made.id.as_bytes(),
                quantity: made.quantity,
                lease_ms: made.lease_ms,
                end_us: made.end_us,
                gone_us: made.gone_us,
                order_us: made.order_us,
                rule: rule.as_bytes(),
            }),
            _ => None,
        };
        let expiry = (!keep_ttl).then(|| self.count.expiry());
        let edit = self.count.planned();
        self.key.write(Change { edit, reserve, settle: None, clean: *clean, ban: *ban, expiry })
    }
}

impl<'c, 'r, S: Store> Judged<'c, 'r, S> {
    /// The verdict.
    pub fn verdict(&self) -> Verdict {
        match self {
            Judged::Bucket(_, verdict) | Judged::Window(_, verdict) => *verdict,
        }
    }

    /// Refuses to make one reservation more than the key may hold.
    ///
    /// # Errors
    ///
    /// [`Refused::TooManyReservations`].
    pub fn check_room(&self) -> Result<(), Refused> {
        let Judged::Window(call, Verdict::Allowed { taken: 1.., .. }) = self else { return Ok(()) };
        match call.reserve {
            Some(reserve) if call.key.reservations().reach(reserve.most) => {
                Err(Refused::TooManyReservations)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The earliest grant in Unix microseconds, ignoring reservations and waiters; `None` if never.
    ///
    /// # Errors
    ///
    /// The key's own.
    pub fn earliest_grant_us(&mut self) -> Result<Option<u64>, S::Error> {
        match self {
            // A ban is part of its verdict.
            Judged::Bucket(call, _) => {
                let now_us = call.bucket.now_us();
                Ok(match call.bucket.judge(&call.request.ask, false)? {
                    Verdict::Allowed { .. } => Some(now_us),
                    Verdict::Denied { wait_us, .. } => Some(now_us.saturating_add(wait_us)),
                    Verdict::Never => None,
                })
            }
            Judged::Window(call, _) => call.earliest_grant_us(),
        }
    }

    /// How many reservations of the key have a lease that runs, where the call makes one and is to be told (ATMOST).
    pub fn running(&mut self) -> Option<usize> {
        match self {
            Judged::Window(call, _)
                if call.reserve.is_some() && call.request.ask.manner == Manner::AtMost =>
            {
                Some(call.key.running())
            }
            Judged::Window(..) | Judged::Bucket(..) => None,
        }
    }

    /// What the window counts; `None` for a bucket.
    pub fn count(&self) -> Option<&WindowCount> {
        match self {
            Judged::Bucket(..) => None,
            Judged::Window(call, _) => Some(&call.count),
        }
    }

    /// Whether a denial of this request counts in its key (COUNTDENIED).
    pub fn counts_denial(&self) -> bool {
        match self {
            Judged::Bucket(..) => false,
            Judged::Window(call, _) => call.counts_denial(),
        }
    }

    /// Plans what follows from the verdict, in a call that is allowed as a whole or not.
    ///
    /// # Errors
    ///
    /// The key's own, and [`Refused::SumTooLarge`].
    pub fn plan(
        self,
        terms: Terms,
        call_allowed: bool,
        new_id: impl FnOnce() -> Id,
    ) -> Result<Plan<'c, 'r, S>, S::Error> {
        let granted = call_allowed && self.verdict().allowed();
        let ban_ms = self.request().ban_ms.filter(|_| terms.may_ban && !call_allowed);
        match terms.mode {
            Mode::Look => Ok(self.look()),
            Mode::Try | Mode::Final if granted && terms.check => Ok(self.look()),
            Mode::Try | Mode::Final if granted => self.grant(new_id),
            Mode::Final if !call_allowed && terms.may_count && self.counts_denial() => {
                self.count_denial(ban_ms)
            }
            Mode::Final => self.deny(ban_ms),
            Mode::Try => self.deny(None),
        }
    }

    fn request(&self) -> &'r Request {
        match self {
            Judged::Bucket(call, _) => call.request,
            Judged::Window(call, _) => call.request,
        }
    }

    /// Tells the call of the key as it stands, and writes nothing.
    pub fn look(self) -> Plan<'c, 'r, S> {
        let decision = match self {
            Judged::Bucket(call, verdict) => call.bucket.look(verdict),
            Judged::Window(call, verdict) => call.decision(verdict, None),
        };
        Plan { decision, write: PlannedWrite::Nothing }
    }

    /// Grants an allowed call. `new_id` makes the id of a reservation that the caller did not name.
    ///
    /// # Errors
    ///
    /// The key's own, and [`Refused::SumTooLarge`].
    pub fn grant(self, new_id: impl FnOnce() -> Id) -> Result<Plan<'c, 'r, S>, S::Error> {
        let (call, verdict) = match self {
            Judged::Bucket(call, verdict) => {
                let (decision, next) = call.bucket.grant(&call.request.ask, verdict);
                return Ok(Plan { decision, write: PlannedWrite::Bucket(call, next) });
            }
            Judged::Window(call, verdict) => (call, verdict),
        };
        let mut reserved = None;
        match (call.request.ask.quantity, call.reserve) {
            (Quantity::Look, _) => return Ok(Judged::Window(call, verdict).look()),
            (Quantity::GiveBack(amount), _) => {
                let found = call.count.uncount(&mut call.key.events(), amount)?;
                if !found {
                    return Ok(Judged::Window(call, verdict).look());
                }
                call.count.close_gap(&mut call.key.events())?;
                call.plan(false)?;
                call.planned = WindowWrite { ban: call.ban_edit(), ..WindowWrite::GIVEN_BACK };
            }
            (Quantity::Take(_), None) => call.record(verdict.taken())?,
            (Quantity::Take(_), Some(reserve)) => {
                let now_us = call.count.moment().now_us();
                let order_us = call.key.reservations().next_order_us(now_us);
                let end_us = end_us(now_us, reserve.lease_ms);
                let gone_us = match reserve.count_lapsed {
                    true => {
                        call.store.leaves_us(&call.window.rule, end_us).ok_or(Refused::Clock)?
                    }
                    false => end_us,
                };
                call.plan(true)?;
                let (quantity, lease_ms) = (verdict.taken(), reserve.lease_ms);
                let id = reserve.id.unwrap_or_else(new_id);
                reserved = Some((quantity, gone_us));
                call.planned.ban = call.ban_edit();
                call.planned.reserve =
                    Some(Made { id, quantity, lease_ms, end_us, gone_us, order_us });
            }
        }
        let decision = call.decision(verdict, reserved);
        Ok(Plan { decision, write: PlannedWrite::Window(call) })
    }

    /// Denies a call: heals what a clock that went back left, and drops what lies in the way of every call. With `ban_ms` the
    /// denial may close the key for so long.
    ///
    /// # Errors
    ///
    /// The key's own.
    pub fn deny(self, ban_ms: Option<u64>) -> Result<Plan<'c, 'r, S>, S::Error> {
        let (call, verdict) = match self {
            // Of a call that is denied elsewhere: a quantity of 0 only looks.
            Judged::Bucket(call, verdict) if !call.request.takes() => {
                return Ok(Judged::Bucket(call, verdict).look());
            }
            Judged::Bucket(call, verdict) => {
                let (decision, next) = match ban_ms {
                    None => call.bucket.deny(verdict),
                    Some(ms) => call.bucket.deny_and_ban(&call.request.ask, verdict, ms),
                };
                return Ok(Plan { decision, write: PlannedWrite::Bucket(call, next) });
            }
            Judged::Window(call, verdict) => (call, verdict),
        };
        let heals = call.request.takes() && verdict != Verdict::Never;
        let mut writes = call.count.has_future()
            || call.key.reservations().must_write()
            || call.bans.from_future();
        let mut ban = call.healed_ban();
        if let Some(began) = ban_ms.and_then(|ms| call.begin_ban(verdict, ms)) {
            (ban, writes) = (BanEdit::Put(began), true);
        }
        let told = if heals { verdict.closed_for(call.bans.left_us()) } else { verdict };
        let decision = call.decision(told, None);
        if heals && writes {
            call.plan(false)?;
            call.planned.ban = ban;
            return Ok(Plan { decision, write: PlannedWrite::Window(call) });
        }
        Ok(Plan { decision, write: PlannedWrite::Nothing })
    }

    /// Denies a call that counts though it is denied. With `ban_ms` the denial may close the key for so long.
    ///
    /// # Errors
    ///
    /// The key's own.
    pub fn count_denial(self, ban_ms: Option<u64>) -> Result<Plan<'c, 'r, S>, S::Error> {
        let Judged::Window(call, verdict) = self else { return self.deny(ban_ms) };
        let ask = &call.request.ask;
        let mut ban = call.healed_ban();
        // Whether it bans is decided before it counts, as whether it is denied is.
        if let Some(began) = ban_ms.and_then(|ms| call.begin_ban(verdict, ms)) {
            ban = BanEdit::Put(began);
        }
        call.count.record(ask.quantity.wanted(), true, call.window.limit);
        let untimed = call.used().judge(ask, call.barred);
        call.plan(true)?;
        let verdict = call.verdict(untimed)?;
        let decision = call.decision(verdict, None);
        call.planned.ban = ban;
        Ok(Plan { decision, write: PlannedWrite::Window(call) })
    }
}

impl<S: Store> Plan<'_, '_, S> {
    /// What the caller is told.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// What the window counts after the call; `None` for a bucket, and where nothing is written.
    pub fn count(&self) -> Option<&WindowCount> {
        match &self.write {
            PlannedWrite::Window(call) => Some(&call.count),
            PlannedWrite::Bucket(..) | PlannedWrite::Nothing => None,
        }
    }

    /// The id of the reservation that a grant makes.
    pub fn id(&self) -> Option<&Id> {
        match &self.write {
            PlannedWrite::Window(call) => call.planned.reserve.as_ref().map(|made| &made.id),
            PlannedWrite::Bucket(..) | PlannedWrite::Nothing => None,
        }
    }

    /// Writes and replicates what was planned; returns how many lapsed reservations were dropped.
    pub fn apply(self) -> usize {
        match self.write {
            PlannedWrite::Nothing => 0,
            PlannedWrite::Bucket(call, next) => {
                call.key.write(next);
                0
            }
            PlannedWrite::Window(call) => call.write(),
        }
    }
}
