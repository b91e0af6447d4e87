//! A share of each limit: for several processes that each keep a part of it, as they have no server to ask.
//!
//! It works on the words of a call, before anything is read of them, so that it is the same for every command:
//!
//! ```
//! use redis_ratelimit_commands::share::Share;
//!
//! let quarter = Share::new(1, 4).expect("between 0 and 1");
//! let words: [&[u8]; 4] = [b"RL.WINDOW", b"user:1", b"10", b"1min"];
//! assert_eq!(quarter.of_call(&words), [&b"RL.WINDOW"[..], b"user:1", b"2", b"1min"]);
//! ```
//!
//! What can be had at once is rounded down, so the shares of all processes together are never more than the limit, with one
//! exception: it is at least 1, or a limit would admit nothing where there are more processes than it has units. A limit of 0
//! stays 0. The number of a rate for each period is not rounded: where it would be no whole number the period is made longer.
//! LEAVE is rounded up. Quantities, waits and leases stay as they are.

use crate::arguments::Family;
use crate::options::{spells, TABLE};
use engine::decimal::{parse_i64, parse_u64};
use engine::period::{Length, Period, MAX_PERIOD_MS};
use std::borrow::Cow;

/// A part of the whole: `part` of `whole`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    part: u32,
    whole: u32,
}

type SharedWords<'a> = Vec<Cow<'a, [u8]>>;

/// Whether `word` is an option whose next word is its value, whatever it says.
fn has_value(word: &[u8]) -> bool {
    TABLE.iter().any(|row| row.value.is_some() && spells(word, row.name.as_bytes()))
}

/// The family of a command that takes a limit after its key.
fn family_of_command(name: &[u8]) -> Option<Family> {
    let rest = match name.split_at_checked(3)? {
        (prefix, rest) if spells(prefix, b"RL.") || spells(prefix, b"CL.") => rest,
        _ => return None,
    };
    let short = rest.len().checked_sub(3).and_then(|at| rest.split_at_checked(at));
    Family::named(match short {
        Some((bare, suffix)) if spells(suffix, b"_RO") => bare,
        _ => rest,
    })
}

fn decimal<'a>(number: u128) -> Cow<'a, [u8]> {
    Cow::Owned(number.to_string().into_bytes())
}

impl Share {
    /// `part` of `whole`; `None` unless it is above 0 and at most all of it.
    pub fn new(part: u32, whole: u32) -> Option<Share> {
        (part > 0 && part <= whole).then_some(Share { part, whole })
    }

    /// The share that a number from a program says: 0.25 is 1 of 4, and what comes next to a third is 1 of 3. The whole is up
    /// to 10,000; a number that is no such fraction is rounded down. `None` unless it is from 1/10,000 to 1.
    pub fn nearest(share: f64) -> Option<Share> {
        const MOST: u32 = 10_000;
        if !(share > 0.0 && share <= 1.0) {
            return None;
        }
        let exact = (1..=MOST).find_map(|whole| {
            let part = share * f64::from(whole);
            let is_near = (part - part.round()).abs() < 1e-9 * f64::from(whole);
            (is_near && part.round() >= 1.0).then(|| Share::new(part.round() as u32, whole))?
        });
        exact.or_else(|| Share::new((share * f64::from(MOST)) as u32, MOST))
    }

    /// Whether it is all of it.
    pub fn is_all(self) -> bool {
        self.part == self.whole
    }

    /// The words of a call with its limits scaled. Words that are no numbers stay: the command says what is wrong.
    pub fn of_call<'a>(self, words: &[&'a [u8]]) -> SharedWords<'a> {
        let mut out: SharedWords<'a> = Vec::with_capacity(words.len());
        let mut rest = words.iter().copied();
        let Some(name) = rest.next() else { return out };
        out.push(Cow::Borrowed(name));
        if let Some(family) = family_of_command(name) {
            out.extend(rest.next().map(Cow::Borrowed));
            self.limit(family, &mut rest, &mut out);
            self.options(&mut rest, &mut out);
        } else if spells(name, b"RL.ALL") || spells(name, b"RL.ALL_RO") {
            if let Some(count) = rest.next() {
                out.push(Cow::Borrowed(count));
                let keys = parse_u64(count).and_then(|keys| usize::try_from(keys).ok());
                out.extend(rest.by_ref().take(keys.unwrap_or(0)).map(Cow::Borrowed));
                self.options(&mut rest, &mut out);
            }
        } else if spells(name, b"CONFIG") {
            out.extend(rest.by_ref().take(1).map(Cow::Borrowed));
            while let Some(setting) = rest.next() {
                out.push(Cow::Borrowed(setting));
                let is_policies = spells(setting, b"ratelimit.policies");
                out.extend(rest.next().map(|value| match is_policies {
                    true => Cow::Owned(self.of_policies(value)),
                    false => Cow::Borrowed(value),
                }));
            }
        }
        out.extend(rest.map(Cow::Borrowed));
        out
    }

    /// The setting `ratelimit.policies` with its limits scaled.
    pub fn of_policies(self, setting: &[u8]) -> Vec<u8> {
        let policies = setting.split(|byte| *byte == b';').map(|policy| {
            let words = policy.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
            let words: Vec<&[u8]> = words.collect();
            let mut rest = words.iter().copied();
            let mut out = Vec::with_capacity(words.len());
            out.extend(rest.by_ref().take(1).map(Cow::Borrowed));
            self.options(&mut rest, &mut out);
            out.join(&b' ')
        });
        policies.collect::<Vec<_>>().join(&b"; "[..])
    }

    /// What can be had at once of `most`.
    fn at_once(self, most: u128) -> u128 {
        self.floor(most).max(most.min(1))
    }

    fn floor(self, number: u128) -> u128 {
        number.saturating_mul(self.part.into()).checked_div(self.whole.into()).unwrap_or(number)
    }

    /// The words of a limit: those of a policy are scaled where it is defined.
    fn limit<'a>(
        self,
        family: Family,
        rest: &mut impl Iterator<Item = &'a [u8]>,
        out: &mut SharedWords<'a>,
    ) {
        let Some(first) = rest.next() else { return };
        let number = |word| parse_i64(word).and_then(|number| u128::try_from(number).ok());
        let scaled = match (number(first), family) {
            (Some(limit), Family::Window | Family::Acquire) => decimal(self.at_once(limit)),
            (Some(burst), Family::Throttle) => {
                decimal(self.at_once(burst.saturating_add(1)).saturating_sub(1))
            }
            (None, _) => Cow::Borrowed(first),
        };
        out.push(scaled);
        if family != Family::Throttle || first.starts_with(b"@") {
            return;
        }
        let (Some(count), Some(period)) = (rest.next(), rest.next()) else { return };
        let (count, period) = self.rate(count, period);
        out.extend([count, period]);
    }

    /// So many in a period.
    fn rate<'a>(self, count: &'a [u8], period: &'a [u8]) -> (Cow<'a, [u8]>, Cow<'a, [u8]>) {
        let as_it_is = (Cow::Borrowed(count), Cow::Borrowed(period));
        let (Some(number), Ok(length)) = (parse_u64(count), Period::parse(period)) else {
            return as_it_is;
        };
        let Length::Ms(period_ms) = length.length() else { return as_it_is };
        let (number, whole) = (u128::from(number), u128::from(self.whole));
        let part = number.saturating_mul(self.part.into());
        let longer_ms = u128::from(period_ms).saturating_mul(whole);
        if part.checked_rem(whole) == Some(0) {
            (decimal(self.floor(number)), Cow::Borrowed(period))
        } else if part <= u128::from(i64::MAX.unsigned_abs()) && longer_ms <= MAX_PERIOD_MS.into() {
            (decimal(part), Cow::Owned(format!("{longer_ms}ms").into_bytes()))
        } else {
            (decimal(self.at_once(number)), Cow::Borrowed(period))
        }
    }

    /// What follows a limit, with the clauses of RL.ALL among it.
    fn options<'a>(self, rest: &mut impl Iterator<Item = &'a [u8]>, out: &mut SharedWords<'a>) {
        while let Some(word) = rest.next() {
            out.push(Cow::Borrowed(word));
            if let Some(family) = Family::named(word) {
                self.limit(family, rest, out);
            } else if has_value(word) {
                let Some(value) = rest.next() else { return };
                let left = parse_u64(value).filter(|_| spells(word, b"LEAVE"));
                out.push(left.map_or(Cow::Borrowed(value), |left| {
                    let most = u128::from(left).saturating_mul(self.part.into());
                    decimal(most.div_ceil(u128::from(self.whole).max(1)))
                }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaled(part: u32, whole: u32, line: &str) -> String {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let out = Share::new(part, whole).unwrap().of_call(&words);
        String::from_utf8(out.join(&b' ')).unwrap()
    }

    #[test]
    fn a_limit_is_rounded_down_but_stays_at_least_one() {
        for (line, is) in [
            ("RL.WINDOW k 10 60", "RL.WINDOW k 2 60"),
            ("RL.WINDOW k 3 60", "RL.WINDOW k 1 60"),
            ("RL.WINDOW k 0 60", "RL.WINDOW k 0 60"),
            ("rl.window_ro k 400 1mo 7 FIXED MS", "rl.window_ro k 100 1mo 7 FIXED MS"),
            ("RL.ACQUIRE k 5 0 1 ID LEAVE LEAVE 2", "RL.ACQUIRE k 1 0 1 ID LEAVE LEAVE 1"),
            ("RL.WINDOW k @plan 3", "RL.WINDOW k @plan 3"),
            ("RL.WINDOW k many 60", "RL.WINDOW k many 60"),
            ("RL.APPLY k 8 4", "RL.APPLY k 8 4"),
            ("RL.WINDOW", "RL.WINDOW"),
        ] {
            assert_eq!(scaled(1, 4, line), is);
        }
    }

    #[test]
    fn a_rate_keeps_its_number_for_each_time_exactly() {
        for (line, is) in [
            // 16 at once and 30 a minute: 4 at once and 30 in four minutes.
            ("RL.THROTTLE k 15 30 60 1 MS", "RL.THROTTLE k 3 30 240000ms 1 MS"),
            ("RL.THROTTLE k 15 40 60 1 MS", "RL.THROTTLE k 3 10 60 1 MS"),
            ("RL.THROTTLE_RO k 0 1 500ms", "RL.THROTTLE_RO k 0 1 2000ms"),
            ("RL.THROTTLE k 0 1 60y", "RL.THROTTLE k 0 1 60y"),
            ("RL.THROTTLE k 0 7 30000d", "RL.THROTTLE k 0 1 30000d"),
            ("RL.THROTTLE k @free 3", "RL.THROTTLE k @free 3"),
        ] {
            assert_eq!(scaled(1, 4, line), is);
        }
        assert_eq!(scaled(2, 3, "RL.THROTTLE k 8 5 1s"), "RL.THROTTLE k 5 10 3000ms");
    }

    #[test]
    fn each_clause_and_each_policy_is_scaled() {
        let all = "RL.ALL 2 WINDOW @x WINDOW 60 1min 2 LEAVE 6 ELSE ACQUIRE 8 0 1 ID WINDOW MS";
        let is = "RL.ALL 2 WINDOW @x WINDOW 15 1min 2 LEAVE 2 ELSE ACQUIRE 2 0 1 ID WINDOW MS";
        assert_eq!(scaled(1, 4, all), is);
        let share = Share::new(1, 2).unwrap();
        let policies = share
            .of_policies(b"free THROTTLE 15 30 60;; day  WINDOW 9 1d FIXED TZ UTC BAN 5 SHADOW");
        let is = &b"free THROTTLE 7 15 60; ; day WINDOW 4 1d FIXED TZ UTC BAN 5 SHADOW"[..];
        assert_eq!(policies, is);
        let words: [&[u8]; 4] = [b"CONFIG", b"SET", b"ratelimit.policies", b"a WINDOW 4 1"];
        assert_eq!(share.of_call(&words).last().unwrap().as_ref(), b"a WINDOW 2 1");
    }

    #[test]
    fn a_share_is_above_nothing_and_at_most_all() {
        assert_eq!(
            [(0, 4), (5, 4), (0, 0)].map(|(part, whole)| Share::new(part, whole)),
            [None; 3]
        );
        assert_eq!(scaled(4, 4, "RL.THROTTLE k 15 30 60 1"), "RL.THROTTLE k 15 30 60 1");
        assert_eq!(scaled(1, 2, "XY.THROTTLE k 15 30 60 1"), "XY.THROTTLE k 15 30 60 1");
        let is_all = |part| Share::new(part, 4).unwrap().is_all();
        assert!(is_all(4) && !is_all(3));
    }

    #[test]
    fn a_number_is_the_nearest_fraction_or_rounded_down() {
        let share = |number: f64| Share::nearest(number).map(|share| (share.part, share.whole));
        for (number, fraction) in [
            (0.25, (1, 4)),
            (1.0 / 3.0, (1, 3)),
            (0.333_333_333, (1, 3)),
            (0.666_666_667, (2, 3)),
            (0.333, (333, 1_000)),
            (2.0 / 7.0, (2, 7)),
            (1.0, (1, 1)),
            (1.0 / 10_000.0, (1, 10_000)),
            (0.123_456_789, (1_234, 10_000)),
        ] {
            assert_eq!(share(number), Some(fraction), "{number}");
        }
        let none = [0.0, -0.5, 1.000_1, 1.5, 1e-5, f64::NAN, f64::INFINITY].map(share);
        assert_eq!(none, [None; 7]);
    }

    /// The shares of all processes together admit no more than the limit, where it has a unit for each.
    #[test]
    fn all_shares_together_are_never_more_than_the_limit() {
        for whole in 1..=20_u32 {
            for limit in whole..=60 {
                let words = scaled(1, whole, &format!("RL.WINDOW k {limit} 60"));
                let each: u32 = words.split(' ').nth(2).unwrap().parse().unwrap();
                assert!(each * whole <= limit, "{each} of {limit} for 1/{whole}");
            }
        }
    }
}
