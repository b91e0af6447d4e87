//! A key's sorted set of counted events and reservations, opened for one call. Reservations are read in full,
//! events by a few searches; all edits are collected and then written. Nothing is written before everything that
//! is read or removed was found to be ours.
//!
//! ```text
//! read ------------> judge --> record, hold ----------> decision --> write
//! what is there                collected, not written                adds, then removes, then the TTL
//! ```

use super::entries::{event, reservation, Reader};
use super::lifetime::{expire_settled, expire_within_slack};
use super::reservations::Reservations;
use super::trim::dead_events;
use crate::error::Error;
use crate::limit::decision::Decision;
use crate::limit::event::Event;
use crate::limit::rule::Moment;
use crate::limit::window::{decision, freed_at_us, Ask, Held, Judgement, Tally};
use crate::redis::key::Key;
use crate::redis::text::OwnedString;
use crate::stats;

/// An open key, counted.
pub struct Ledger<'c> {
    key: Key<'c>,
    moment: Moment,
    /// The last entry, where it is an event.
    last: Option<Event>,
    tally: Tally,
    reservations: Reservations,
}

/// What a call adds to a ledger and takes from it, beside the events that were recorded.
#[derive(Default)]
pub struct Change<'m> {
    /// The member of a new reservation, which [`Ledger::hold`] was told of.
    pub reserve: Option<&'m [u8]>,
    /// A reservation that is settled.
    pub settle: Option<OwnedString>,
    /// Drop the dead, as far as that is a bounded piece of work.
    pub trim: bool,
}

impl<'c> Ledger<'c> {
    /// Reads what counts and what is held, and whether `id` is.
    pub fn read(key: Key<'c>, moment: Moment, id: Option<&[u8]>) -> Result<Ledger<'c>, Error> {
        let now_us = moment.now_us();
        match key.last_by_score(f64::INFINITY) {
            Some(element) if element.score == f64::INFINITY => {
                let reservations = Reservations::read(&key, now_us, id)?;
                Ledger::count(key, moment, None, reservations)
            }
            Some(element) => {
                let last = event(&element, now_us)?;
                Ledger::count(key, moment, Some(last), Reservations::default())
            }
            None => Ledger::count(key, moment, None, Reservations::default()),
        }
    }

    /// Reads what counts, and no reservation: for a call that has nothing to decide but settles one, in O(log n).
    pub fn read_events(key: Key<'c>, moment: Moment) -> Result<Ledger<'c>, Error> {
        Ledger::count(key, moment, None, Reservations::default())
    }

    fn count(
        key: Key<'c>,
        moment: Moment,
        last: Option<Event>,
        reservations: Reservations,
    ) -> Result<Ledger<'c>, Error> {
        let tally = Tally::read(&mut Reader { key: &key, now_us: moment.now_us(), last }, moment)?;
        Ok(Ledger { key, moment, last, tally, reservations })
    }

    /// What is reserved.
    pub fn reservations(&self) -> &Reservations {
        &self.reservations
    }

    /// Judges what is asked.
    pub fn judge(&self, ask: &Ask) -> Judgement {
        ask.judge(self.tally.counted(), self.reservations.live.total())
    }

    /// Counts an event now.
    pub fn record(&mut self, weight: u64, denied: bool) {
        self.tally.record(weight, denied);
    }

    /// Holds `quantity` until `end_us`, from now on.
    pub fn hold(&mut self, end_us: u64, quantity: u64) {
        self.reservations.live.add(end_us, quantity);
    }

    /// When what is asked could be had if nothing were held and nobody waited; `None` if never.
    pub fn alone_us(&self, ask: &Ask) -> Result<Option<u64>, Error> {
        let alone = Ask { barred: false, ..*ask };
        match alone.judge(self.tally.counted(), 0) {
            Judgement::Never => Ok(None),
            Judgement::Granted(_) => Ok(Some(self.moment.now_us())),
            Judgement::Wanting { need, .. } => {
                freed_at_us(&mut self.reader(), &self.tally, &mut Held::default(), need)
            }
        }
    }

    /// The decision, with its times as the ledger stands now.
    pub fn decision(&mut self, ask: &Ask, judgement: Judgement) -> Result<Decision, Error> {
        let now_us = self.moment.now_us();
        let freed = match judgement {
            Judgement::Wanting { need, .. } => {
                let mut reader = Reader { key: &self.key, now_us, last: self.last };
                freed_at_us(&mut reader, &self.tally, &mut self.reservations.live, need)?
            }
            Judgement::Granted(_) | Judgement::Never => None,
        };
        let used = self.tally.counted().saturating_add(self.reservations.live.total());
        Ok(decision(ask, judgement, now_us, used, freed, self.empty_at_us()))
    }

    /// Whether something is to be written even where a call is denied: what heals, and what lies in the way of every
    /// call.
    pub fn must_write(&self) -> bool {
        self.tally.has_future() || self.reservations.must_write()
    }

    /// Writes what was recorded, the change and what heals. Events that live need at most `most_entries`.
    pub fn write(mut self, change: Change, most_entries: u32) -> Result<(), Error> {
        let edit = self.tally.edit();
        let now_us = self.moment.now_us();
        let until_us = self.empty_at_us().unwrap_or(now_us);
        let settled_us = change.settle.as_ref().map(reservation).transpose()?.map(|one| one.end_us);
        let mut remove = Vec::new();
        if edit.remove_future {
            self.key.scan(now_us as f64, false, f64::MAX, |element| {
                event(&element, now_us)?;
                remove.push(element.member);
                Ok::<_, Error>(true)
            })?;
            if let Some(put) = edit.put {
                // It may be one of them, and then only moves.
                let member = put.member();
                remove.retain(|old: &OwnedString| old.as_bytes() != member.as_bytes());
            }
        }
        if let Some(put) = edit.put.filter(|_| edit.remove.is_none() && change.trim) {
            // Reservations that were not read count as events here: then it looks more often than it must.
            let events = self.key.len().saturating_sub(self.reservations.len());
            remove.extend(dead_events(&self.key, &self.moment, &put, events, most_entries)?);
        }
        let healed = self.reservations.heal(now_us, &mut remove)?;
        let mut lapsed = self.reservations.lapsed_to_drop(change.trim);
        stats::LAPSED.add(u64::try_from(lapsed.len()).unwrap_or(0));
        remove.append(&mut lapsed);

        if let Some(put) = edit.put {
            self.key.add(put.newest_us as f64, put.member().as_bytes());
        }
        for member in healed.iter().map(Vec::as_slice).chain(change.reserve) {
            self.key.add(f64::INFINITY, member);
        }
        remove.extend(edit.remove.map(|old| OwnedString::new(old.member().as_bytes())));
        remove.extend(change.settle);
        if !remove.is_empty() {
            self.key.remove(&remove);
        }
        match settled_us {
            Some(settled_us) => expire_settled(&mut self.key, until_us, settled_us),
            None => expire_within_slack(&mut self.key, until_us),
        }
        Ok(())
    }

    fn reader(&self) -> Reader<'_, 'c> {
        Reader { key: &self.key, now_us: self.moment.now_us(), last: self.last }
    }

    /// When nothing is counted or held any more; `None` if nothing is now.
    fn empty_at_us(&self) -> Option<u64> {
        self.tally.empty_at_us().max(self.reservations.live.empty_at_us())
    }
}
