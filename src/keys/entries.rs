//! Reading the entries of a key's sorted set. The events follow the reservations, newest first.

use super::KeyHandle;
use crate::redis::key::{Element, Scores};
use crate::redis::text::OwnedString;
use commands::error::Error;
use engine::ban::{Ban, BAN_PREFIX};
use engine::entry::{score, Entries, Entry, LAST_US};
use engine::reservation::{OwnedReservation, Reservation};

/// The score of reservations.
pub const RESERVED: f64 = f64::NEG_INFINITY;

/// All scores, including those of foreign entries.
pub const ALL: Scores = Scores { from: RESERVED, to: f64::INFINITY };

/// All scores except that of reservations: events and foreign entries.
const EVENTS: Scores = Scores { from: f64::MIN, to: f64::INFINITY };

/// All scores above those of events. An element with such a score is not ours.
pub const FOREIGN: Scores = Scores { from: f64::from_bits(1), to: f64::INFINITY };

/// The entries of events in an open key.
pub struct ServerEntries<'c> {
    pub(super) key: KeyHandle<'c>,
    /// The newest entry, if it has been read.
    pub newest: Option<Entry>,
    pub len: usize,
}

impl Entries for ServerEntries<'_> {
    type Error = Error;

    fn len(&self) -> usize {
        self.len
    }

    fn newest(&mut self, until_us: Option<u64>) -> Result<Option<Entry>, Error> {
        if until_us.is_none() && self.newest.is_some() {
            return Ok(self.newest);
        }
        let from = until_us.map_or(EVENTS.from, score);
        self.key.reader().lowest(Scores { from, ..EVENTS }).as_ref().map(decode_entry).transpose()
    }

    fn oldest(&mut self, after_us: Option<u64>) -> Result<Option<Entry>, Error> {
        let Some(scores) = after(after_us) else { return Ok(None) };
        self.key.reader().highest(scores).as_ref().map(decode_entry).transpose()
    }

    fn scan(
        &mut self,
        after_us: Option<u64>,
        until_us: Option<u64>,
        mut visit: impl FnMut(Entry) -> bool,
    ) -> Result<(), Error> {
        let Some(scores) = after(after_us) else { return Ok(()) };
        let from = until_us.map_or(scores.from, score);
        for element in self.key.reader().descending(Scores { from, ..scores }) {
            if !visit(decode_entry(&element)?) {
                break;
            }
        }
        Ok(())
    }
}

/// Returns the scores of events after `us`. `None` if no score can be that late.
fn after(us: Option<u64>) -> Option<Scores> {
    match us {
        None => Some(EVENTS),
        Some(us) if us >= LAST_US => None,
        Some(us) => Some(Scores { to: score(us.saturating_add(1)), ..EVENTS }),
    }
}

/// Decodes an event. Refuses an entry that the module did not write.
pub fn decode_entry(element: &Element) -> Result<Entry, Error> {
    Entry::decode(element.score, element.member.as_bytes()).ok_or(Error::ForeignEntry)
}

/// What an element at the score of reservations holds.
pub enum ReservedMember {
    Reservation(OwnedReservation),
    Ban(Ban),
}

/// Decodes a member at the score of reservations. `None` for one that the module did not write.
pub fn decode_reserved(member: &OwnedString) -> Option<ReservedMember> {
    match member.as_bytes() {
        text @ [BAN_PREFIX, ..] => Ban::decode(text).map(ReservedMember::Ban),
        text => Reservation::decode(text).map(|one| ReservedMember::Reservation(one.owned())),
    }
}
