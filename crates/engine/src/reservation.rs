//! Entries of reservations in a key's sorted set.
//!
//! All of them have the score -inf, so they come before the events, in the order of their members. A member begins with the
//! id.
//!
//! ```text
//! #05:job-1:2:20000:1795223819544558::60s
//!  |  |     | |     |                || rule of the window, or - for a semaphore
//!  |  |     | |     |                | arrival in Unix microseconds, if not end - lease
//!  |  |     | |     | end of the lease in Unix microseconds
//!  |  |     | | length of the lease in milliseconds
//!  |  |     | quantity
//!  |  | id
//!  | length of the id
//! ```
//!
//! With COUNTLAPSED a reservation still holds after its lease has ended, until an event of that moment would have
//! expired. The time between the two, in microseconds, follows the end of the lease: `1795223819544558+60000000`.
//!
//! ```text
//! reserved                end of the lease           gone
//! |--- the lease runs ---------->|--- it still holds --->|
//! ```

use crate::calendar::Zones;
use crate::decimal::{base64_char, parse_fixed_digits, parse_leading_u64};
use crate::entry::MAX_SUM;
use crate::period::{MAX_PERIOD_MS, YEAR_MS};
use crate::rule::{Rule, RuleText, MAX_RULE};
use crate::text::ShortText;

/// The longest id, in bytes.
pub const MAX_ID: usize = 64;

/// The id of a reservation, 1 to 64 bytes.
pub type Id = ShortText<MAX_ID>;

pub fn is_id(bytes: &[u8]) -> bool {
    (1..=MAX_ID).contains(&bytes.len())
}

/// Returns 16 characters of `A-Z a-z 0-9 - _`, each from 6 bits of a random byte.
pub fn id_from_random(random: [u8; 16]) -> [u8; 16] {
    random.map(base64_char)
}

/// The longest time that a reservation holds after its lease, in microseconds: the longest period and a month, because a
/// period of the calendar may be some days longer.
const MAX_AFTER_US: u64 = (MAX_PERIOD_MS + 31 * 86_400_000) * 1_000;

const MEMBER_PREFIX: u8 = b'#';

/// Room for the longest member: `#` and two digits, the id, numbers of 19, 11, 20, 16 and 20 digits, a rule, and seven marks
/// between them.
const MAX_MEMBER: usize = 256;
const _: () = assert!(3 + MAX_ID + 19 + 11 + 20 + 16 + 20 + MAX_RULE + 7 == MAX_MEMBER);

pub type ReservationMember = ShortText<MAX_MEMBER>;

/// A quantity that is held for one caller. `I` holds its id and `R` its rule, each borrowed or owned.
#[derive(Clone, Copy, Debug)]
pub struct Reservation<I, R> {
    /// The id, 1 to 64 bytes of any value.
    pub id: I,
    /// The quantity, at least 1.
    pub quantity: u64,
    /// The length of a lease in milliseconds, 1 to [`YEAR_MS`].
    pub lease_ms: u64,
    /// The end of its lease in Unix microseconds, unless the clock is set back.
    pub lease_end_us: u64,
    /// The time at which it stops holding, in Unix microseconds: the end of its lease, or later (COUNTLAPSED).
    pub gone_us: u64,
    /// The time of its arrival in Unix microseconds, in whose order reservations are listed. See
    /// [`Index::next_arrival_us`](crate::index::Index::next_arrival_us).
    pub arrival_us: u64,
    /// The rule of its window, which [`crate::rule::Rule::parse`] reads.
    pub rule: R,
}

pub type ReservationRef<'m> = Reservation<&'m [u8], &'m [u8]>;

pub type OwnedReservation = Reservation<Id, RuleText>;

impl<'m> ReservationRef<'m> {
    /// Reads a member. `None` for one that the module did not write.
    pub fn decode(member: &'m [u8]) -> Option<ReservationRef<'m>> {
        let (id, rest) = split_id(member)?;
        let number = |text: &'m [u8]| {
            let (number, rest) = parse_leading_u64(text)?;
            Some((number, rest.strip_prefix(b":")?))
        };
        let (quantity, rest) = number(rest)?;
        let (lease_ms, rest) = number(rest)?;
        let (lease_end_us, rest) = parse_leading_u64(rest)?;
        let (after_us, rest) = match rest.strip_prefix(b"+") {
            Some(rest) => {
                parse_leading_u64(rest).filter(|(us, _)| (1..=MAX_AFTER_US).contains(us))?
            }
            None => (0, rest),
        };
        let (gone_us, rest) = (lease_end_us.checked_add(after_us)?, rest.strip_prefix(b":")?);
        let (arrival_us, rule) = match rest.strip_prefix(b":") {
            Some(rule) => (start_us(lease_end_us, lease_ms), rule),
            // The order is written only if it differs, so that there is one way to write a reservation.
            None => number(rest)
                .filter(|(arrival_us, _)| *arrival_us != start_us(lease_end_us, lease_ms))?,
        };
        let sound = (1..=MAX_RULE).contains(&rule.len())
            && is_id(id)
            && (1..=MAX_SUM).contains(&quantity)
            && (1..=YEAR_MS).contains(&lease_ms);
        sound.then_some(Reservation {
            id,
            quantity,
            lease_ms,
            lease_end_us,
            gone_us,
            arrival_us,
            rule,
        })
    }
}

impl<I: AsRef<[u8]>, R: AsRef<[u8]>> Reservation<I, R> {
    /// Returns the member that [`Reservation::decode`] reads.
    pub fn member(&self) -> ReservationMember {
        let mut text = member_prefix(self.id.as_ref());
        text.push_number(self.quantity, 1);
        text.push(b":");
        text.push_number(self.lease_ms, 1);
        text.push(b":");
        text.push_number(self.lease_end_us, 1);
        if self.counts_lapsed() {
            text.push(b"+");
            text.push_number(self.gone_us.saturating_sub(self.lease_end_us), 1);
        }
        text.push(b":");
        if self.arrival_us != start_us(self.lease_end_us, self.lease_ms) {
            text.push_number(self.arrival_us, 1);
        }
        text.push(b":");
        text.push(self.rule.as_ref());
        text
    }

    pub fn borrowed(&self) -> ReservationRef<'_> {
        let Reservation { ref id, quantity, lease_ms, lease_end_us, gone_us, arrival_us, ref rule } =
            *self;
        let (id, rule) = (id.as_ref(), rule.as_ref());
        Reservation { id, quantity, lease_ms, lease_end_us, gone_us, arrival_us, rule }
    }
}

impl ReservationRef<'_> {
    pub fn owned(&self) -> OwnedReservation {
        let Reservation { id, quantity, lease_ms, lease_end_us, gone_us, arrival_us, rule } = *self;
        let (id, rule) = (Id::from(id), RuleText::from(rule));
        Reservation { id, quantity, lease_ms, lease_end_us, gone_us, arrival_us, rule }
    }
}

impl<I, R> Reservation<I, R> {
    pub fn start_us(&self) -> u64 {
        start_us(self.lease_end_us, self.lease_ms)
    }

    /// Returns whether it still holds after its lease has ended (COUNTLAPSED).
    pub fn counts_lapsed(&self) -> bool {
        self.gone_us > self.lease_end_us
    }

    /// Returns whether its lease begins after `now_us`, because the clock was set back.
    pub fn is_from_future(&self, now_us: u64) -> bool {
        self.start_us() > now_us
    }

    /// Returns the end of its lease as seen from `now_us`, which is at most one lease away after the clock was set back.
    pub fn seen_lease_end_us(&self, now_us: u64) -> u64 {
        self.lease_end_us.min(lease_end_us(now_us, self.lease_ms))
    }

    pub fn runs(&self, now_us: u64) -> bool {
        self.seen_lease_end_us(now_us) > now_us
    }

    /// Returns whether it holds its quantity at `now_us`.
    pub fn is_live(&self, now_us: u64) -> bool {
        self.gone_us > now_us
    }
}

/// The quantity that one live reservation holds, and until when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hold {
    /// The time at which it stops holding, in Unix microseconds.
    pub gone_us: u64,
    pub quantity: u64,
}

impl<I, R> From<&Reservation<I, R>> for Hold {
    fn from(one: &Reservation<I, R>) -> Hold {
        Hold { gone_us: one.gone_us, quantity: one.quantity }
    }
}

/// Reservations as they are seen at one moment. After the clock was set back, their leases end at most one lease from then,
/// and they hold accordingly.
pub struct ReservationView<'z> {
    now_us: u64,
    zones: &'z mut Zones,
    /// The rule that was read last: most of a key's reservations have the same.
    last: Option<(RuleText, Option<Rule>)>,
}

impl<'z> ReservationView<'z> {
    pub fn at(now_us: u64, zones: &'z mut Zones) -> ReservationView<'z> {
        ReservationView { now_us, zones, last: None }
    }

    /// Returns the reservation as it is seen at that moment. If it is from the future, this is what must be written.
    pub fn see<'m>(&mut self, one: &ReservationRef<'m>) -> ReservationRef<'m> {
        if !one.is_from_future(self.now_us) {
            return *one;
        }
        let lease_end_us = lease_end_us(self.now_us, one.lease_ms);
        let gone_us = match one.counts_lapsed() {
            true => self.gone_us(one, lease_end_us),
            false => lease_end_us,
        };
        Reservation { lease_end_us, gone_us, ..*one }
    }

    /// Returns the time at which a reservation whose lease ends at `lease_end_us` stops holding. Outside the years that a
    /// calendar covers, it holds beyond the lease for the same time as before.
    fn gone_us(&mut self, one: &ReservationRef, lease_end_us: u64) -> u64 {
        let cached = self.last.as_ref().filter(|(text, _)| text.as_bytes() == one.rule);
        let rule = match cached {
            Some((_, rule)) => *rule,
            None => {
                let rule = Rule::parse(one.rule, self.zones);
                self.last = Some((RuleText::from(one.rule), rule));
                rule
            }
        };
        let expires_us = rule.and_then(|rule| rule.expires_us(lease_end_us, self.zones));
        let expires_us = expires_us.filter(|expires_us| *expires_us > lease_end_us);
        let after_us = one.gone_us.saturating_sub(one.lease_end_us);
        expires_us.unwrap_or_else(|| lease_end_us.saturating_add(after_us))
    }
}

/// A live reservation, as RL.HELD lists it.
#[derive(Clone, Copy, Debug)]
pub struct HeldReservation {
    pub id: Id,
    pub quantity: u64,
    /// Microseconds until its lease ends. 0 if the lease has ended but the reservation still holds.
    pub left_us: u64,
    arrival_us: u64,
}

impl HeldReservation {
    pub fn at(one: &ReservationRef, now_us: u64) -> HeldReservation {
        HeldReservation {
            id: Id::from(one.id),
            quantity: one.quantity,
            left_us: one.seen_lease_end_us(now_us).saturating_sub(now_us),
            arrival_us: one.arrival_us,
        }
    }

    /// Sorts reservations by their arrival.
    pub fn oldest_first(mut list: Vec<HeldReservation>) -> Vec<HeldReservation> {
        list.sort_by_cached_key(|one| one.arrival_us);
        list
    }
}

/// Returns what the members of an id begin with, and no others.
// Inlined so that the text is not copied.
#[inline(always)]
pub fn member_prefix(id: &[u8]) -> ReservationMember {
    let mut text = ReservationMember::new();
    text.push(&[MEMBER_PREFIX]);
    text.push_number(u64::try_from(id.len()).unwrap_or(0), 2);
    text.push(b":");
    text.push(id);
    text.push(b":");
    text
}

fn split_id(member: &[u8]) -> Option<(&[u8], &[u8])> {
    let &[MEMBER_PREFIX, tens, ones, b':', ref rest @ ..] = member else { return None };
    let length = usize::try_from(parse_fixed_digits(&[tens, ones])?).ok()?;
    let (id, rest) = rest.split_at_checked(length)?;
    Some((id, rest.strip_prefix(b":")?))
}

pub fn lease_end_us(start_us: u64, lease_ms: u64) -> u64 {
    start_us.saturating_add(lease_ms.saturating_mul(1_000))
}

fn start_us(lease_end_us: u64, lease_ms: u64) -> u64 {
    lease_end_us.saturating_sub(lease_ms.saturating_mul(1_000))
}

#[cfg(test)]
mod tests;
