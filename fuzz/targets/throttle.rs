//! Any calls on one bucket: nothing panics, the state can be read back, a debt is bounded, and the returned wait suffices
//! while a microsecond less does not. A property test of the engine compares the admitted calls with the rate.
#![no_main]

use arbitrary::Arbitrary;
use engine::model::{bucket, stored_after, throttle};
use engine::throttle::{BucketEdit, Rate, StoredBucket};
use engine::{Ask, Manner, Quantity, Verdict};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct ThrottleInput<'a> {
    rate: FuzzLimit,
    start_us: u64,
    stored: Option<&'a [u8]>,
    calls: Vec<FuzzCall>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
struct FuzzLimit {
    max_burst: u64,
    count: u64,
    period_ms: u64,
    /// The bits by which each of the three is shifted down, so that small ones are as frequent as large ones.
    shifts: [u8; 3],
}

#[derive(Arbitrary, Debug)]
struct FuzzCall {
    /// The step of the clock, forward or back, before it is shifted down.
    moves_us: i64,
    quantity: i64,
    shifts: [u8; 2],
    way: ThrottleWay,
    /// The limit from this call on.
    rate: Option<FuzzLimit>,
}

#[derive(Arbitrary, Debug)]
enum ThrottleWay {
    Whole,
    AtMost,
    Leave { leave: u64, shift: u8, atmost: bool },
    Force,
    Ahead { us: u64, shift: u8 },
}

/// 1 January 2100. A stored time ends in 2286, and a bucket may be a century long.
const LATE_US: u64 = 4_102_444_800_000_000;
/// The last microsecond that a stored time can hold.
const LAST_TAT_US: u128 = 9_999_999_999_999_999;
const YEAR_US: u64 = 31_557_600_000_000;

impl FuzzLimit {
    fn rate(&self) -> Option<(Rate, u64, u64, u64)> {
        let [burst, count, period] = self.shifts.map(|shift| u32::from(shift % 64));
        let max_burst = (self.max_burst >> burst).min(i64::MAX as u64 - 1);
        let count = (self.count >> count).clamp(1, i64::MAX as u64);
        let period_ms = (self.period_ms >> period).clamp(1, 3_155_760_000_000);
        let rate = Rate::new(max_burst, count, period_ms)?;
        Some((rate, max_burst + 1, count, period_ms))
    }
}

impl FuzzCall {
    fn ask(&self) -> Ask {
        let quantity = Quantity::from_signed(self.quantity >> (self.shifts[1] % 64));
        let (leave, manner) = match self.way {
            _ if matches!(quantity, Quantity::GiveBack(_)) => (0, Manner::Whole),
            ThrottleWay::Whole => (0, Manner::Whole),
            ThrottleWay::AtMost => (0, Manner::AtMost),
            ThrottleWay::Leave { leave, shift, atmost } => {
                (leave >> (shift % 64), if atmost { Manner::AtMost } else { Manner::Whole })
            }
            ThrottleWay::Force => (0, Manner::Force),
            ThrottleWay::Ahead { us, shift } => {
                (0, Manner::Ahead { within_us: (us >> (shift % 64)).clamp(1, YEAR_US) })
            }
        };
        Ask { leave, manner, ..Ask::whole(quantity) }
    }
}

fuzz_target!(|input: ThrottleInput| {
    let Some((mut rate, mut limit, mut count, mut period_ms)) = input.rate.rate() else { return };
    let mut now_us = input.start_us % LATE_US;
    let mut stored = input.stored.and_then(StoredBucket::decode);
    for call in input.calls.iter().take(200) {
        let moves_us = call.moves_us >> (call.shifts[0] % 64);
        now_us = now_us.saturating_add_signed(moves_us).min(LATE_US);
        if let Some(other) = call.rate.as_ref().and_then(FuzzLimit::rate) {
            (rate, limit, count, period_ms) = other;
        }
        let ask = call.ask();

        let bucket = bucket(&rate, stored, now_us);
        let Ok((decision, next)) = throttle(&rate, stored, now_us, &ask) else {
            assert_eq!(ask.manner, Manner::Force);
            assert!(bucket.judge(&ask, false).is_err());
            continue;
        };
        let verdict = decision.verdict;
        let wanted = ask.quantity.wanted();
        let seen = bucket.decision(verdict);
        assert_eq!(bucket.judge(&ask, false), Ok(verdict));
        assert_eq!(decision.limit, limit);
        assert!(decision.remaining <= limit);
        let barred = bucket.judge(&ask, true).expect("no debt");
        let passes = !ask.quantity.takes() || ask.manner == Manner::Force;
        assert_eq!(barred.allowed(), passes);
        assert!(barred.retry_after_us().is_none_or(|wait_us| wait_us >= 1_000));

        let after = stored_after(stored, next);
        if let BucketEdit::Store(stored) = next {
            assert_eq!(StoredBucket::decode(stored.encode().as_bytes()), Some(stored));
            assert!(stored.full_at_us() >= now_us);
        }
        match verdict {
            Verdict::Allowed { taken, go_after_us } => {
                let atmost = ask.manner == Manner::AtMost && wanted > 0;
                let max_taken = if atmost { seen.remaining - ask.leave } else { u64::MAX };
                assert_eq!(taken, wanted.min(max_taken));
                match ask.manner {
                    Manner::Ahead { within_us } => assert!(go_after_us <= within_us),
                    _ => assert_eq!(go_after_us, 0),
                }
                if let (Manner::Ahead { .. }, true) = (ask.manner, go_after_us > 0) {
                    assert_eq!(decision.remaining, 0);
                }
            }
            Verdict::Never => {
                assert_eq!(next, BucketEdit::Keep);
                let min_taken = if ask.manner == Manner::AtMost { 1 } else { wanted };
                assert!(u128::from(min_taken) + u128::from(ask.leave) > u128::from(limit));
            }
            Verdict::Denied { wait_us, .. } => {
                assert!(wait_us > 0);
                let allowed = |us| {
                    let called = throttle(&rate, after, now_us + us, &ask);
                    called.map(|(decision, _)| decision.verdict.allowed())
                };
                match allowed(wait_us) {
                    Ok(allowed) => assert!(allowed, "{decision:?} is not enough"),
                    Err(refusal) => {
                        // The arrival time would be later than the last one that a key can hold.
                        let bucket_us = u128::from(limit) * u128::from(period_ms) * 1_000;
                        let full_us = u128::from(now_us + wait_us + YEAR_US)
                            + bucket_us.div_ceil(u128::from(count));
                        assert!(full_us > LAST_TAT_US, "{decision:?}: {refusal:?}");
                    }
                }
                assert_ne!(allowed(wait_us - 1), Ok(true), "{decision:?} is too much");
            }
        }
        stored = after;
    }
});
