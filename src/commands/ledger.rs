//! A key's sorted set of counted events and reservations, opened for one call. Reservations are read in full,
//! events by a few searches; all edits are collected and then written. Nothing is written before everything that
//! is read or removed was found to be ours.

use super::entries::{event, reservation, Entries};
use super::lifetime::{expire_exactly, expire_settled};
use crate::error::Error;
use crate::limit::decision::Decision;
use crate::limit::event::{Event, MAX_SUM};
use crate::limit::reservation::{end_us, Reservation};
use crate::limit::rule::Moment;
use crate::limit::window::{answer, freed_at_us, Ask, Held, Judgement, Tally};
use crate::redis::key::Key;
use crate::redis::text::OwnedString;
use crate::stats;

/// Dead entries are looked for when a key's length is a multiple of this, so that most calls need not look.
const TRIM_EVERY: usize = 16;
/// So many have to be found to be worth a command, unless there are too many entries.
const TRIM_LEAST: usize = 8;
/// The most dead entries that a call removes, unless their sum stands in the way of counting.
const TRIM_MOST: usize = 64;

/// An open key, counted.
pub struct Ledger<'c> {
    key: Key<'c>,
    moment: Moment,
    last: Option<Event>,
    tally: Tally,
    held: Held,
    /// Reservations whose lease ends later than one lease from now: a clock went back.
    from_future: Vec<OwnedString>,
    lapsed: Vec<OwnedString>,
    reservations: usize,
    /// The newest reservation's place in the order of arrival.
    newest_order_us: Option<u64>,
    /// Whether the id that was asked for is held.
    id_is_held: bool,
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
        let (mut held, mut from_future, mut lapsed) = (Held::default(), Vec::new(), Vec::new());
        let mut reservations: usize = 0;
        let mut newest_order_us = None;
        let mut id_is_held = false;
        let mut last = None;
        let now_us = moment.now_us();
        match key.last_by_score(f64::INFINITY) {
            Some(element) if element.score == f64::INFINITY => {
                key.scan(f64::INFINITY, true, f64::INFINITY, |element| {
                    let one = reservation(&element.member)?;
                    let (lapses_us, live, early) = (
                        one.lapses_us(now_us),
                        one.live(now_us),
                        one.lapses_us(now_us) < one.end_us,
                    );
                    reservations = reservations.saturating_add(1);
                    newest_order_us = newest_order_us.max(Some(one.order_us));
                    let same_id = id == Some(one.id);
                    id_is_held |= same_id && live;
                    if live {
                        held.add(lapses_us, one.quantity);
                    }
                    if early {
                        from_future.push(element.member);
                    } else if !live && (same_id || lapsed.len() < TRIM_MOST) {
                        // One that has lapsed makes room for a new one of the same id.
                        lapsed.push(element.member);
                    }
                    Ok(true)
                })?;
            }
            Some(element) => last = Some(event(&element, now_us)?),
            None => {}
        }
        let tally = Tally::read(&mut Entries { key: &key, now_us, last }, moment)?;
        Ok(Ledger {
            key,
            moment,
            last,
            tally,
            held,
            from_future,
            lapsed,
            reservations,
            newest_order_us,
            id_is_held,
        })
    }

    /// Reads what counts, and no reservation: for a call that has nothing to decide but settles one, in O(log n).
    pub fn read_events(key: Key<'c>, moment: Moment) -> Result<Ledger<'c>, Error> {
        let tally =
            Tally::read(&mut Entries { key: &key, now_us: moment.now_us(), last: None }, moment)?;
        Ok(Ledger {
            key,
            moment,
            last: None,
            tally,
            held: Held::default(),
            from_future: Vec::new(),
            lapsed: Vec::new(),
            reservations: 0,
            newest_order_us: None,
            id_is_held: false,
        })
    }

    /// Whether the id that was given to [`Ledger::read`] is held.
    pub fn id_is_held(&self) -> bool {
        self.id_is_held
    }

    /// How many reservations are live.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// The place of a new reservation in the order of arrival: now, or just behind the newest where that came in
    /// the same microsecond or before the clock went back.
    pub fn order_us(&self) -> u64 {
        let behind = self.newest_order_us.map_or(0, |newest_us| newest_us.saturating_add(1));
        behind.max(self.moment.now_us())
    }

    /// Judges what is asked.
    pub fn judge(&self, ask: &Ask) -> Judgement {
        ask.judge(self.tally.counted(), self.held.total())
    }

    /// Counts an event now.
    pub fn record(&mut self, weight: u64, denied: bool) {
        self.tally.record(weight, denied);
    }

    /// Holds `quantity` until `end_us`, from now on.
    pub fn hold(&mut self, end_us: u64, quantity: u64) {
        self.held.add(end_us, quantity);
    }

    /// When what is asked could be had if nothing were held and nobody waited; `None` if never.
    pub fn alone_us(&mut self, ask: &Ask) -> Result<Option<u64>, Error> {
        let alone = Ask { barred: false, ..*ask };
        match alone.judge(self.tally.counted(), 0) {
            Judgement::Never => Ok(None),
            Judgement::Granted(_) => Ok(Some(self.moment.now_us())),
            Judgement::Wanting { need, .. } => {
                let mut entries =
                    Entries { key: &self.key, now_us: self.moment.now_us(), last: self.last };
                freed_at_us(&mut entries, &self.tally, &mut Held::default(), need)
            }
        }
    }

    /// The answer, as the ledger stands now.
    pub fn answer(&mut self, ask: &Ask, judgement: Judgement) -> Result<Decision, Error> {
        let freed = match judgement {
            Judgement::Wanting { need, .. } => {
                let mut entries =
                    Entries { key: &self.key, now_us: self.moment.now_us(), last: self.last };
                freed_at_us(&mut entries, &self.tally, &mut self.held, need)?
            }
            Judgement::Granted(_) | Judgement::Never => None,
        };
        let used = self.tally.counted().saturating_add(self.held.total());
        let empty = self.tally.empty_at_us().max(self.held.empty_at_us());
        Ok(answer(ask, judgement, self.moment.now_us(), used, freed, empty))
    }

    /// Whether something is to be written even where a call is denied.
    pub fn must_heal(&self) -> bool {
        self.tally.has_future() || !self.from_future.is_empty()
    }

    /// Writes what was recorded, the change and what heals. Events that live need at most `most_entries`.
    pub fn write(mut self, change: Change, most_entries: u32) -> Result<(), Error> {
        let edit = self.tally.edit();
        let now_us = self.moment.now_us();
        let settled_us = change.settle.as_ref().map(reservation).transpose()?.map(|one| one.end_us);
        let mut remove = Vec::new();
        let mut healed = Vec::new();
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
        if let Some(put) = edit.put {
            if edit.remove.is_none() && change.trim {
                self.collect_dead(&put, most_entries, &mut remove)?;
            }
        }
        if !self.from_future.is_empty() {
            healed = heal(&self.from_future, now_us)?;
            remove.append(&mut self.from_future);
        }
        if change.trim {
            stats::LAPSED.add(u64::try_from(self.lapsed.len()).unwrap_or(0));
            remove.append(&mut self.lapsed);
        }

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
        let until_us = self.tally.empty_at_us().max(self.held.empty_at_us()).unwrap_or(now_us);
        match settled_us {
            Some(settled_us) => expire_settled(&mut self.key, until_us, settled_us),
            None => expire_exactly(&mut self.key, until_us),
        }
        Ok(())
    }

    /// Adds dead events to `remove`, if it is time to look for them.
    fn collect_dead(
        &self,
        put: &Event,
        most_entries: u32,
        remove: &mut Vec<OwnedString>,
    ) -> Result<(), Error> {
        // Reservations that were not read count as events here: then it looks more often than it must.
        let events = self.key.len().saturating_sub(self.reservations);
        let most_entries = usize::try_from(most_entries).unwrap_or(usize::MAX);
        // A total this high may have run around: only differences say what the entries sum up to.
        let crowded = put.total > MAX_SUM;
        let full = events > most_entries || crowded;
        if !full && events % TRIM_EVERY != 0 {
            return Ok(());
        }
        let others = remove.len();
        let most = if crowded { usize::MAX } else { TRIM_MOST.saturating_add(remove.len()) };
        let Some(left_us) = self.moment.left_us() else { return Ok(()) };
        self.key.scan(f64::NEG_INFINITY, true, left_us as f64, |element| {
            let dead = event(&element, self.moment.now_us())?;
            let enough = crowded && put.sum_since(&dead) <= MAX_SUM && remove.len() >= TRIM_MOST;
            if enough || remove.len() >= most {
                return Ok(false);
            }
            remove.push(element.member);
            Ok(true)
        })?;
        if !full && remove.len().saturating_sub(others) < TRIM_LEAST {
            remove.truncate(others);
        }
        Ok(())
    }
}

/// Takes back an event of `weight` that was counted at `at_us`, out of its entry and the totals of those that came
/// since. Few can have come: where there are many, or the entry is none of that time any more, it stays.
pub fn retract(key: &mut Key, weight: u64, at_us: u64) -> Result<(), Error> {
    let mut events = Vec::new();
    key.scan(at_us as f64, true, f64::MAX, |element| {
        events.push(event(&element, at_us)?);
        Ok(events.len() <= TRIM_MOST)
    })?;
    let holds = |first: &Event| first.first_us() <= at_us && first.weight >= weight;
    if events.len() > TRIM_MOST || !events.first().is_some_and(holds) {
        return Ok(());
    }
    let mut remove: Vec<_> = events.iter().map(Event::member).collect();
    for (at, event) in events.iter_mut().enumerate() {
        event.total = event.total.wrapping_sub(weight);
        if at == 0 {
            event.weight = event.weight.saturating_sub(weight);
        }
        if event.weight > 0 {
            // It may be the member of the one before, which then only moves.
            let member = event.member();
            key.add(event.newest_us as f64, member.as_bytes());
            remove.retain(|old| old.as_bytes() != member.as_bytes());
        }
    }
    let remove: Vec<_> = remove.iter().map(|old| OwnedString::new(old.as_bytes())).collect();
    if !remove.is_empty() {
        key.remove(&remove);
    }
    Ok(())
}

/// Reservations from the future as they are to be written: ending one lease from now, in their old order.
fn heal(members: &[OwnedString], now_us: u64) -> Result<Vec<Vec<u8>>, Error> {
    let healed = members.iter().map(|member| {
        let one = reservation(member)?;
        let end_us = end_us(now_us, one.lease_ms);
        Ok(Reservation { end_us, ..one }.member().as_bytes().to_vec())
    });
    healed.collect()
}
