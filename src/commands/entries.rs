//! Reading the entries of a key's sorted set: events and reservations, and nothing else.

use super::request::Spot;
use crate::error::Error;
use crate::limit::event::Event;
use crate::limit::reservation::{prefix, Reservation};
use crate::limit::window::Events;
use crate::redis::key::{Element, Key, Kind};
use crate::redis::text::OwnedString;

/// Opens a key that is missing or a sorted set.
pub fn open(spot: Spot, write: bool) -> Result<Key, Error> {
    let Spot { ctx, name, .. } = spot;
    let key = if write { Key::write(ctx, name) } else { Key::read(ctx, name) };
    match key.kind() {
        Kind::Empty | Kind::Zset => Ok(key),
        Kind::String | Kind::Other => Err(Error::NotZset),
    }
}

/// Older entries are none of ours: scores that are milliseconds, seconds or points look so old. (Under a period of more
/// than 40 years an event may become as old, and is refused then.)
const OLDEST_US: u64 = 40 * 365 * 86_400 * 1_000_000;

/// Reads the entries of events in an open key.
pub struct Reader<'k, 'c> {
    /// The key.
    pub key: &'k Key<'c>,
    /// The time of the call.
    pub now_us: u64,
    /// The last entry of all, where it was read already and is an event.
    pub last: Option<Event>,
}

impl Events for Reader<'_, '_> {
    type Error = Error;

    fn first_after(&mut self, us: Option<u64>) -> Result<Option<Event>, Error> {
        let min = us.map_or(f64::NEG_INFINITY, |us| us as f64);
        self.key
            .first_by_score(min, false, f64::MAX)
            .map(|element| event(&element, self.now_us))
            .transpose()
    }

    fn last_until(&mut self, us: Option<u64>) -> Result<Option<Event>, Error> {
        if us.is_none() && self.last.is_some() {
            return Ok(self.last);
        }
        let max = us.map_or(f64::MAX, |us| us as f64);
        self.key.last_by_score(max).map(|element| event(&element, self.now_us)).transpose()
    }

    fn contradiction() -> Error {
        Error::NotEntry
    }
}

/// The event in `element`.
pub fn event(element: &Element, now_us: u64) -> Result<Event, Error> {
    Event::decode(element.score, element.member.as_bytes())
        .filter(|event| now_us.saturating_sub(event.newest_us) < OLDEST_US)
        .ok_or(Error::NotEntry)
}

/// The reservation in `member`.
pub fn reservation(member: &OwnedString) -> Result<Reservation<'_>, Error> {
    Reservation::decode(member.as_bytes()).ok_or(Error::NotEntry)
}

/// The reservation `id` in an open key, lapsed or not.
pub fn find(key: &Key, id: &[u8]) -> Option<OwnedString> {
    let (from, to) = (prefix(id, b':'), prefix(id, b';'));
    key.first_by_member(from.as_bytes(), to.as_bytes()).map(|element| element.member)
}
