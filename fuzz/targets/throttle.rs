//! Any calls on one bucket: nothing panics, the state comes back from its text, waiting as told is enough and no
//! less is, and over any time no more passes than the rate allows.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use redis_ratelimit_fuzz::limit::decision::Limited;
use redis_ratelimit_fuzz::limit::throttle::{bar, decide, look, Next, Rate, Tat};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    max_burst: u64,
    count: u64,
    period_ms: u64,
    /// How far the three above are shifted down, so that small ones come as often as large ones.
    shifts: [u8; 3],
    start_us: u64,
    stored: Option<&'a [u8]>,
    calls: Vec<Call>,
}

#[derive(Arbitrary, Debug)]
struct Call {
    /// The clock moves by this, shifted down: back as well.
    moves_us: i64,
    quantity: i64,
    shifts: [u8; 2],
    atmost: bool,
}

/// 1 January 2100. A stored time ends in 2286, and a bucket may be a century long.
const LATE_US: u64 = 4_102_444_800_000_000;
const PER_SECOND_EXACT: u128 = 1_000_000_000_000;

/// Everything that was taken since a moment, while nobody gave back and no clock went back.
struct Account {
    since_us: u64,
    taken: u128,
}

fuzz_target!(|input: Input| {
    let [burst, count, period] = input.shifts.map(|shift| u32::from(shift % 64));
    let max_burst = (input.max_burst >> burst).min(i64::MAX as u64 - 1);
    let count = (input.count >> count).clamp(1, i64::MAX as u64);
    let period_ms = (input.period_ms >> period).clamp(1, 3_155_760_000_000);
    let Ok(rate) = Rate::new(max_burst, count, period_ms) else { return };
    let limit = max_burst + 1;
    let exact = u128::from(count) * 1_000 <= PER_SECOND_EXACT * u128::from(period_ms);

    let mut now_us = input.start_us % LATE_US;
    let mut stored = input.stored.and_then(Tat::decode);
    let mut account = Account { since_us: now_us, taken: 0 };
    for call in input.calls.iter().take(200) {
        let moves_us = call.moves_us >> (call.shifts[0] % 64);
        now_us = now_us.saturating_add_signed(moves_us).min(LATE_US);
        let quantity = call.quantity >> (call.shifts[1] % 64);
        let atmost = call.atmost && quantity >= 0;

        let seen = look(&rate, stored, now_us, quantity, atmost);
        let (decision, next) = decide(&rate, stored, now_us, quantity, atmost);
        assert_eq!(seen.limited, decision.limited);
        assert_eq!(seen.retry_after_us, decision.retry_after_us);
        assert_eq!(decision.limit, limit);
        assert!(decision.remaining <= limit);
        let (barred, _) = bar(&rate, stored, now_us, decision, next);
        assert!(quantity <= 0 || barred.limited == Limited::Denied);

        let after = match next {
            Next::Keep => stored,
            Next::Store(tat) => {
                assert_eq!(Tat::decode(tat.encode().as_bytes()), Some(tat));
                assert!(tat.full_at_ms() >= now_us / 1_000);
                Some(tat)
            }
            Next::Delete => None,
        };
        match decision.limited {
            Limited::Allowed => {
                assert_eq!(decision.retry_after_us, None);
                let granted = if quantity <= 0 { 0 } else { quantity.unsigned_abs() };
                assert_eq!(
                    decision.granted,
                    if atmost { granted.min(seen.remaining) } else { granted }
                );
            }
            Limited::Denied => {
                assert_eq!(decision.granted, 0);
                let wait_us = decision.retry_after_us;
                assert_eq!(wait_us.is_none(), !atmost && quantity.unsigned_abs() > limit);
                if let Some(wait_us) = wait_us {
                    assert!(wait_us > 0);
                    let at = |us| decide(&rate, after, now_us + us, quantity, atmost).0;
                    assert!(at(wait_us).allowed(), "{decision:?} is not enough");
                    assert!(!at(wait_us - 1).allowed(), "{decision:?} is too much");
                }
            }
            Limited::Held => panic!("nobody holds"),
        }

        if moves_us < 0 || quantity < 0 {
            account = Account { since_us: now_us, taken: 0 };
        }
        account.taken += u128::from(decision.granted);
        if exact {
            // taken * period <= (limit * period + count * time) * (1 + 1e-6), with half a microsecond's grace.
            let period_us = u128::from(period_ms) * 1_000;
            let time_us = u128::from(now_us - account.since_us);
            let most = u128::from(limit) * period_us + u128::from(count) * time_us;
            assert!(
                account.taken * period_us <= most + most.div_ceil(1_000_000),
                "{} taken",
                account.taken
            );
        }
        stored = after;
    }
});
