//! Unguessable ids.

use super::api::api;
use super::under_lock::UnderLock;
use engine::reservation::spelled_id;

const CHARACTERS: usize = 16;

/// Random bytes for the next ids. The server's own generator spends a hash on every few bytes, more than all else
/// that an RL.ACQUIRE does; the kernel gives many at once.
struct Pool {
    bytes: [u8; 64 * CHARACTERS],
    used: usize,
}

static POOL: UnderLock<Pool> =
    UnderLock::new(Pool { bytes: [0; 64 * CHARACTERS], used: 64 * CHARACTERS });

impl Pool {
    fn next(&mut self) -> [u8; CHARACTERS] {
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
        let mut random = [0; CHARACTERS];
        for (byte, fresh) in random.iter_mut().zip(self.bytes.iter_mut().skip(self.used)) {
            // Nobody who reads the memory later shall find ids there.
            *byte = std::mem::take(fresh);
        }
        self.used = self.used.saturating_add(CHARACTERS);
        random
    }
}

/// 16 characters of 6 random bits each.
pub fn id() -> [u8; CHARACTERS] {
    spelled_id(POOL.with(Pool::next))
}
