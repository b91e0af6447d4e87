//! How property tests run: the same cases every time, nothing written beside the sources.

use proptest::test_runner::{Config, RngSeed};

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
