//! A key's sorted set of counted events and reservations, opened for one call.
//!
//! ```text
//! score   -inf ......... -1795223804000000 ............. -1795223799544558
//!         reservations   newest event                    oldest event
//! ```
//!
//! Nothing is written before everything that is read or removed was found to be ours.

use super::entries::{
    after, event, reservation, EventReader, Seen, FOREIGN, RESERVATIONS, RESERVED,
};
use super::reservations::{find_live, Reservations};
use super::{indexes, Intent, Open, Spot};
use crate::error::Error;
use crate::limit::decision::{Ask, Decision, Verdict};
use crate::limit::event::{score, Event};
use crate::limit::expiry::Expiry;
use crate::limit::held::Leases;
use crate::limit::reservation::{Id, Reservation};
use crate::limit::rule::Moment;
use crate::limit::window::{decision, freed_at_us, verdict, Edit, Judgement, Tally, Use};
use crate::redis::key::{remove_highest, Kind, ReadKey, Scores, WriteKey};
use crate::redis::text::OwnedString;

/// All scores.
const ALL: Scores = Scores { from: RESERVED, to: f64::INFINITY };

/// An open sorted set whose reservations were read.
pub struct WindowKey<'c> {
    key: Open<'c>,
    spot: Spot<'c>,
    reservations: Reservations<'c>,
    /// What is known of its events.
    events: Seen,
}

/// What a call does to the reservations of a key.
#[derive(Default)]
pub struct Change<'r> {
    /// A reservation that is made.
    pub reserve: Option<Reservation<'r>>,
    /// A reservation that goes: applied, or renewed.
    pub settle: Option<OwnedString>,
    /// Reservations that have lapsed go, and those of a clock that went back are written anew, as far as that is a
    /// bounded piece of work.
    pub clean: bool,
    /// The TTL stays where it is: something was given back.
    pub keep_ttl: bool,
}

fn open(spot: Spot, intent: Intent) -> Result<Open, Error> {
    let mut key = Open::new(spot, intent)?;
    match key.kind() {
        Kind::Empty | Kind::Zset => Ok(key),
        Kind::String | Kind::Other => {
            // The server does not tell of every value that takes a set's place.
            indexes::forget(spot.ctx.db(), spot.name.as_bytes());
            Err(Error::NotZset)
        }
    }
}

/// Refuses a sorted set that somebody else keeps: one with positive scores.
fn refuse_foreign(key: &mut ReadKey) -> Result<(), Error> {
    match key.lowest(FOREIGN) {
        Some(_) => Err(Error::NotEntry),
        None => Ok(()),
    }
}

impl<'c> WindowKey<'c> {
    /// Opens a key that is missing or a sorted set, and reads what is reserved there, and whether `id` is.
    pub fn open(spot: Spot<'c>, intent: Intent, id: Option<&[u8]>) -> Result<WindowKey<'c>, Error> {
        let mut key = WindowKey::unopened(spot);
        key.read(intent, id)?;
        Ok(key)
    }

    /// A key that is yet to be [read](WindowKey::read).
    pub fn unopened(spot: Spot<'c>) -> WindowKey<'c> {
        let key = Open::closed(spot);
        WindowKey { key, spot, reservations: Reservations::none(), events: Seen::default() }
    }

    /// Opens it, as [`WindowKey::open`] does.
    pub fn read(&mut self, intent: Intent, id: Option<&[u8]>) -> Result<(), Error> {
        self.key = open(self.spot, intent)?;
        let reader = self.key.reader();
        match Reservations::indexed(self.spot, reader, id) {
            Some(reservations) => self.reservations = reservations,
            None => match reader.lowest(ALL) {
                Some(element) if element.score == RESERVED => {
                    self.reservations = Reservations::read(self.spot, reader, id)?;
                }
                Some(element) => self.events.newest = Some(event(&element)?),
                None => {}
            },
        }
        self.events.len = reader.len().saturating_sub(self.reservations.len());
        // The newest event was read, unless there are reservations before it.
        let read = usize::from(self.events.newest.is_some());
        if self.events.len > read {
            refuse_foreign(reader)?;
        }
        Ok(())
    }

    /// Counts the events at a moment.
    pub fn tally(&mut self, moment: Moment) -> Result<Tally, Error> {
        if !moment.counts() {
            return Ok(Tally::nothing(moment));
        }
        Tally::read(&mut EventReader::new(self.key.reader(), self.events), moment)
    }

    /// Counts the events into a tally that counts nothing yet.
    pub fn count(&mut self, tally: &mut Tally) -> Result<(), Error> {
        if !tally.moment().counts() {
            return Ok(());
        }
        tally.count(&mut EventReader::new(self.key.reader(), self.events))
    }

    /// What is reserved.
    pub fn reservations(&self) -> &Reservations<'c> {
        &self.reservations
    }

    /// What uses up `limit`.
    pub fn used(&self, tally: &Tally, limit: u64) -> Use {
        Use { limit, counted: tally.counted(), held: self.reservations.total() }
    }

    /// The verdict on a judgement, with its wait.
    pub fn verdict(
        &mut self,
        tally: &Tally,
        judgement: Judgement,
        barred: bool,
    ) -> Result<Verdict, Error> {
        let mut reader = EventReader::new(self.key.reader(), self.events);
        verdict(&mut reader, tally, &self.reservations, judgement, barred)
    }

    /// When what is asked could be had if nothing were held and nobody waited; `None` if never.
    pub fn alone_us(&mut self, tally: &Tally, used: &Use, ask: &Ask) -> Result<Option<u64>, Error> {
        let now_us = self.spot.now_us;
        match used.judge_alone(ask) {
            Judgement::Never => Ok(None),
            Judgement::Allowed(_) => Ok(Some(now_us)),
            Judgement::Wanting { need, .. } => {
                let mut reader = EventReader::new(self.key.reader(), self.events);
                freed_at_us(&mut reader, tally, &Reservations::none(), need)
            }
        }
    }

    /// What a call with this verdict is told of the key as it stands, or will stand with a reservation of so much that
    /// ends at that time.
    pub fn decide(
        &self,
        verdict: Verdict,
        tally: &Tally,
        limit: u64,
        reserve: Option<(u64, u64)>,
    ) -> Decision {
        let mut after = self.used(tally, limit);
        let mut empty_at_us = self.empty_at_us(tally);
        if let Some((quantity, end_us)) = reserve {
            after.held = after.held.saturating_add(u128::from(quantity));
            empty_at_us = empty_at_us.max(Some(end_us));
        }
        decision(verdict, &after, self.spot.now_us, empty_at_us)
    }

    fn empty_at_us(&self, tally: &Tally) -> Option<u64> {
        tally.empty_at_us().max(self.reservations.last_end_us())
    }

    /// Whether something is to be written even where a call is denied: what heals, and what lies in the way of every
    /// call.
    pub fn must_write(&self, tally: &Tally) -> bool {
        tally.has_future() || self.reservations.must_write()
    }

    /// Uncounts `amount` of the events; whether there was something to uncount.
    pub fn uncount(&mut self, tally: &mut Tally, amount: u64) -> Result<bool, Error> {
        tally.uncount(&mut EventReader::new(self.key.reader(), self.events), amount)
    }

    /// Plans what is to be written to the events, and drops dead ones with it if `trims`. All that will be removed is
    /// ours, or this is an error.
    pub fn plan(&mut self, tally: &mut Tally, trims: bool, most_entries: u32) -> Result<(), Error> {
        let mut reader = EventReader::new(self.key.reader(), self.events);
        if trims {
            tally.trim(&mut reader, most_entries)?;
        }
        tally.edit(&mut reader)?;
        Ok(())
    }

    /// Writes what was planned; returns how many lapsed reservations were dropped. Nothing, where the key was opened for
    /// reading.
    pub fn write(&mut self, tally: &Tally, edit: &Edit, change: Change) -> Result<usize, Error> {
        let Some(mut key) = self.key.take(self.spot) else { return Ok(0) };
        let Spot { ctx, name, now_us } = self.spot;
        let (mut remove, mut lapsed, mut settled_us) = (Vec::new(), 0, None);
        // Before what heals: a reservation that is settled is not written anew.
        if let Some(member) = change.settle {
            let one = reservation(&member)?;
            settled_us = Some(one.end_us);
            self.reservations.removed(&one, now_us);
            remove.push(member);
        }
        if change.clean {
            let mut cleaning = self.reservations.clean(now_us)?;
            cleaning.add.iter().for_each(|member| key.add(RESERVED, member.as_bytes()));
            remove.append(&mut cleaning.remove);
            lapsed = cleaning.lapsed;
        }
        if let Some((from_us, to_us)) = edit.given_back {
            collect(&mut key, Scores { from: score(to_us), to: score(from_us) }, &mut remove);
        }
        if let Some(scores) = edit.future_from.and_then(|from_us| after(Some(from_us))) {
            collect(&mut key, Scores { from: score(u64::MAX), ..scores }, &mut remove);
            let put = edit.put.map(|put| put.member());
            // It may be one of them, and then only moves.
            let moves = |old: &OwnedString| {
                put.as_ref().is_some_and(|put| put.as_bytes() == old.as_bytes())
            };
            remove.retain(|old| !moves(old));
        }
        let (reduced, rest) = edit.reduced.unzip();
        for event in [edit.put, rest].into_iter().flatten() {
            key.add(event.score(), event.member().as_bytes());
        }
        if let Some(one) = &change.reserve {
            key.add(RESERVED, one.member().as_bytes());
            self.reservations.added(one);
        }
        let member = |event: Event| OwnedString::new(event.member().as_bytes());
        match (edit.replaced.map(member), reduced.map(member)) {
            (None, None) => {}
            // The usual case: nothing is allocated for it.
            (Some(one), None) | (None, Some(one)) if remove.is_empty() => {
                key.remove(std::slice::from_ref(&one));
            }
            (one, other) => remove.extend([one, other].into_iter().flatten()),
        }
        if !remove.is_empty() {
            key.remove(&remove);
        }
        if !change.keep_ttl {
            let in_use_us = tally.in_use_since_us().map_or(0, |us| now_us.saturating_sub(us));
            let expiry = Expiry {
                needed_us: self.empty_at_us(tally).unwrap_or(now_us),
                in_use_us: in_use_us.min(tally.moment().period_us()),
            };
            let current_ms = key.expires_at_ms();
            let moved_ms = match settled_us {
                Some(settled_us) => expiry.after_settling(settled_us, current_ms),
                None => expiry.after(current_ms),
            };
            if let Some(at_ms) = moved_ms {
                key.expire_at(at_ms);
            }
        }
        self.reservations.keep(key.len().saturating_sub(edit.trim));
        drop(key);
        if edit.trim > 0 {
            remove_highest(ctx, name, edit.trim);
        }
        Ok(lapsed)
    }

    /// The member of the reservation `id`, if it is live.
    pub fn find_live(&mut self, id: &[u8]) -> Result<Option<OwnedString>, Error> {
        find_live(Some(&self.reservations), self.key.reader(), id, self.spot.now_us)
    }
}

/// Adds the members of all entries with these scores to `members`.
fn collect(key: &mut ReadKey, scores: Scores, members: &mut Vec<OwnedString>) {
    members.extend(key.ascending(scores).map(|element| element.member));
}

/// Gives the live reservations of these ids back; returns how many there were. Each is found in O(log n).
pub fn release(spot: Spot, ids: &[Id]) -> Result<usize, Error> {
    let Open::Write(mut key) = open(spot, Intent::Write)? else { return Ok(0) };
    refuse_foreign(&mut key)?;
    let mut index = Reservations::indexed(spot, &mut key, None);
    let (mut held, mut members) = (Vec::new(), Vec::with_capacity(ids.len()));
    for id in ids {
        let found = find_live(index.as_ref(), &mut key, id.as_bytes(), spot.now_us)?;
        if let Some(member) = found {
            held.push(id.as_bytes());
            members.push(member);
        }
    }
    remove(&mut key, index.as_mut(), &held, &members);
    Ok(members.len())
}

/// Gives the reservation `id` back if it is the one that ends at `end_us`: it may have been released, and the id taken
/// by somebody else.
pub fn release_untold(spot: Spot, id: &[u8], end_us: u64) -> Result<(), Error> {
    let Open::Write(mut key) = open(spot, Intent::Write)? else { return Ok(()) };
    refuse_foreign(&mut key)?;
    let mut index = Reservations::indexed(spot, &mut key, None);
    let found = find_live(index.as_ref(), &mut key, id, spot.now_us)?;
    let Some(member) = found else { return Ok(()) };
    if reservation(&member)?.end_us == end_us {
        remove(&mut key, index.as_mut(), &[id], &[member]);
    }
    Ok(())
}

/// Removes reservations by their members from the set, and by their ids from the index.
fn remove(
    key: &mut WriteKey,
    index: Option<&mut Reservations>,
    ids: &[&[u8]],
    members: &[OwnedString],
) {
    key.remove(members);
    if let Some(index) = index {
        ids.iter().for_each(|id| index.removed_from_index(id));
        index.keep(key.len());
    }
}

/// The members of the live reservations, the oldest first.
pub fn held(spot: Spot) -> Result<Vec<OwnedString>, Error> {
    let mut key = open(spot, Intent::Read)?;
    refuse_foreign(key.reader())?;
    let mut members = Vec::new();
    for element in key.reader().ascending(RESERVATIONS) {
        let one = reservation(&element.member)?;
        if one.live(spot.now_us) {
            members.push((one.order_us, element.member));
        }
    }
    members.sort_by_key(|(order_us, _)| *order_us);
    Ok(members.into_iter().map(|(_, member)| member).collect())
}
