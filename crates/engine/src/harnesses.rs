//! Proof harnesses for Kani, which tries all inputs within the bounds that are assumed: `make prove PARTS=kani`.
//!
//! crates/proofs/lemmas/lemmas.py proves the same for integers of any size. The harnesses prove it for the functions
//! themselves, with their machine integers. Without Kani, `make prove PARTS=lemmas` checks that they compile, with `--cfg
//! kani --cfg kani_stub`.

use crate::decision::{Ask, Quantity};
use crate::entry::Entry;
use crate::throttle::{Bucket, Rate};
use crate::window::{UntimedVerdict, WindowUsage};

#[cfg(kani_stub)]
mod kani {
    /// Stands for Kani's function, and is never called.
    pub fn any<T>() -> T {
        unimplemented!("only Kani knows")
    }

    /// Stands for Kani's function, and assumes nothing.
    pub fn assume(_holds: bool) {}
}

/// Returns a rate of small numbers, so that the solver terminates.
fn any_rate() -> Rate {
    let (max_burst, count, period_ms): (u64, u64, u64) = (kani::any(), kani::any(), kani::any());
    kani::assume(max_burst < 1 << 10 && count > 0 && count < 1 << 10);
    kani::assume(period_ms > 0 && period_ms < 1 << 10);
    match Rate::new(max_burst, count, period_ms) {
        Some(rate) => rate,
        None => unreachable!("with such small numbers the bucket fills soon"),
    }
}

fn taking(quantity: u64) -> Ask {
    Ask::whole(Quantity::Take(quantity))
}

/// A full bucket grants its limit at once, and not one more.
#[cfg_attr(not(kani_stub), kani::proof)]
pub fn a_full_bucket_holds_max_burst_and_one() {
    let (rate, now_us): (Rate, u64) = (any_rate(), kani::any());
    kani::assume(now_us < 1 << 53);
    let bucket = Bucket::full(&rate, now_us);
    let limit = bucket.decision(crate::decision::Verdict::taking(0)).limit;
    let verdict = bucket.judge(&taking(limit), false);
    assert!(verdict.is_ok_and(|verdict| verdict.allowed()));
    let verdict = bucket.judge(&taking(limit + 1), false);
    assert!(verdict.is_ok_and(|verdict| !verdict.allowed()));
}

/// Taking and giving back leaves the bucket as it was, or one attosecond fuller.
#[cfg_attr(not(kani_stub), kani::proof)]
pub fn giving_back_gives_what_was_taken() {
    let (rate, now_us, quantity): (Rate, u64, u64) = (any_rate(), kani::any(), kani::any());
    kani::assume(now_us < 1 << 53 && quantity > 0 && quantity < 1 << 10);
    let ask = taking(quantity);
    let mut bucket = Bucket::full(&rate, now_us);
    let Ok(verdict) = bucket.judge(&ask, false) else { return };
    if !verdict.allowed() {
        return;
    }
    let edit = bucket.grant(&ask, verdict);
    let stored = crate::model::stored_after(None, edit);
    let back = Ask { quantity: Quantity::GiveBack(quantity), ..ask };
    let mut bucket = crate::model::bucket(&rate, stored, now_us);
    let Ok(verdict) = bucket.judge(&back, false) else { return };
    bucket.grant(&back, verdict);
    let decision = bucket.decision(verdict);
    assert!(decision.remaining == decision.limit && decision.reset_after_us == 0);
}

/// Sums are exact past 2^64.
#[cfg_attr(not(kani_stub), kani::proof)]
pub fn sums_are_differences_of_totals() {
    let (before, first, more): (u64, u64, u64) = (kani::any(), kani::any(), kani::any());
    kani::assume(first > 0 && first.checked_add(more).is_some());
    let entry = |total, weight| Entry { newest_us: 0, span_us: 0, total, weight, denied: false };
    let oldest = entry(before.wrapping_add(first), first);
    let newest = entry(oldest.total.wrapping_add(more), more);
    assert!(newest.sum_since(&oldest) == first + more);
}

/// A grant never passes the limit.
#[cfg_attr(not(kani_stub), kani::proof)]
pub fn a_grant_never_passes_the_limit() {
    let (limit, counted, held): (u64, u64, u64) = (kani::any(), kani::any(), kani::any());
    let (wanted, leave): (u64, u64) = (kani::any(), kani::any());
    kani::assume(wanted > 0);
    let used = WindowUsage { limit, counted, held: u128::from(held) };
    let ask = Ask { leave, ..taking(wanted) };
    if let UntimedVerdict::Allowed(taken) = used.judge(&ask, false) {
        let after = u128::from(counted) + u128::from(held) + u128::from(taken) + u128::from(leave);
        assert!(after <= u128::from(limit));
    }
}
