//! The configuration of property tests: other cases in each run, and no files next to the sources.

use proptest::test_runner::{Config, RngSeed};
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

pub use crate::model::START_US;

/// The seed of this run: a random number, unless `RATELIMIT_SEED` sets it.
static SEED: LazyLock<u64> = LazyLock::new(|| {
    let seed = std::env::var("RATELIMIT_SEED").ok();
    let seed = seed.map(|seed| seed.parse().expect("RATELIMIT_SEED is a number"));
    seed.unwrap_or_else(|| RandomState::new().hash_one("seed"))
});

/// The percentage of the cases that run: 100, unless `RATELIMIT_CASES` sets it.
static PER_CENT: LazyLock<u32> = LazyLock::new(|| {
    let per_cent = std::env::var("RATELIMIT_CASES").ok();
    per_cent.map_or(100, |per_cent| per_cent.parse().expect("RATELIMIT_CASES is a number"))
});

/// Returns a configuration with this many cases. A test that fails prints its seed: `RATELIMIT_SEED=n cargo test` repeats
/// it.
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
