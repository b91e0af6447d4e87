//! Which dead events a call drops. They are not counted, so they may lie: most calls drop none, and none drops
//! thousands at once, unless their sum stands in the way of counting.

use super::entries::event;
use crate::error::Error;
use crate::limit::event::{Event, MAX_SUM};
use crate::limit::rule::Moment;
use crate::redis::key::Key;
use crate::redis::text::OwnedString;

/// Dead entries are looked for when a key's length is a multiple of this, so that most calls need not look.
const EVERY: usize = 16;
/// So many have to be found to be worth a command, unless there are too many entries.
const LEAST: usize = 8;
/// The most dead entries of a kind that a call removes, unless their sum stands in the way of counting.
pub const MOST: usize = 64;

/// The dead events to drop from a key that has so many `events`, where those that live need at most `most_entries`;
/// `newest` is the last that counts.
pub fn dead_events(
    key: &Key,
    moment: &Moment,
    newest: &Event,
    events: usize,
    most_entries: u32,
) -> Result<Vec<OwnedString>, Error> {
    let mut dead = Vec::new();
    // A total this high may have run around: only differences say what the entries sum up to.
    let crowded = newest.total > MAX_SUM;
    let full = crowded || events > usize::try_from(most_entries).unwrap_or(usize::MAX);
    if !full && events % EVERY != 0 {
        return Ok(dead);
    }
    let Some(left_us) = moment.left_us() else { return Ok(dead) };
    key.scan(f64::NEG_INFINITY, true, left_us as f64, |element| {
        let oldest = event(&element, moment.now_us())?;
        let in_the_way = crowded && newest.sum_since(&oldest) > MAX_SUM;
        if dead.len() >= MOST && !in_the_way {
            return Ok(false);
        }
        dead.push(element.member);
        Ok::<_, Error>(true)
    })?;
    if !full && dead.len() < LEAST {
        dead.clear();
    }
    Ok(dead)
}
