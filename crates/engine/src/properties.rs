//! How property tests run: other cases every time, and nothing written next to the sources.

use proptest::test_runner::{Config, RngSeed};
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

/// When tests begin, in Unix microseconds: 21 November 2026, 01:16:39.544558 UTC, at the start of no millisecond and of no
/// period.
pub const START_US: u64 = 1_795_223_799_544_558;

/// What the cases of this run are made from: another number each time, unless `RATELIMIT_SEED` names it.
static SEED: LazyLock<u64> = LazyLock::new(|| {
    let seed = std::env::var("RATELIMIT_SEED").ok();
    let seed = seed.map(|seed| seed.parse().expect("RATELIMIT_SEED is a number"));
    seed.unwrap_or_else(|| RandomState::new().hash_one("seed"))
});

/// How many of the cases run, in per cent: all of them, unless `RATELIMIT_CASES` says otherwise.
static PER_CENT: LazyLock<u32> = LazyLock::new(|| {
    let per_cent = std::env::var("RATELIMIT_CASES").ok();
    per_cent.map_or(100, |per_cent| per_cent.parse().expect("RATELIMIT_CASES is a number"))
});

/// A configuration with this many cases. A test that fails prints its seed: `RATELIMIT_SEED=n cargo test` repeats it.
pub fn cases(cases: u32) -> Config {
    println!("RATELIMIT_SEED={}", *SEED);
    Config {
        cases: (cases * *PER_CENT).div_ceil(100),
        rng_seed: RngSeed::Fixed(*SEED),
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    }
}
