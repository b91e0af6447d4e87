//! Values that belong to the thread that holds the server's lock.

use std::sync::{Mutex, TryLockError};

/// A value that is used under the server's lock. A server has one lock around all commands, timers and callbacks of modules.
/// The main thread holds it, and lends it to a thread of another module that calls a command or changes a key
/// (`RedisModule_ThreadSafeContextLock`). So no use ever waits for another.
///
/// Two callbacks come without that lock and must not use such a value: a crashing server asks for INFO on the thread that
/// crashed, and some servers ask for the keys of a command in I/O threads.
///
/// A use within another use panics, and so does one without the lock during another. The guard turns that into an error for
/// the client and a line in the log.
pub struct UnderLock<T>(Mutex<T>);

impl<T> UnderLock<T> {
    /// Creates a value that is not in use.
    pub const fn new(value: T) -> UnderLock<T> {
        UnderLock(Mutex::new(value))
    }

    /// Uses the value. `body` must not call a function of the server that may call the module back, such as a command, a
    /// change to a key, or the end of a wait. Return what has to be done, and do it afterwards.
    pub fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        #[cfg(test)]
        let _turn = tests::ThreadTurn::take();
        let mut value = match self.0.try_lock() {
            Ok(value) => value,
            // A use that panicked does not keep others from the value.
            Err(TryLockError::Poisoned(value)) => value.into_inner(),
            Err(TryLockError::WouldBlock) => refuse(),
        };
        body(&mut value)
    }
}

impl<T: Copy> UnderLock<T> {
    /// Returns the value.
    pub fn get(&self) -> T {
        self.with(|value| *value)
    }

    /// Replaces the value.
    pub fn set(&self, new: T) {
        self.with(|value| *value = new);
    }
}

#[cold]
#[allow(clippy::panic, reason = "a bug of ours; the guard around each callback catches it")]
fn refuse() -> ! {
    panic!("a value was used while it was in use");
}

#[cfg(test)]
mod tests;
