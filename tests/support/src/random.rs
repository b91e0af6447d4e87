/// Numbers that look random and come again from the same seed (SplitMix64).
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

    /// Whether one chance in `n` comes true.
    pub fn one_in(&mut self, n: i64) -> bool {
        self.below(n) == 0
    }
}

/// The number that a variable of the environment holds.
pub fn env_number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text}")))
}

/// `RATELIMIT_SEED` alone, or else `usual`: a random test that fails names its seed.
pub fn seeds(usual: impl Iterator<Item = u64>) -> Vec<u64> {
    env_number("RATELIMIT_SEED").map_or_else(|| usual.collect(), |seed| vec![seed])
}
