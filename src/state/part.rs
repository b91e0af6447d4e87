//! One limit on one key, for one call: opened, read and judged; then exactly one of granted, denied, counted though
//! denied, or looked at; then written.
//!
//! ```text
//! open --> read ---> verdict --grant | deny | count_denial | look--> decision --write-->
//!          may fail            may fail                                         cannot be refused
//! ```
//!
//! What is large stays in its place from reading to writing: moving it from state to state costs as much as deciding.

use super::bucket::BucketKey;
use super::window::{Change, WindowKey};
use super::{Intent, Spot};
use crate::error::Error;
use crate::limit::decision::{Ask, Decision, Manner, Quantity, Verdict};
use crate::limit::event::{LAST_US, MAX_SUM};
use crate::limit::request::{Limit, Request, Reserve, WindowLimit};
use crate::limit::reservation::{end_us, Id, Reservation};
use crate::limit::rule::Moment;
use crate::limit::throttle::Next;
use crate::limit::window::{Judgement, Tally, Use};
use crate::zones::zones;

/// A request on its key: judged, once it was [read](Judged::read), and then decided.
pub struct Judged<'c> {
    request: &'c Request,
    spot: Spot<'c>,
    verdict: Verdict,
    opened: Opened<'c>,
    /// What the call is told, once that is known.
    decision: Option<Decision>,
    write: Write,
}

#[expect(clippy::large_enum_variant, reason = "a call allocates nothing")]
enum Opened<'c> {
    Nothing,
    Bucket(BucketKey<'c>),
    Window(OpenWindow<'c>),
}

struct OpenWindow<'c> {
    key: WindowKey<'c>,
    tally: Tally,
    window: &'c WindowLimit,
    reserve: Option<&'c Reserve>,
    barred: bool,
    /// The id of the reservation that is made.
    new_id: Option<Id>,
}

/// What is to be written.
#[derive(Clone, Copy)]
enum Write {
    Nothing,
    Bucket(Next),
    Window {
        clean: bool,
        keep_ttl: bool,
        /// The place in the order of arrival of the reservation that is made.
        order_us: Option<u64>,
    },
}

impl Write {
    /// What a call that takes or heals writes.
    const WINDOW: Write = Write::Window { clean: true, keep_ttl: false, order_us: None };
}

impl<'c> OpenWindow<'c> {
    fn on(spot: Spot<'c>, window: &'c WindowLimit, moment: Moment, barred: bool) -> OpenWindow<'c> {
        let tally = Tally::nothing(moment.with_entries(window.most_entries));
        let key = WindowKey::unopened(spot);
        OpenWindow { key, tally, window, reserve: None, barred, new_id: None }
    }

    fn read(&mut self, ask: &Ask, intent: Intent) -> Result<Verdict, Error> {
        let id = self.reserve.and_then(|reserve| reserve.id.as_ref());
        self.key.read(intent, id.map(Id::as_bytes))?;
        if self.key.reservations().has_id() {
            return Err(Error::Duplicate);
        }
        self.key.count(&mut self.tally)?;
        let judgement = self.used().judge(ask, self.barred);
        let verdict = self.verdict(judgement)?;
        if let (Verdict::Allowed { taken: 1.., .. }, Some(reserve)) = (verdict, self.reserve) {
            if self.key.reservations().reach(reserve.most) {
                return Err(Error::TooManyReservations);
            }
        }
        Ok(verdict)
    }

    fn used(&self) -> Use {
        self.key.used(&self.tally, self.window.limit)
    }

    /// The verdict of a judgement. Only a reservation tells what is held from what is counted.
    fn verdict(&mut self, judgement: Judgement) -> Result<Verdict, Error> {
        let verdict = self.key.verdict(&self.tally, judgement, self.barred)?;
        Ok(if self.reserve.is_none() { verdict.as_counted() } else { verdict })
    }

    fn decide(&self, verdict: Verdict, held: Option<(u64, u64)>) -> Decision {
        self.key.decide(verdict, &self.tally, self.window.limit, held)
    }

    fn plan(&mut self, trims: bool) -> Result<(), Error> {
        self.key.plan(&mut self.tally, trims, self.window.most_entries)
    }
}

impl<'c> Judged<'c> {
    /// A request whose key is yet to be read.
    pub fn of(spot: Spot<'c>, request: &'c Request) -> Judged<'c> {
        Judged {
            request,
            spot,
            verdict: Verdict::Never,
            opened: Opened::Nothing,
            decision: None,
            write: Write::Nothing,
        }
    }

    /// Opens the key, reads it and judges the request. With `barred` others wait in line before it.
    pub fn read(&mut self, intent: Intent, barred: bool) -> Result<(), Error> {
        let Judged { request, spot, .. } = *self;
        // Later times are no exact scores.
        if spot.now_us > LAST_US {
            return Err(Error::Clock);
        }
        let ask = &request.ask;
        let barred = barred && request.takes() && ask.manner != Manner::Force;
        let (window, reserve) = match &request.limit {
            Limit::Bucket(rate) => {
                let key = BucketKey::open(spot, intent, rate)?;
                self.verdict = key.bucket.judge(ask, barred).map_err(|_| Error::DebtTooLong)?;
                self.opened = Opened::Bucket(key);
                return Ok(());
            }
            Limit::Window(window) => (window, None),
            Limit::Reserve(window, reserve) => (window, Some(reserve)),
        };
        let moment = zones(|zones| window.rule.at(spot.now_us, zones)).ok_or(Error::Clock)?;
        self.opened = Opened::Window(OpenWindow::on(spot, window, moment, barred));
        if let Opened::Window(open) = &mut self.opened {
            open.reserve = reserve;
            self.verdict = open.read(ask, intent)?;
        }
        Ok(())
    }

    /// The verdict.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// When the request could be granted if nothing were held and nobody waited, in Unix microseconds; `None` if never.
    pub fn alone_us(&mut self) -> Result<Option<u64>, Error> {
        let now_us = self.spot.now_us;
        match &mut self.opened {
            Opened::Nothing => Ok(None),
            Opened::Bucket(key) => {
                let alone = key.bucket.judge(&self.request.ask, false);
                Ok(match alone.map_err(|_| Error::DebtTooLong)? {
                    Verdict::Allowed { .. } => Some(now_us),
                    Verdict::Denied { wait_us, .. } => Some(now_us.saturating_add(wait_us)),
                    Verdict::Never => None,
                })
            }
            Opened::Window(open) => {
                let used = open.used();
                open.key.alone_us(&open.tally, &used, &self.request.ask)
            }
        }
    }

    /// Whether a denial of this request counts in its key (COUNTDENIED).
    pub fn counts_denial(&self) -> bool {
        let Opened::Window(open) = &self.opened else { return false };
        self.request.count_denied
            && self.request.takes()
            && self.request.ask.quantity.wanted() <= open.window.limit
            && self.request.ask.least(open.window.limit).is_some()
            && !open.used().only_leave_denies(&self.request.ask)
    }

    /// Decides to tell the call of the key as it stands, and to write nothing.
    pub fn look(&mut self) -> Result<(), Error> {
        self.decision = Some(match &self.opened {
            Opened::Nothing => return Err(Error::internal()),
            Opened::Bucket(key) => key.bucket.look(self.verdict),
            Opened::Window(open) => open.decide(self.verdict, None),
        });
        Ok(())
    }

    /// Carries out an allowed call. `new_id` makes the id of a reservation that the caller did not name.
    pub fn grant(&mut self, new_id: impl FnOnce() -> Id) -> Result<(), Error> {
        let (ask, verdict) = (&self.request.ask, self.verdict);
        let open = match &mut self.opened {
            Opened::Nothing => return Err(Error::internal()),
            Opened::Bucket(key) => {
                let (decision, next) = key.bucket.grant(ask, verdict);
                self.write = Write::Bucket(next);
                self.decision = Some(decision);
                return Ok(());
            }
            Opened::Window(open) => open,
        };
        let (decision, write) = match ask.quantity {
            Quantity::Look => return self.look(),
            Quantity::GiveBack(amount) => give_back(open, verdict, amount)?,
            Quantity::Take(_) => match open.reserve {
                Some(reserve) => hold(open, verdict, reserve, self.spot.now_us, new_id)?,
                None => count(open, verdict, ask)?,
            },
        };
        self.write = write;
        self.decision = Some(decision);
        Ok(())
    }

    /// Carries out a denied call: heals what a clock that went back left, and drops what lies in the way of every call.
    pub fn deny(&mut self) -> Result<(), Error> {
        let verdict = self.verdict;
        let open = match &mut self.opened {
            Opened::Nothing => return Err(Error::internal()),
            Opened::Bucket(key) => {
                let (decision, next) = key.bucket.deny(verdict);
                self.write = Write::Bucket(next);
                self.decision = Some(decision);
                return Ok(());
            }
            Opened::Window(open) => open,
        };
        self.decision = Some(open.decide(verdict, None));
        let heals = self.request.takes() && verdict != Verdict::Never;
        if heals && open.key.must_write(&open.tally) {
            open.plan(false)?;
            self.write = Write::WINDOW;
        }
        Ok(())
    }

    /// Carries out a denied call that counts.
    pub fn count_denial(&mut self) -> Result<(), Error> {
        let Opened::Window(open) = &mut self.opened else { return self.deny() };
        let ask = &self.request.ask;
        open.tally.record(ask.quantity.wanted(), true, open.window.limit);
        let judgement = open.used().judge(ask, open.barred);
        open.plan(true)?;
        let verdict = open.verdict(judgement)?;
        self.decision = Some(open.decide(verdict, None));
        self.write = Write::WINDOW;
        Ok(())
    }

    /// What the call is told, once it was decided.
    pub fn decision(&self) -> Result<Decision, Error> {
        self.decision.ok_or(Error::internal())
    }

    /// The id of the reservation that a grant makes.
    pub fn new_id(&self) -> Option<Id> {
        match &self.opened {
            Opened::Window(open) => open.new_id,
            Opened::Bucket(_) | Opened::Nothing => None,
        }
    }

    /// Writes and replicates what was decided; returns how many lapsed reservations were dropped.
    pub fn write(&mut self) -> Result<usize, Error> {
        match (&self.write, &mut self.opened) {
            (Write::Bucket(next), Opened::Bucket(key)) => {
                key.write(*next);
                Ok(0)
            }
            (Write::Window { clean, keep_ttl, order_us }, Opened::Window(open)) => {
                let (clean, keep_ttl) = (*clean, *keep_ttl);
                let Some(order_us) = *order_us else {
                    let change = Change { clean, keep_ttl, ..Change::default() };
                    return open.key.write(&open.tally, open.tally.planned(), change);
                };
                let OpenWindow { key, tally, window, reserve, new_id, .. } = open;
                let (Some(id), Some(reserve)) = (new_id, reserve) else {
                    return Err(Error::internal());
                };
                let rule = zones(|zones| window.rule.write(zones));
                let reserve = Some(Reservation {
                    id: id.as_bytes(),
                    quantity: self.verdict.taken(),
                    lease_ms: reserve.lease_ms,
                    end_us: end_us(self.spot.now_us, reserve.lease_ms),
                    order_us,
                    rule: rule.as_bytes(),
                });
                let change = Change { reserve, settle: None, clean, keep_ttl };
                key.write(tally, tally.planned(), change)
            }
            (Write::Nothing | Write::Bucket(_) | Write::Window { .. }, _) => Ok(0),
        }
    }
}

type Decided = Result<(Decision, Write), Error>;

fn count(open: &mut OpenWindow, verdict: Verdict, ask: &Ask) -> Decided {
    let taken = verdict.taken();
    let sum = u128::from(open.tally.counted()).saturating_add(u128::from(taken));
    if ask.manner == Manner::Force && sum > u128::from(MAX_SUM) {
        return Err(Error::SumTooLarge);
    }
    open.tally.record(taken, false, open.window.limit);
    open.plan(true)?;
    Ok((open.decide(verdict, None), Write::WINDOW))
}

fn give_back(open: &mut OpenWindow, verdict: Verdict, amount: u64) -> Decided {
    let found = open.key.uncount(&mut open.tally, amount)?;
    let decision = open.decide(verdict, None);
    if !found {
        return Ok((decision, Write::Nothing));
    }
    open.plan(false)?;
    Ok((decision, Write::Window { clean: false, keep_ttl: true, order_us: None }))
}

fn hold(
    open: &mut OpenWindow,
    verdict: Verdict,
    reserve: &Reserve,
    now_us: u64,
    new_id: impl FnOnce() -> Id,
) -> Decided {
    let order_us = open.key.reservations().next_order_us(now_us);
    open.new_id = Some(reserve.id.unwrap_or_else(new_id));
    open.plan(true)?;
    let held = Some((verdict.taken(), end_us(now_us, reserve.lease_ms)));
    let write = Write::Window { clean: true, keep_ttl: false, order_us: Some(order_us) };
    Ok((open.decide(verdict, held), write))
}
