//! Entries of reservations in a key's sorted set.
//!
//! All of them have the score -inf, so they lie before the events and in the order of their members, which begin
//! with the id: a reservation is found by its id without a scan.
//!
//! ```text
//! #05:job-1:2:20000:1795223819544558::60s
//!  |  |     | |     |                || rule of the window, or - for a semaphore
//!  |  |     | |     |                | order of arrival in microseconds, if not end - lease
//!  |  |     | |     | end of the lease in Unix microseconds
//!  |  |     | | length of the lease in milliseconds
//!  |  |     | quantity
//!  |  | id
//!  | length of the id
//! ```
//!
//! `#` comes before the digits in ASCII, so every reservation sorts before every event by its member too. A search by
//! member relies on that.

use super::decimal::{leading_u64, parse_digits, Text};
use super::event::MAX_SUM;
use super::rule::MAX_RULE;

/// The longest id, in bytes.
pub const MAX_ID: usize = 64;

/// The id of a reservation, 1 to 64 bytes.
pub type Id = Text<MAX_ID>;

/// A year of 365.25 days in milliseconds, the longest lease and the longest wait.
pub const YEAR_MS: u64 = 31_557_600_000;

/// The first byte of a member.
const MARK: u8 = b'#';

/// Longest member: id, four numbers, a rule and the marks.
pub type Member = Text<256>;

/// Beginning of a member, up to and with the id and the mark after it.
pub type Prefix = Text<72>;

/// Something set aside.
#[derive(Clone, Copy, Debug)]
pub struct Reservation<'m> {
    /// 1 to 64 bytes, any.
    pub id: &'m [u8],
    /// How much, at least 1.
    pub quantity: u64,
    /// How long a lease lasts, 1 to [`YEAR_MS`].
    pub lease_ms: u64,
    /// When it lapses if the clock goes on as it should, in Unix microseconds.
    pub end_us: u64,
    /// Orders reservations by arrival.
    pub order_us: u64,
    /// What APPLY counts by, as [`super::rule::Rule::parse`] reads it. Only APPLY needs to.
    pub rule: &'m [u8],
}

impl<'m> Reservation<'m> {
    /// Reads a member; `None` for one that this module did not write.
    pub fn decode(member: &'m [u8]) -> Option<Reservation<'m>> {
        let &[MARK, tens, ones, b':', ref rest @ ..] = member else { return None };
        let length = usize::try_from(parse_digits(&[tens, ones])?).ok()?;
        let (id, rest) = rest.split_at_checked(length)?;
        let number = |text: &'m [u8]| {
            let (number, rest) = leading_u64(text)?;
            Some((number, rest.strip_prefix(b":")?))
        };
        let (quantity, rest) = number(rest.strip_prefix(b":")?)?;
        let (lease_ms, rest) = number(rest)?;
        let (end_us, rest) = number(rest)?;
        let (order_us, rule) = match rest.strip_prefix(b":") {
            Some(rule) => (start_us(end_us, lease_ms), rule),
            // Written only where it differs: there is one way to write a reservation.
            None => number(rest).filter(|(order_us, _)| *order_us != start_us(end_us, lease_ms))?,
        };
        let sound = (1..=MAX_RULE).contains(&rule.len())
            && (1..=MAX_ID).contains(&length)
            && (1..=MAX_SUM).contains(&quantity)
            && (1..=YEAR_MS).contains(&lease_ms);
        sound.then_some(Reservation { id, quantity, lease_ms, end_us, order_us, rule })
    }

    /// The member that [`Reservation::decode`] reads.
    pub fn member(&self) -> Member {
        let mut text = Member::new();
        text.push(prefix(self.id, b':').as_bytes());
        text.push_number(self.quantity, 1);
        text.push(b":");
        text.push_number(self.lease_ms, 1);
        text.push(b":");
        text.push_number(self.end_us, 1);
        text.push(b":");
        if self.order_us != start_us(self.end_us, self.lease_ms) {
            text.push_number(self.order_us, 1);
        }
        text.push(b":");
        text.push(self.rule);
        text
    }

    /// When its lease began.
    pub fn start_us(&self) -> u64 {
        start_us(self.end_us, self.lease_ms)
    }

    /// When it lapses, seen from `now_us`: at its end, and after a clock that went back at most one lease
    /// from now.
    pub fn lapses_us(&self, now_us: u64) -> u64 {
        self.end_us.min(end_us(now_us, self.lease_ms))
    }

    /// Whether it is still held at `now_us`.
    pub fn live(&self, now_us: u64) -> bool {
        self.lapses_us(now_us) > now_us
    }
}

/// When a lease that begins at `start_us` ends.
pub fn end_us(start_us: u64, lease_ms: u64) -> u64 {
    start_us.saturating_add(lease_ms.saturating_mul(1_000))
}

fn start_us(end_us: u64, lease_ms: u64) -> u64 {
    end_us.saturating_sub(lease_ms.saturating_mul(1_000))
}

/// The members of the reservation `id` begin with `prefix(id, b':')`, and no others lie between that and
/// `prefix(id, b';')`, the next in order.
pub fn prefix(id: &[u8], mark: u8) -> Prefix {
    let mut text = Prefix::new();
    text.push(&[MARK]);
    text.push_number(u64::try_from(id.len()).unwrap_or(0), 2);
    text.push(b":");
    text.push(id);
    text.push(&[mark]);
    text
}

#[cfg(test)]
mod tests {
    use super::super::properties::cases;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(cases(1_000))]

        #[test]
        fn every_reservation_comes_back(
            id in proptest::collection::vec(any::<u8>(), 1..=MAX_ID),
            quantity in 1..=MAX_SUM,
            lease_ms in 1..=YEAR_MS,
            end_us in any::<u64>(),
            order_us in any::<u64>(),
            rule in "[ -~]{1,96}",
        ) {
            let one = Reservation { id: &id, quantity, lease_ms, end_us, order_us, rule: rule.as_bytes() };
            let member = one.member();
            let back = Reservation::decode(member.as_bytes()).unwrap();
            let fields = |one: &Reservation| (one.quantity, one.lease_ms, one.end_us, one.order_us);
            prop_assert_eq!(fields(&back), fields(&one));
            prop_assert_eq!((back.id, back.rule), (one.id, one.rule));
        }

        #[test]
        fn no_bytes_make_it_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..90),
            text in "#[0-9]{0,3}:[a-z:]{0,5}:[0-9]{0,3}:[0-9]{0,3}:[0-9]{0,20}:[0-9]{0,3}:.{0,9}",
        ) {
            for bytes in [&bytes[..], text.as_bytes()] {
                if let Some(one) = Reservation::decode(bytes) {
                    let again = one.member();
                    prop_assert!(Reservation::decode(again.as_bytes()).is_some());
                    prop_assert!(again.as_bytes().starts_with(prefix(one.id, b':').as_bytes()));
                }
            }
        }
    }

    const MEMBER: &[u8] = b"#05:job-1:2:20000:1795223819544558::60s";

    #[test]
    fn members_come_back() {
        for rule in ["-", "60s", "500ms/10", "3mo", "1d@Asia/Shanghai", "1w@+08:00"] {
            for id in [&b"a"[..], b"a:b\0;\xff", &[b':'; 64]] {
                for order_us in [1_795_223_799_544_558, 0] {
                    let one = Reservation {
                        id,
                        quantity: MAX_SUM,
                        lease_ms: 20_000,
                        end_us: 1_795_223_819_544_558,
                        order_us,
                        rule: rule.as_bytes(),
                    };
                    let member = one.member();
                    assert!(member.as_bytes().starts_with(prefix(id, b':').as_bytes()));
                    assert!(member.as_bytes() < prefix(id, b';').as_bytes());
                    let back = Reservation::decode(member.as_bytes()).unwrap();
                    assert_eq!((back.id, back.quantity, back.lease_ms), (id, MAX_SUM, 20_000));
                    assert_eq!((back.end_us, back.order_us), (one.end_us, order_us));
                    assert_eq!(back.rule, rule.as_bytes());
                }
            }
        }
    }

    #[test]
    fn the_usual_member_stays_within_a_listpack() {
        let one = Reservation { id: b"0123456789abcdef", ..Reservation::decode(MEMBER).unwrap() };
        assert!(one.member().as_bytes().len() <= 64);
    }

    #[test]
    fn what_others_wrote_is_no_reservation() {
        for member in [
            "",
            "#",
            ":05:job-1:2:20000:1795223819544558::60s",
            "17",
            "#05:job-1",
            "#06:job-1:2:20000:1795223819544558::60s",
            "#05:job-1:0:20000:1795223819544558::60s",
            "#05:job-1:2:0:1795223819544558::60s",
            "#05:job-1:02:20000:1795223819544558::60s",
            "#05:job-1:2:20000:x::60s",
            "#05:job-1:2:20000:1795223819544558:60s",
            "#05:job-1:2:20000:1795223819544558::",
            "#00::2:20000:1795223819544558::60s",
            "#5:job-1:2:20000:1795223819544558::60s",
        ] {
            assert!(Reservation::decode(member.as_bytes()).is_none(), "{member}");
        }
    }

    #[test]
    fn a_rule_that_could_not_be_written_back_is_none_of_ours() {
        for (length, ours) in [(MAX_RULE, true), (MAX_RULE + 1, false), (1_000, false)] {
            let member = [MEMBER, &vec![b'x'; length - 3]].concat();
            assert_eq!(Reservation::decode(&member).is_some(), ours, "{length}");
        }
    }

    #[test]
    fn a_lease_from_the_future_ends_one_lease_from_now() {
        let one = Reservation::decode(MEMBER).unwrap();
        assert_eq!(one.lapses_us(one.end_us - 1), one.end_us);
        assert_eq!(one.lapses_us(1_000_000), 21_000_000);
        assert!(one.live(one.end_us - 1) && !one.live(one.end_us));
    }
}
