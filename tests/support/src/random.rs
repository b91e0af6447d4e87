/// Pseudo-random numbers, the same for the same seed (SplitMix64).
pub struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Any number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number from 0 to `end`, without `end`.
    pub fn below(&mut self, end: i64) -> i64 {
        (self.draw() % end as u64) as i64
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as i64) as usize]
    }

    /// Is true with the probability 1/n.
    pub fn one_in(&mut self, n: i64) -> bool {
        self.below(n) == 0
    }
}

/// The value of a variable of the environment that is a number.
pub fn env_number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text}")))
}

/// The seeds of a random test: `usual`, or `RATELIMIT_SEED` alone, with which a failure that names its seed is repeated.
pub fn seeds(usual: impl Iterator<Item = u64>) -> Vec<u64> {
    env_number("RATELIMIT_SEED").map_or_else(|| usual.collect(), |seed| vec![seed])
}
