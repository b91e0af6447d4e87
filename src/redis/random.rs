//! Unpredictable random bytes.

use super::api::api;

const LEN: usize = 16;

/// Random bytes for the next callers. The kernel gives many at once. The server's own generator computes a hash for every
/// few bytes, which takes longer than the rest of RL.ACQUIRE.
pub struct RandomPool {
    bytes: [u8; 64 * LEN],
    used: usize,
}

impl Default for RandomPool {
    fn default() -> RandomPool {
        RandomPool { bytes: [0; 64 * LEN], used: 64 * LEN }
    }
}

impl RandomPool {
    pub fn next(&mut self) -> [u8; LEN] {
        if self.used >= self.bytes.len() {
            let (start, len) = (self.bytes.as_mut_ptr(), self.bytes.len());
            // SAFETY: writes at most `len` bytes to the array.
            let written = unsafe { libc::getrandom(start.cast(), len, 0) };
            if usize::try_from(written) != Ok(len) {
                // SAFETY: writes `len` bytes to the array.
                unsafe { api!(RedisModule_GetRandomBytes(start, len)) };
            }
            self.used = 0;
        }
        let mut random = [0; LEN];
        for (byte, pooled) in random.iter_mut().zip(self.bytes.iter_mut().skip(self.used)) {
            // Leave no copy in memory.
            *byte = std::mem::take(pooled);
        }
        self.used = self.used.saturating_add(LEN);
        random
    }
}
