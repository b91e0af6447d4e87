//! How property tests run: the same cases every time, nothing written beside the sources.

use proptest::test_runner::{Config, RngSeed};

/// When tests begin, in Unix microseconds: on 21 November 2026, at the start of no millisecond and of no period.
pub const START_US: u64 = 1_795_223_799_544_558;

/// So many cases.
pub fn cases(cases: u32) -> Config {
    let rng_seed = RngSeed::Fixed(20_261_121);
    Config {
        cases,
        rng_seed,
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    }
}
