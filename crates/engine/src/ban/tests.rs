//! Bans by themselves, and those of calls compared with a model: a list of events, or one time, and the end of the last ban.

use super::*;
use crate::decide::Mode;
use crate::decision::{Ask, Manner, Quantity, Verdict};
use crate::memory::tests::{acquire, window};
use crate::memory::{Memory, SavedValue};
use crate::model::decide;
use crate::period::Period;
use crate::properties::{cases, START_US};
use crate::request::{Limit, Request, WindowLimit};
use crate::rule::Rule;
use crate::throttle::Rate;
use proptest::prelude::*;
use proptest::sample::select;

/// As many units as the period has milliseconds. A counted denial, or an event that FORCE counts beyond the limit, may
/// leave a little late. In a period this short it is less than a microsecond, so the list of events is exact.
const LIMIT: u64 = 4;
const PERIOD_MS: u64 = 4;

#[derive(Clone, Copy, Debug)]
enum BanAct {
    Pass(u64),
    Take { quantity: u64, ban_ms: Option<u64>, manner: Manner, count_denied: bool },
    GiveBack(u64),
    Look,
}

fn acts() -> impl Strategy<Value = Vec<BanAct>> {
    let ban = prop_oneof![Just(None), select(vec![1u64, 3, 10, 40]).prop_map(Some)];
    let take = (0..=LIMIT + 1, ban, 0..8, any::<bool>()).prop_map(
        |(quantity, ban_ms, manner, count_denied)| {
            let manner = match manner {
                0 | 1 => Manner::Force,
                2 => Manner::AtMost,
                _ => Manner::Whole,
            };
            let (force, may_ban) = (manner == Manner::Force, manner != Manner::AtMost);
            let quantity = if force { quantity } else { quantity.max(1) };
            let ban_ms = ban_ms.filter(|_| may_ban);
            BanAct::Take { quantity, ban_ms, manner, count_denied: count_denied && !force }
        },
    );
    let pass = prop_oneof![0u64..2_000, 0u64..30_000];
    let one = prop_oneof![
        4 => pass.prop_map(BanAct::Pass),
        8 => take,
        1 => (1..=3u64).prop_map(BanAct::GiveBack),
        1 => Just(BanAct::Look),
    ];
    proptest::collection::vec(one, 1..60)
}

/// What uses up the limit in the model.
#[derive(Clone, Debug)]
enum Used {
    /// Events in a window: when, and how many.
    Window(Vec<(u64, u64)>),
    /// When the bucket is full again.
    Bucket(u64),
}

impl Used {
    fn free_at(&self, us: u64) -> i128 {
        let used: u64 = match self {
            Used::Window(events) => {
                let live = events.iter().filter(|(at_us, _)| at_us + PERIOD_MS * 1_000 > us);
                live.map(|(_, weight)| weight).sum()
            }
            Used::Bucket(full_us) => full_us.saturating_sub(us).div_ceil(1_000),
        };
        i128::from(LIMIT) - i128::from(used)
    }

    fn is_new_at(&self, us: u64) -> bool {
        match self {
            Used::Window(_) => self.free_at(us) == i128::from(LIMIT),
            Used::Bucket(full_us) => *full_us <= us,
        }
    }

    fn take(&mut self, us: u64, quantity: u64) {
        match self {
            Used::Window(events) => events.push((us, quantity)),
            Used::Bucket(full_us) => *full_us = (*full_us).max(us) + quantity * 1_000,
        }
    }

    fn give_back(&mut self, us: u64, mut quantity: u64) {
        match self {
            Used::Window(events) => {
                events.retain(|(at_us, _)| at_us + PERIOD_MS * 1_000 > us);
                for (_, weight) in events.iter_mut() {
                    let gone = quantity.min(*weight);
                    (*weight, quantity) = (*weight - gone, quantity - gone);
                }
                events.retain(|(_, weight)| *weight > 0);
            }
            Used::Bucket(full_us) => *full_us = full_us.saturating_sub(quantity * 1_000).max(us),
        }
    }

    /// Returns the first moment from `us` on at which `quantity` is free.
    fn free_from(&self, us: u64, quantity: u64) -> u64 {
        let times = match self {
            Used::Window(events) => {
                events.iter().map(|(at_us, _)| at_us + PERIOD_MS * 1_000).collect::<Vec<_>>()
            }
            Used::Bucket(full_us) => {
                let limit_us = LIMIT * 1_000;
                vec![(full_us + quantity * 1_000).saturating_sub(limit_us)]
            }
        };
        let later = times.into_iter().chain([us]).filter(|time_us| *time_us >= us);
        later.filter(|at| self.free_at(*at) >= i128::from(quantity)).min().unwrap()
    }
}

fn check(limit: Limit, mut used: Used, acts: Vec<BanAct>) {
    let memory = Memory::default();
    let mut now_us = START_US;
    // When the last ban ends; `None` once something was granted.
    let mut ban_us: Option<u64> = None;
    for (step, act) in acts.into_iter().enumerate() {
        // Once only the mark of a past ban is left, the mark is gone too.
        ban_us = ban_us.filter(|end_us| *end_us > now_us || !used.is_new_at(now_us));
        let mut request = Request::new(limit);
        let runs = ban_us.is_some_and(|end_us| end_us > now_us);
        let free = used.free_at(now_us);
        match act {
            BanAct::Pass(us) => {
                now_us += us;
                continue;
            }
            BanAct::Look => request.ask.quantity = Quantity::Look,
            BanAct::GiveBack(quantity) => request.ask.quantity = Quantity::GiveBack(quantity),
            BanAct::Take { quantity, ban_ms, manner, count_denied } => {
                let quantity = Quantity::from_signed(quantity.cast_signed());
                request.ask = Ask { manner, ..Ask::whole(quantity) };
                (request.ban_ms, request.count_denied) = (ban_ms, count_denied);
            }
        }
        let (before, ban_before) = (memory.save(b"k"), ban_us);
        let decision = memory.decide(b"k", &request, now_us, || unreachable!()).unwrap();
        let mut expected: Option<u64> = None;
        match act {
            BanAct::Pass(_) | BanAct::Look => {}
            BanAct::GiveBack(quantity) => used.give_back(now_us, quantity),
            BanAct::Take { quantity, manner: Manner::Force, ban_ms, .. } => {
                used.take(now_us, quantity);
                let end_us = ban_ms.map(|length_ms| (now_us / 1_000 + length_ms) * 1_000);
                ban_us = ban_us.max(end_us);
                if quantity == 0 && ban_us == ban_before {
                    assert_eq!(memory.save(b"k"), before, "step {step}: {act:?}");
                }
            }
            BanAct::Take { quantity, ban_ms, manner, count_denied } => {
                let min_taken = if manner == Manner::AtMost { 1 } else { quantity };
                let taken = quantity.min(u64::try_from(free).unwrap_or(0));
                if !runs && free >= i128::from(min_taken) {
                    used.take(now_us, if manner == Manner::AtMost { taken } else { quantity });
                    ban_us = None;
                } else if min_taken > LIMIT {
                    expected = Some(u64::MAX);
                } else {
                    let bans = free < i128::from(quantity) && ban_us.is_none();
                    if let Some(length_ms) = ban_ms.filter(|_| bans) {
                        ban_us = Some((now_us / 1_000 + length_ms) * 1_000);
                    }
                    let counts = count_denied && quantity <= LIMIT;
                    if counts && matches!(used, Used::Window(_)) {
                        used.take(now_us, quantity);
                    }
                    let free_us = used.free_from(now_us, min_taken);
                    expected = Some(free_us.max(ban_us.unwrap_or(0)) - now_us);
                }
            }
        }
        let closed = ban_us.is_some_and(|end_us| end_us > now_us);
        let remaining = if closed { 0 } else { u64::try_from(used.free_at(now_us)).unwrap_or(0) };
        assert_eq!(
            decision.verdict.allowed(),
            expected.is_none(),
            "step {step}: {act:?} {decision:?}"
        );
        assert_eq!(decision.remaining, remaining, "step {step}: {act:?} {decision:?} {used:?}");
        let wait_us = expected.filter(|wait_us| *wait_us < u64::MAX);
        assert_eq!(decision.verdict.retry_after_us(), wait_us, "step {step}: {act:?} {used:?}");
        let left_us = ban_us.map_or(0, |end_us| end_us.saturating_sub(now_us));
        assert!(decision.reset_after_us >= left_us, "step {step}: {act:?} {decision:?}");
    }
}

proptest! {
    #![proptest_config(cases(3_000))]

    #[test]
    fn windows_ban_as_the_definition_says(acts in acts()) {
        let rule = Rule::Sliding { period: Period::parse(b"4ms").unwrap(), buckets: None };
        let window = WindowLimit { limit: LIMIT, rule, max_entries: 4096 };
        check(Limit::Window(window), Used::Window(Vec::new()), acts);
    }

    #[test]
    fn buckets_ban_as_the_definition_says(acts in acts()) {
        let rate = Rate::new(LIMIT - 1, LIMIT, PERIOD_MS).unwrap();
        check(Limit::Rate(rate), Used::Bucket(0), acts);
    }
}

/// A call that closes the key for `ban_ms` (FORCE), and counts a quantity.
fn closing(limit: Limit, quantity: i64, ban_ms: u64) -> Request {
    let ask = Ask { manner: Manner::Force, ..Ask::whole(Quantity::from_signed(quantity)) };
    Request { ask, ban_ms: Some(ban_ms), ..Request::new(limit) }
}

/// Returns the ban of the key `k`, and what else it holds, as texts.
fn ban_and_rest(memory: &Memory) -> (String, Vec<String>) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    match memory.save(b"k").unwrap().value {
        SavedValue::Bucket(value) => {
            let value = text(value);
            let (rest, ban) = value.split_once('!').unwrap_or((&value, ""));
            (ban.into(), vec![rest.into()])
        }
        SavedValue::Window { reserved, entries } => {
            let reserved: Vec<_> = reserved.into_iter().map(text).collect();
            let ban = reserved.iter().find_map(|member| member.strip_prefix('!'));
            let rest = reserved.iter().filter(|member| !member.starts_with('!')).cloned();
            let entries =
                entries.into_iter().map(|(score, entry)| format!("{score} {}", text(entry)));
            (ban.unwrap_or_default().into(), rest.chain(entries).collect())
        }
    }
}

/// After the clock was set back by a minute, FORCE with a quantity of 0 corrects the ban and nothing else.
#[test]
fn a_ban_without_a_quantity_heals_nothing_but_the_ban() {
    let back_us = START_US - 60_000_000;
    let bucket = Limit::Rate(Rate::new(9, 1, 1_000).unwrap());
    let end = |now_us: u64, length_ms: u64| format!("{}~{length_ms}", now_us / 1_000 + length_ms);
    for limit in [bucket, Limit::Window(window("100s", 9))] {
        let memory = Memory::default();
        let decide = |request: &Request, now_us| {
            memory.decide(b"k", request, now_us, || unreachable!()).unwrap()
        };
        if let Limit::Window(window) = limit {
            decide(&acquire(window, "x", 30_000), START_US);
        }
        // A debt of 3 in a bucket.
        decide(&closing(limit, 13, 10_000), START_US);
        let (ban, rest) = ban_and_rest(&memory);
        let expires_at_ms = memory.expires_at_ms(b"k", START_US).unwrap();
        assert_eq!(ban, end(START_US, 10_000));
        for (length_ms, ban) in [
            // It ends 10 s from now on, later than this one.
            (5_000, end(back_us, 10_000)),
            (10_000, end(back_us, 10_000)),
            (10_001, end(back_us, 10_001)),
        ] {
            let decision = decide(&closing(limit, 0, length_ms), back_us);
            assert_eq!((decision.verdict, decision.remaining), (Verdict::taking(0), 0));
            assert_eq!(ban_and_rest(&memory), (ban, rest.clone()), "{limit:?} {length_ms}");
            // The time that the rest needs has not changed.
            let lives_ms = memory.expires_at_ms(b"k", back_us).unwrap();
            assert!(lives_ms <= expires_at_ms && lives_ms + 1_000 > expires_at_ms, "{lives_ms}");
        }
        // With a quantity it heals all.
        decide(&closing(limit, 1, 5_000), back_us);
        let (ban, healed) = ban_and_rest(&memory);
        assert_eq!(ban, end(back_us, 10_001));
        assert!(healed.len() == rest.len() && healed.iter().all(|one| !rest.contains(one)));
    }
}

#[test]
fn a_debt_is_stored_as_it_then_is_by_a_ban_without_a_quantity() {
    let limit = Limit::Rate(Rate::new(9, 1, 1_000).unwrap());
    let memory = Memory::default();
    let decide = |request: &Request, now_us| {
        memory.decide(b"k", request, now_us, || unreachable!()).unwrap()
    };
    decide(&closing(limit, 13, 1_000), START_US);
    let (_, before) = ban_and_rest(&memory);
    let tat = before[0].strip_suffix("+3000000000").unwrap();
    for (after_us, debt) in [(1_000_000, "+2000000000"), (3_000_000, ""), (9_000_000, "")] {
        decide(&closing(limit, 0, 5_000), START_US + after_us);
        assert_eq!(ban_and_rest(&memory).1, [format!("{tat}{debt}")], "{after_us}");
    }
}

#[test]
fn a_key_that_holds_only_a_ban_lives_as_long_as_that() {
    let bucket = Limit::Rate(Rate::new(0, 1, 1_000).unwrap());
    let window = Limit::Window(window("1s", 1));
    // The clock is set back by an hour, so that the ban ends earlier.
    for (limit, backs_us) in [(bucket, &[0][..]), (window, &[0, 3_600_000_000])] {
        let memory = Memory::default();
        for back_us in backs_us {
            let now_us = START_US - back_us;
            let request = closing(limit, 0, 10_000);
            memory.decide(b"k", &request, now_us, || unreachable!()).unwrap();
            let lives_ms = memory.expires_at_ms(b"k", now_us).unwrap();
            assert_eq!(lives_ms, now_us / 1_000 + 10_900, "{limit:?} {back_us}");
        }
    }
}

/// Asks for one of the two that a window of 5 ms allows.
fn ask_for_one() -> Request {
    let rule = Rule::Sliding { period: Period::parse(b"5ms").unwrap(), buckets: None };
    let mut request =
        Request::new(Limit::Window(WindowLimit { limit: 2, rule, max_entries: 4096 }));
    request.ask = Ask::whole(Quantity::Take(1));
    request
}

#[test]
fn a_denied_call_behind_a_line_does_not_ban() {
    let memory = Memory::default();
    let mut request = ask_for_one();
    request.ask.quantity = Quantity::Take(2);
    request.ban_ms = Some(1_000);
    let retry_after_us = |barred: bool| {
        let key = memory.key(b"k", START_US);
        let decision = decide(key, &request, barred, Mode::Final, || unreachable!()).unwrap();
        decision.verdict.retry_after_us()
    };
    assert_eq!(retry_after_us(false), None);
    assert_eq!(retry_after_us(true), Some(5_000), "the wait of the window");
    assert_eq!(retry_after_us(false), Some(1_000_000 - START_US % 1_000), "the wait of the ban");
}

/// Without the ban a call that only its LEAVE denies would not count.
#[test]
fn a_ban_counts_what_it_denies_with_any_leave() {
    let memory = Memory::default();
    let call = |ms: u64, request: &Request| {
        let now_us = START_US + ms * 1_000;
        memory.decide(b"k", request, now_us, || unreachable!()).unwrap()
    };
    assert!(call(0, &ask_for_one()).verdict.allowed());
    let mut banning = ask_for_one();
    (banning.ask.quantity, banning.ban_ms) = (Quantity::Take(2), Some(2));
    assert!(!call(1, &banning).verdict.allowed());
    let mut leaving = ask_for_one();
    (leaving.ask.leave, leaving.count_denied) = (1, true);
    assert!(!call(2, &leaving).verdict.allowed());
    assert_eq!(call(4, &ask_for_one()).verdict.retry_after_us(), Some(1_000));
}

#[test]
fn a_ban_ends_on_a_millisecond_at_most_its_length_after_it_began() {
    let ban = Ban::starting(START_US, 10);
    assert_eq!(ban.end_us(), START_US - 558 + 10_000);
    let ban_at = |us| BanNow::at(Some(ban), us);
    assert_eq!(ban_at(START_US).left_us(), 10_000 - 558);
    assert_eq!(ban_at(ban.end_us() - 1).left_us(), 1);
    assert!(!ban_at(ban.end_us()).runs());
    // After the clock was set back, the ban ends after its full length from then on.
    let back = ban_at(START_US - 5_000_000);
    assert_eq!((back.is_from_future(), back.left_us()), (true, 10_000 - 558));
    assert!(!ban_at(START_US).is_from_future());
}

#[test]
fn foreign_text_is_not_a_ban() {
    for text in [
        "", "!", "!1", "!1~", "!~1", "1~1", "!1~0", "!01~1", "!1~01", "!1~1 ", "!1~1~1", "!-1~1",
        "!1~31557600001", "!9038756854741~1", "!18446744073709551615~1", "#1~1",
    ] {
        assert_eq!(Ban::decode(text.as_bytes()), None, "{text:?}");
    }
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn every_ban_comes_back(now_us in 0..=LAST_US, length_ms in 1..=YEAR_MS) {
        let ban = Ban::starting(now_us, length_ms);
        prop_assert_eq!(Ban::decode(ban.text().as_bytes()), Some(ban));
    }

    #[test]
    fn a_ban_that_is_read_is_written_the_same_way(text in "![0-9]{0,14}~?[0-9]{0,12}") {
        if let Some(ban) = Ban::decode(text.as_bytes()) {
            assert_eq!(ban.text().as_bytes(), text.as_bytes());
        }
    }
}
