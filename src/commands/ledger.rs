//! A key's sorted set of counted events and reservations, opened for one call: read as a whole, decided upon,
//! then written as a whole. Nothing is written before everything that is read or removed was found to be ours.

use crate::error::Error;
use crate::limit::decision::Decision;
use crate::limit::event::{Event, MAX_SUM};
use crate::limit::reservation::{end_us, prefix, Reservation};
use crate::limit::rule::Moment;
use crate::limit::window::{answer, freed_at_us, Ask, Events, Held, Judgement, Tally};
use crate::redis::call::{Context, KeyName};
use crate::redis::key::{Element, Key, Kind, TTL_SLACK_MS};
use crate::redis::text::OwnedString;
use crate::stats;

/// Dead entries are looked for when so many have been added since the last time, and removed in one command.
const TRIM_EVERY: usize = 16;
/// The most dead entries that a call removes.
const TRIM_MOST: usize = 64;

/// Opens a key that is missing or a sorted set.
pub fn open<'c>(ctx: Context<'c>, name: KeyName<'c>, write: bool) -> Result<Key<'c>, Error> {
    let key = if write { Key::write(ctx, name) } else { Key::read(ctx, name) };
    match key.kind() {
        Kind::Empty | Kind::Zset => Ok(key),
        Kind::String | Kind::Other => Err(Error::NotZset),
    }
}

/// The entries of events in an open key.
struct Entries<'k, 'c> {
    key: &'k Key<'c>,
    /// The last entry of all, where it was read already and is an event.
    last: Option<Event>,
}

impl Events for Entries<'_, '_> {
    type Error = Error;

    fn first_after(&mut self, us: Option<u64>) -> Result<Option<Event>, Error> {
        let min = us.map_or(f64::NEG_INFINITY, |us| us as f64);
        self.key.first_by_score(min, false, f64::MAX).map(|element| event(&element)).transpose()
    }

    fn last_until(&mut self, us: Option<u64>) -> Result<Option<Event>, Error> {
        if us.is_none() && self.last.is_some() {
            return Ok(self.last);
        }
        let max = us.map_or(f64::MAX, |us| us as f64);
        self.key.last_by_score(max).map(|element| event(&element)).transpose()
    }

    fn contradiction() -> Error {
        Error::NotEntry
    }
}

fn event(element: &Element) -> Result<Event, Error> {
    Event::decode(element.score, element.member.as_bytes()).ok_or(Error::NotEntry)
}

/// The reservation in `member`.
pub fn reservation(member: &OwnedString) -> Result<Reservation<'_>, Error> {
    Reservation::decode(member.as_bytes()).ok_or(Error::NotEntry)
}

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
    /// Whether reservations were read at all.
    complete: bool,
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
    /// Reads what counts and what is held.
    pub fn read(key: Key<'c>, moment: Moment) -> Result<Ledger<'c>, Error> {
        let (mut held, mut from_future, mut lapsed) = (Held::default(), Vec::new(), Vec::new());
        let mut reservations: usize = 0;
        let mut newest_order_us = None;
        let mut last = None;
        match key.last_by_score(f64::INFINITY) {
            Some(element) if element.score == f64::INFINITY => {
                let now_us = moment.now_us();
                key.scan(f64::INFINITY, true, f64::INFINITY, |element| {
                    let one = reservation(&element.member)?;
                    let (lapses_us, live, early) = (
                        one.lapses_us(now_us),
                        one.live(now_us),
                        one.lapses_us(now_us) < one.end_us,
                    );
                    reservations = reservations.saturating_add(1);
                    newest_order_us = newest_order_us.max(Some(one.order_us));
                    if live {
                        held.add(lapses_us, one.quantity);
                    }
                    if early {
                        from_future.push(element.member);
                    } else if !live && lapsed.len() < TRIM_MOST {
                        lapsed.push(element.member);
                    }
                    Ok(true)
                })?;
            }
            Some(element) => last = Some(event(&element)?),
            None => {}
        }
        let tally = Tally::read(&mut Entries { key: &key, last }, moment)?;
        let complete = true;
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
            complete,
        })
    }

    /// Reads what counts, and no reservation: for a call that has nothing to decide, in O(log n).
    pub fn read_events(key: Key<'c>, moment: Moment) -> Result<Ledger<'c>, Error> {
        let tally = Tally::read(&mut Entries { key: &key, last: None }, moment)?;
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
            complete: false,
        })
    }

    /// Whether no live reservation has this id. One that has lapsed makes room for the new one.
    pub fn is_free(&mut self, id: &[u8]) -> Result<bool, Error> {
        let Some(member) = find(&self.key, id)? else { return Ok(true) };
        let live = reservation(&member)?.live(self.moment.now_us());
        if !live && !self.lapsed.iter().any(|lapsed| lapsed.as_bytes() == member.as_bytes()) {
            self.lapsed.push(member);
        }
        Ok(!live)
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
                let mut entries = Entries { key: &self.key, last: self.last };
                freed_at_us(&mut entries, &self.tally, &mut Held::default(), need)
            }
        }
    }

    /// The answer, as the ledger stands now.
    pub fn answer(&mut self, ask: &Ask, judgement: Judgement) -> Result<Decision, Error> {
        let freed = match judgement {
            Judgement::Wanting { need, .. } => {
                let mut entries = Entries { key: &self.key, last: self.last };
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
        let mut remove = Vec::new();
        let mut healed = Vec::new();
        if edit.remove_future {
            self.key.scan(now_us as f64, false, f64::MAX, |element| {
                event(&element)?;
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
        let last = if self.complete { None } else { self.key.last_by_score(f64::INFINITY) };
        if last.is_some_and(|last| last.score == f64::INFINITY) {
            expire_no_sooner(&mut self.key, until_us);
        } else {
            expire_exactly(&mut self.key, until_us);
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
        let events = self.key.len().saturating_sub(self.reservations);
        let most_entries = usize::try_from(most_entries).unwrap_or(usize::MAX);
        // A total this high may have run around: only differences say what the entries sum up to.
        let crowded = put.total > MAX_SUM;
        if events <= most_entries && events % TRIM_EVERY != 0 && !crowded {
            return Ok(());
        }
        let most = if crowded { usize::MAX } else { TRIM_MOST.saturating_add(remove.len()) };
        let Some(left_us) = self.moment.left_us() else { return Ok(()) };
        self.key.scan(f64::NEG_INFINITY, true, left_us as f64, |element| {
            let dead = event(&element)?;
            let enough = crowded && put.sum_since(&dead) <= MAX_SUM && remove.len() >= TRIM_MOST;
            if enough || remove.len() >= most {
                return Ok(false);
            }
            remove.push(element.member);
            Ok(true)
        })
    }
}

/// Takes back an event of `weight` that was counted at `at_us`, out of its entry and the totals of those that came
/// since. Few can have come: where there are many, or the entry is none of that time any more, it stays.
pub fn retract(key: &mut Key, weight: u64, at_us: u64) -> Result<(), Error> {
    let mut events = Vec::new();
    key.scan(at_us as f64, true, f64::MAX, |element| {
        events.push(event(&element)?);
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

/// The reservation `id` in an open key, lapsed or not.
pub fn find(key: &Key, id: &[u8]) -> Result<Option<OwnedString>, Error> {
    let (from, to) = (prefix(id, b':'), prefix(id, b';'));
    let Some(element) = key.first_by_member(from.as_bytes(), to.as_bytes()) else {
        return Ok(None);
    };
    reservation(&element.member)?;
    Ok(Some(element.member))
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

/// Lets the key expire when its state stops mattering, or so much later that it need not be told on every
/// call.
fn expire_exactly(key: &mut Key, until_us: u64) {
    let needed_ms = until_us.div_ceil(1_000);
    let slack = needed_ms..=needed_ms.saturating_add(TTL_SLACK_MS);
    if !key.expires_at_ms().is_some_and(|at| slack.contains(&at)) {
        key.expire_at(needed_ms.saturating_add(TTL_SLACK_MS));
    }
}

/// As [`expire_exactly`], but never sooner than the key would by now: others may need it longer.
pub fn expire_no_sooner(key: &mut Key, until_us: u64) {
    let needed_ms = until_us.div_ceil(1_000);
    if key.expires_at_ms().is_none_or(|at| at < needed_ms) {
        key.expire_at(needed_ms.saturating_add(TTL_SLACK_MS));
    }
}
