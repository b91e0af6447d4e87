//! One limit on one key, for one call: opened, read and judged; then exactly one of granted, denied, counted though
//! denied, or looked at; then written.
//!
//! ```text
//! Part::read --> Judged --grant | deny | count_denial | look--> Planned --write-->
//! may fail       verdict  may fail                              answer    cannot be refused
//! ```

use super::bucket::BucketKey;
use super::window::{Change, WindowKey};
use super::{Intent, Spot};
use crate::error::Error;
use crate::limit::decision::{Ask, Decision, Manner, Quantity, Verdict};
use crate::limit::event::{LAST_US, MAX_SUM};
use crate::limit::request::{Limit, Request, Reserve, WindowLimit};
use crate::limit::reservation::{end_us, Id, Reservation};
use crate::limit::rule::RuleText;
use crate::limit::throttle::Next;
use crate::limit::window::{Edit, Judgement, Tally, Use};
use crate::zones::zones;

/// A request that was judged on its key.
pub struct Judged<'c> {
    request: Request,
    spot: Spot<'c>,
    verdict: Verdict,
    opened: Opened<'c>,
}

enum Opened<'c> {
    Bucket(BucketKey<'c>),
    Window(OpenWindow<'c>),
}

struct OpenWindow<'c> {
    key: WindowKey<'c>,
    tally: Tally,
    window: WindowLimit,
    reserve: Option<Reserve>,
    barred: bool,
}

/// What a call is told, and what is to be written for it.
pub struct Planned<'c> {
    /// The numbers of the answer.
    pub decision: Decision,
    /// The id of the reservation that was made.
    pub id: Option<Id>,
    write: Write<'c>,
}

enum Write<'c> {
    Bucket(BucketKey<'c>, Next),
    Window(WindowWrite<'c>),
    Nothing,
}

struct WindowWrite<'c> {
    key: WindowKey<'c>,
    tally: Tally,
    edit: Edit,
    clean: bool,
    keep_ttl: bool,
    reserve: Option<NewReservation>,
}

/// A reservation that a grant makes.
struct NewReservation {
    id: Id,
    quantity: u64,
    lease_ms: u64,
    end_us: u64,
    order_us: u64,
    rule: RuleText,
}

impl NewReservation {
    fn reservation(&self) -> Reservation<'_> {
        Reservation {
            id: self.id.as_bytes(),
            quantity: self.quantity,
            lease_ms: self.lease_ms,
            end_us: self.end_us,
            order_us: self.order_us,
            rule: self.rule.as_bytes(),
        }
    }
}

/// Opens the key of a request, reads it and judges the request. With `barred` others wait in line before it.
pub fn read<'c>(
    spot: Spot<'c>,
    request: &Request,
    intent: Intent,
    barred: bool,
) -> Result<Judged<'c>, Error> {
    // Later times are no exact scores.
    if spot.now_us > LAST_US {
        return Err(Error::Clock);
    }
    let barred = barred && request.takes() && request.ask.manner != Manner::Force;
    let (opened, verdict) = match request.limit {
        Limit::Bucket(rate) => {
            let key = BucketKey::open(spot, intent, &rate)?;
            let verdict = key.bucket.judge(&request.ask, barred).map_err(|_| Error::DebtTooLong)?;
            (Opened::Bucket(key), verdict)
        }
        Limit::Window(window) => read_window(spot, request, intent, barred, window, None)?,
        Limit::Reserve(window, reserve) => {
            read_window(spot, request, intent, barred, window, Some(reserve))?
        }
    };
    Ok(Judged { request: *request, spot, verdict, opened })
}

fn read_window<'c>(
    spot: Spot<'c>,
    request: &Request,
    intent: Intent,
    barred: bool,
    window: WindowLimit,
    reserve: Option<Reserve>,
) -> Result<(Opened<'c>, Verdict), Error> {
    let moment = zones(|zones| window.rule.at(spot.now_us, zones)).ok_or(Error::Clock)?;
    let id = reserve.and_then(|reserve| reserve.id);
    let mut key = WindowKey::open(spot, intent, id.as_ref().map(Id::as_bytes))?;
    if key.reservations().has_id() {
        return Err(Error::Duplicate);
    }
    let tally = key.tally(moment.with_entries(window.most_entries))?;
    let mut open = OpenWindow { key, tally, window, reserve, barred };
    let judgement = open.used().judge(&request.ask, barred);
    let verdict = open.verdict(judgement)?;
    if let (Verdict::Allowed { taken: 1.., .. }, Some(Reserve { most, .. })) = (verdict, reserve) {
        if open.key.reservations().reach(most) {
            return Err(Error::TooManyReservations);
        }
    }
    Ok((Opened::Window(open), verdict))
}

impl OpenWindow<'_> {
    fn used(&self) -> Use {
        self.key.used(&self.tally, self.window.limit)
    }

    /// The verdict of a judgement. Only a reservation tells what is held from what is counted.
    fn verdict(&mut self, judgement: Judgement) -> Result<Verdict, Error> {
        let verdict = self.key.verdict(&self.tally, judgement, self.barred)?;
        Ok(if self.reserve.is_none() { verdict.as_counted() } else { verdict })
    }
}

impl<'c> Judged<'c> {
    /// The verdict.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// When the request could be granted if nothing were held and nobody waited, in Unix microseconds; `None` if never.
    pub fn alone_us(&mut self) -> Result<Option<u64>, Error> {
        match &mut self.opened {
            Opened::Bucket(key) => {
                let alone = key.bucket.judge(&self.request.ask, false);
                let verdict = alone.map_err(|_| Error::DebtTooLong)?;
                Ok(match verdict {
                    Verdict::Allowed { .. } => Some(self.spot.now_us),
                    Verdict::Denied { wait_us, .. } => {
                        Some(self.spot.now_us.saturating_add(wait_us))
                    }
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

    /// What the call is told of the key as it stands. Writes nothing.
    pub fn look(self) -> Planned<'c> {
        let decision = match &self.opened {
            Opened::Bucket(key) => key.bucket.look(self.verdict),
            Opened::Window(open) => {
                open.key.decide(self.verdict, &open.tally, open.window.limit, None)
            }
        };
        Planned { decision, id: None, write: Write::Nothing }
    }

    /// Carries out an allowed call. `new_id` makes the id of a reservation that the caller did not name.
    pub fn grant(self, new_id: impl FnOnce() -> Id) -> Result<Planned<'c>, Error> {
        let ask = self.request.ask;
        let open = match self.opened {
            Opened::Bucket(key) => {
                let (decision, next) = key.bucket.grant(&ask, self.verdict);
                return Ok(Planned { decision, id: None, write: Write::Bucket(key, next) });
            }
            Opened::Window(open) => open,
        };
        match ask.quantity {
            Quantity::Look => {
                let opened = Opened::Window(open);
                Ok(Judged { opened, ..self }.look())
            }
            Quantity::GiveBack(amount) => give_back(open, self.verdict, amount),
            Quantity::Take(_) => match open.reserve {
                Some(reserve) => hold(open, self.verdict, reserve, self.spot.now_us, new_id),
                None => count(open, self.verdict, &ask),
            },
        }
    }

    /// Carries out a denied call: heals what a clock that went back left, and drops what lies in the way of every call.
    pub fn deny(self) -> Result<Planned<'c>, Error> {
        let mut open = match self.opened {
            Opened::Bucket(key) => {
                let (decision, next) = key.bucket.deny(self.verdict);
                return Ok(Planned { decision, id: None, write: Write::Bucket(key, next) });
            }
            Opened::Window(open) => open,
        };
        let decision = open.key.decide(self.verdict, &open.tally, open.window.limit, None);
        let heals = self.request.takes() && self.verdict != Verdict::Never;
        if !heals || !open.key.must_write(&open.tally) {
            return Ok(Planned { decision, id: None, write: Write::Nothing });
        }
        let edit = open.key.plan(&mut open.tally, false, open.window.most_entries)?;
        Ok(Planned { decision, id: None, write: open.write(edit, None) })
    }

    /// Carries out a denied call that counts.
    pub fn count_denial(self) -> Result<Planned<'c>, Error> {
        let mut open = match self.opened {
            Opened::Window(open) => open,
            opened @ Opened::Bucket(_) => return Judged { opened, ..self }.deny(),
        };
        let ask = self.request.ask;
        open.tally.record(ask.quantity.wanted(), true, open.window.limit);
        let judgement = open.used().judge(&ask, open.barred);
        let edit = open.key.plan(&mut open.tally, true, open.window.most_entries)?;
        let verdict = open.verdict(judgement)?;
        let decision = open.key.decide(verdict, &open.tally, open.window.limit, None);
        Ok(Planned { decision, id: None, write: open.write(edit, None) })
    }
}

fn count<'c>(mut open: OpenWindow<'c>, verdict: Verdict, ask: &Ask) -> Result<Planned<'c>, Error> {
    let WindowLimit { limit, most_entries, .. } = open.window;
    let taken = verdict.taken();
    let sum = u128::from(open.tally.counted()).saturating_add(u128::from(taken));
    if ask.manner == Manner::Force && sum > u128::from(MAX_SUM) {
        return Err(Error::SumTooLarge);
    }
    open.tally.record(taken, false, limit);
    let edit = open.key.plan(&mut open.tally, true, most_entries)?;
    let decision = open.key.decide(verdict, &open.tally, limit, None);
    Ok(Planned { decision, id: None, write: open.write(edit, None) })
}

fn give_back<'c>(
    mut open: OpenWindow<'c>,
    verdict: Verdict,
    amount: u64,
) -> Result<Planned<'c>, Error> {
    let limit = open.window.limit;
    let found = open.key.uncount(&mut open.tally, amount)?;
    let decision = open.key.decide(verdict, &open.tally, limit, None);
    if !found {
        return Ok(Planned { decision, id: None, write: Write::Nothing });
    }
    let edit = open.key.plan(&mut open.tally, false, open.window.most_entries)?;
    let OpenWindow { key, tally, .. } = open;
    let write = WindowWrite { key, tally, edit, clean: false, keep_ttl: true, reserve: None };
    Ok(Planned { decision, id: None, write: Write::Window(write) })
}

fn hold<'c>(
    mut open: OpenWindow<'c>,
    verdict: Verdict,
    reserve: Reserve,
    now_us: u64,
    new_id: impl FnOnce() -> Id,
) -> Result<Planned<'c>, Error> {
    let new = NewReservation {
        id: reserve.id.unwrap_or_else(new_id),
        quantity: verdict.taken(),
        lease_ms: reserve.lease_ms,
        end_us: end_us(now_us, reserve.lease_ms),
        order_us: open.key.reservations().next_order_us(now_us),
        rule: zones(|zones| open.window.rule.write(zones)),
    };
    let edit = open.key.plan(&mut open.tally, true, open.window.most_entries)?;
    let one = new.reservation();
    let decision = open.key.decide(verdict, &open.tally, open.window.limit, Some(&one));
    Ok(Planned { decision, id: Some(new.id), write: open.write(edit, Some(new)) })
}

impl<'c> OpenWindow<'c> {
    fn write(self, edit: Edit, reserve: Option<NewReservation>) -> Write<'c> {
        let OpenWindow { key, tally, .. } = self;
        Write::Window(WindowWrite { key, tally, edit, clean: true, keep_ttl: false, reserve })
    }
}

impl Planned<'_> {
    /// Writes and replicates it; returns how many lapsed reservations were dropped.
    pub fn write(self) -> Result<usize, Error> {
        match self.write {
            Write::Nothing => Ok(0),
            Write::Bucket(key, next) => {
                key.write(next);
                Ok(0)
            }
            Write::Window(window) => {
                let WindowWrite { key, tally, edit, clean, keep_ttl, reserve } = window;
                let reserve = reserve.as_ref().map(NewReservation::reservation);
                let change = Change { reserve, settle: None, clean, keep_ttl };
                key.write(&tally, &edit, change)
            }
        }
    }
}
