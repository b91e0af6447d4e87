//! How property tests run: the same cases every time unless told otherwise, and nothing written beside the sources.

use proptest::test_runner::{Config, RngSeed};

/// When tests begin, in Unix microseconds: on 21 November 2026, at the start of no millisecond and of no period.
pub const START_US: u64 = 1_795_223_799_544_558;

/// A configuration with this many cases. `RATELIMIT_SEED=n cargo test` tries others, as CI does each week.
pub fn cases(cases: u32) -> Config {
    let seed = std::env::var("RATELIMIT_SEED").ok().and_then(|seed| seed.parse().ok());
    Config {
        cases,
        rng_seed: RngSeed::Fixed(seed.unwrap_or(20_261_121)),
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    }
}
