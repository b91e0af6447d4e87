//! When a key of events and reservations expires: when its state stops mattering, or so much later that the TTL
//! need not be moved on every call.

use super::entries::{reservation, Reader};
use crate::error::Error;
use crate::limit::reservation::Reservation;
use crate::limit::rule::Rule;
use crate::limit::window::{Held, Tally};
use crate::redis::key::{Key, TTL_SLACK_MS};

/// So many reservations are read only to let a key expire sooner.
const FEW: usize = 16;

/// Lets the key expire when its state stops mattering, or so much later that it need not be told on every
/// call.
pub fn expire_within_slack(key: &mut Key, until_us: u64) {
    let needed_ms = until_us.div_ceil(1_000);
    let slack = needed_ms..=needed_ms.saturating_add(TTL_SLACK_MS);
    if !key.expires_at_ms().is_some_and(|at| slack.contains(&at)) {
        key.expire_at(needed_ms.saturating_add(TTL_SLACK_MS));
    }
}

/// As [`expire_no_sooner`]; but a lease that was to end at `settled_us` and alone kept the key keeps it no more,
/// unless there are so many other reservations that it would cost too much to ask when they end.
pub fn expire_settled(key: &mut Key, until_us: u64, settled_us: u64) {
    let settled_ms = settled_us.div_ceil(1_000);
    let slack = settled_ms..=settled_ms.saturating_add(TTL_SLACK_MS);
    if until_us < settled_us && key.expires_at_ms().is_some_and(|at| slack.contains(&at)) {
        if let Some(end_us) = last_end_us(key) {
            return expire_within_slack(key, until_us.max(end_us));
        }
    }
    expire_no_sooner(key, until_us);
}

/// When the last of a few reservations ends, 0 without any; `None` if there are many.
fn last_end_us(key: &Key) -> Option<u64> {
    let mut few = Held::default();
    let read = key.scan(f64::INFINITY, true, f64::INFINITY, |element| {
        let one = reservation(&element.member)?;
        few.add(one.end_us, one.quantity);
        Ok::<_, Error>(few.len() <= FEW)
    });
    read.ok()?;
    (few.len() <= FEW).then(|| few.empty_at_us().unwrap_or(0))
}

/// Lets the key expire as it must after the lease of `old` was changed to end at `end_us`.
pub fn expire_renewed(key: &mut Key, old: &Reservation, end_us: u64, now_us: u64) {
    if end_us < old.end_us {
        let moment = Rule::parse(old.rule).and_then(|rule| rule.at(now_us));
        let mut reader = Reader { key, now_us, last: None };
        let tally = moment.and_then(|moment| Tally::read(&mut reader, moment).ok());
        if let Some(tally) = tally.filter(|tally| !tally.has_future()) {
            let until_us = tally.empty_at_us().map_or(end_us, |empty_us| empty_us.max(end_us));
            return expire_settled(key, until_us, old.end_us);
        }
    }
    expire_no_sooner(key, end_us);
}

/// Only ever lengthens the TTL: others may need the key longer.
fn expire_no_sooner(key: &mut Key, until_us: u64) {
    let needed_ms = until_us.div_ceil(1_000);
    if key.expires_at_ms().is_none_or(|at| at < needed_ms) {
        key.expire_at(needed_ms.saturating_add(TTL_SLACK_MS));
    }
}
