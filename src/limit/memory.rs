//! Keys in memory for the model tests and the fuzz targets: a bucket's value, and a window's sorted set on which an
//! [`Edit`] is carried out in the order in which state/window.rs does it.

use crate::limit::decision::{Ask, Decision, Manner, Quantity, Verdict};
use crate::limit::event::{score, Event, LAST_US, MAX_SUM};
use crate::limit::held::Leases;
use crate::limit::rule::Moment;
use crate::limit::throttle::{Bucket, DebtTooLong, Next, Rate, Stored};
use crate::limit::window::{decision, verdict, Edit, Entries, Tally, Use};
use std::collections::{BTreeSet, HashMap};

/// One call on the bucket `stored`: what it is told, and what is stored then.
pub fn throttle(
    rate: &Rate,
    stored: Option<Stored>,
    now_us: u64,
    ask: &Ask,
) -> Result<(Decision, Next), DebtTooLong> {
    let bucket = Bucket::read(rate, stored, now_us);
    let verdict = bucket.judge(ask, false)?;
    Ok(if verdict.allowed() { bucket.grant(ask, verdict) } else { bucket.deny(verdict) })
}

/// What is stored after `next`.
pub fn stored_after(stored: Option<Stored>, next: Next) -> Option<Stored> {
    match next {
        Next::Keep => stored,
        Next::Store(stored) => Some(stored),
        Next::Delete => None,
    }
}

/// The entries of a window contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contradiction;

/// Why a call on a window is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The entries are not ours.
    Contradiction,
    /// FORCE would pass the largest sum.
    SumTooLarge,
}

impl From<Contradiction> for Refused {
    fn from(_: Contradiction) -> Refused {
        Refused::Contradiction
    }
}

/// A sorted set: members are unique, in the order of their scores and then of their bytes.
#[derive(Clone, Debug, Default)]
pub struct Zset {
    scores: HashMap<Vec<u8>, i64>,
    order: BTreeSet<(i64, Vec<u8>)>,
}

/// A score that holds a whole number, as those of events do.
fn whole(score: f64) -> i64 {
    score as i64
}

impl Zset {
    /// Adds an entry; where its member is there already, it gets the new score.
    pub fn add(&mut self, event: &Event) {
        let member = event.member().as_bytes().to_vec();
        self.remove(&member);
        let score = whole(event.score());
        self.scores.insert(member.clone(), score);
        self.order.insert((score, member));
    }

    fn remove(&mut self, member: &[u8]) -> bool {
        let Some(score) = self.scores.remove(member) else { return false };
        self.order.remove(&(score, member.to_vec()))
    }

    fn remove_scores(&mut self, from: i64, to: i64) {
        let found = self.order.range((from, Vec::new())..(to + 1, Vec::new()));
        for (_, member) in found.cloned().collect::<Vec<_>>() {
            self.remove(&member);
        }
    }

    /// Carries out an edit. Whatever it names must be there, and it drops no entry that it does not name.
    pub fn apply(&mut self, edit: &Edit) {
        let (before, after) = edit.changed.unzip();
        for event in [edit.put, after].into_iter().flatten() {
            let back = Event::decode(event.score(), event.member().as_bytes());
            assert_eq!(back, Some(event), "this is written and cannot be read");
            self.add(&event);
        }
        for event in [edit.replaced, before].into_iter().flatten() {
            assert!(self.remove(event.member().as_bytes()), "{event:?} was not there");
        }
        if let Some((from_us, to_us)) = edit.given_back {
            let before = self.len();
            self.remove_scores(whole(score(to_us)), whole(score(from_us)));
            assert!(self.len() < before, "nothing lay between {from_us} and {to_us}");
        }
        if let Some(from_us) = edit.future_from.filter(|from_us| *from_us < LAST_US) {
            let until_us = edit.future_until.unwrap_or(u64::MAX);
            self.remove_scores(whole(score(until_us)), whole(score(from_us + 1)));
        }
        for _ in 0..edit.trim {
            let (_, member) = self.order.last().cloned().expect("an entry to trim");
            self.remove(&member);
        }
    }

    /// The entries, the oldest first.
    pub fn events(&self) -> impl Iterator<Item = Event> + '_ {
        self.order.iter().rev().map(|one| event(one).expect("an event"))
    }
}

fn event((score, member): &(i64, Vec<u8>)) -> Result<Event, Contradiction> {
    Event::decode(*score as f64, member).ok_or(Contradiction)
}

impl Entries for Zset {
    type Error = Contradiction;

    fn len(&self) -> usize {
        self.scores.len()
    }

    fn newest(&mut self, until_us: Option<u64>) -> Result<Option<Event>, Contradiction> {
        let from = until_us.map_or(i64::MIN, |us| whole(score(us)));
        self.order.range((from, Vec::new())..).next().map(event).transpose()
    }

    fn oldest(&mut self, after_us: Option<u64>) -> Result<Option<Event>, Contradiction> {
        let mut found = None;
        self.scan(after_us, |event| {
            found = Some(event);
            false
        })?;
        Ok(found)
    }

    fn scan(
        &mut self,
        after_us: Option<u64>,
        mut visit: impl FnMut(Event) -> bool,
    ) -> Result<(), Contradiction> {
        let to = match after_us {
            None => i64::MAX,
            Some(us) if us >= LAST_US => return Ok(()),
            // Up to and with the score of the next microsecond.
            Some(us) => whole(score(us)),
        };
        for one in self.order.range(..(to, Vec::new())).rev() {
            if !visit(event(one)?) {
                break;
            }
        }
        Ok(())
    }

    fn contradiction() -> Contradiction {
        Contradiction
    }
}

/// Which command calls, and with which options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// RL.WINDOW
    Count,
    /// RL.WINDOW COUNTDENIED
    CountDenied,
    /// RL.ACQUIRE, with the length of its lease in microseconds
    Hold(u64),
    /// RL.WINDOW_RO
    Look,
}

/// A call on a window.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The rule, and when.
    pub moment: Moment,
    /// The most that there may be at one time.
    pub limit: u64,
    /// The most entries of events that are live at one time.
    pub most_entries: u32,
    /// How many entries from the future the call merges, about.
    pub heal_most: usize,
    /// What is asked.
    pub ask: Ask,
    /// The command.
    pub kind: Kind,
    /// Whether others wait in line before the call.
    pub barred: bool,
}

/// What became of a call.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// What it is told.
    pub decision: Decision,
    /// What the window counted before it.
    pub counted: u64,
    /// What counts after it.
    pub tally: Tally,
    /// What was written; `None` for nothing.
    pub edit: Option<Edit>,
    /// Whether it was counted though denied.
    pub denial_counted: bool,
}

impl Call {
    /// Makes the call on the events in `zset` and the `leases` beside them: judges first, then plans, then writes.
    pub fn make(&self, zset: &mut Zset, leases: &impl Leases) -> Result<Done, Refused> {
        let Call { limit, ask, kind, barred, .. } = *self;
        let moment = self.moment.with_entries(self.most_entries);
        let barred = barred && ask.quantity.takes() && ask.manner != Manner::Force;
        let mut tally =
            if moment.counts() { Tally::read(zset, moment)? } else { Tally::nothing(moment) };
        let counted = tally.counted();
        let used = |tally: &Tally| Use { limit, counted: tally.counted(), held: leases.total() };
        let before = used(&tally);
        let mut told = verdict(zset, &tally, leases, before.judge(&ask, barred), barred)?;
        let (mut edit, mut reserved, mut denial_counted) = (None, None, false);
        match (told, ask.quantity) {
            _ if kind == Kind::Look => {}
            (Verdict::Allowed { .. }, Quantity::Look) => {}
            (Verdict::Allowed { .. }, Quantity::GiveBack(amount)) => {
                if tally.uncount(zset, amount)? {
                    edit = Some(*tally.edit(zset, self.heal_most)?);
                }
            }
            (Verdict::Allowed { taken, .. }, Quantity::Take(_)) => {
                if let Kind::Hold(lease_us) = kind {
                    reserved = Some((taken, moment.now_us().saturating_add(lease_us)));
                } else {
                    let sum = u128::from(counted) + u128::from(taken);
                    if ask.manner == Manner::Force && sum > u128::from(MAX_SUM) {
                        return Err(Refused::SumTooLarge);
                    }
                    tally.record(taken, false, limit);
                }
                edit = Some(self.plan(zset, &mut tally)?);
            }
            (Verdict::Denied { .. } | Verdict::Never, _) => {
                denial_counted = kind == Kind::CountDenied
                    && ask.quantity.takes()
                    && !barred
                    && ask.quantity.wanted() <= limit
                    && ask.least(limit).is_some()
                    && !before.only_leave_denies(&ask);
                if denial_counted {
                    tally.record(ask.quantity.wanted(), true, limit);
                    let judgement = used(&tally).judge(&ask, barred);
                    edit = Some(self.plan(zset, &mut tally)?);
                    told = verdict(zset, &tally, leases, judgement, barred)?;
                } else if told != Verdict::Never && tally.has_future() {
                    edit = Some(*tally.edit(zset, self.heal_most)?);
                }
            }
        }
        let mut after = used(&tally);
        let mut empty_at_us = tally.empty_at_us().max(leases.last_end_us());
        if let Some((quantity, end_us)) = reserved {
            after.held += u128::from(quantity);
            empty_at_us = empty_at_us.max(Some(end_us));
        }
        let told = if matches!(kind, Kind::Hold(_)) { told } else { told.as_counted() };
        let decision = decision(told, &after, moment.now_us(), empty_at_us);
        if let Some(edit) = &edit {
            zset.apply(edit);
        }
        Ok(Done { decision, counted, tally, edit, denial_counted })
    }

    fn plan(&self, zset: &mut Zset, tally: &mut Tally) -> Result<Edit, Contradiction> {
        tally.trim(zset, self.most_entries)?;
        Ok(*tally.edit(zset, self.heal_most)?)
    }
}
