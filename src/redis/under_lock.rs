//! Values that belong to the thread that holds the server's lock.

use std::ptr;
use std::sync::{Mutex, PoisonError, TryLockError};

/// A value that is used under the server's lock. A server has one lock around all commands, timers and callbacks of modules.
/// The main thread holds it, and lends it to a thread of another module that calls a command or changes a key
/// (`RedisModule_ThreadSafeContextLock`). So no use ever waits for another.
///
/// One callback comes without that lock and must not use such a value: a crashing server asks for INFO on the thread that
/// crashed.
///
/// A use within another use panics, and so does one without the lock during another. The guard turns that into an error for
/// the client and a line in the log.
///
/// The first use creates the value, and [`drop_all`] drops it before the module is unloaded. So no value can be forgotten
/// there, and the next load starts without values, even if the loader keeps the module's memory.
pub struct UnderLock<T> {
    value: Mutex<Option<T>>,
    create: fn() -> T,
}

impl<T: Send> UnderLock<T> {
    /// Declares a value that is created when it is first used.
    pub const fn new(create: fn() -> T) -> UnderLock<T> {
        UnderLock { value: Mutex::new(None), create }
    }

    /// Uses the value. `body` must not call a function of the server that may call the module back, such as a command, a
    /// change to a key, or the end of a wait. Return what has to be done, and do it afterwards.
    pub fn with<R>(&'static self, body: impl FnOnce(&mut T) -> R) -> R {
        self.with_place(|place| body(place.get_or_insert_with(|| self.created())))
    }

    /// Replaces the value, and returns the old one.
    pub fn replace(&'static self, new: T) -> T {
        self.with(|value| std::mem::replace(value, new))
    }

    /// Drops the value. The next use creates it again.
    pub fn reset(&self) {
        // Dropped after the use, because that may call the server.
        drop(self.with_place(Option::take));
    }

    fn with_place<R>(&self, body: impl FnOnce(&mut Option<T>) -> R) -> R {
        #[cfg(test)]
        let _turn = tests::ThreadTurn::take();
        let mut place = match self.value.try_lock() {
            Ok(place) => place,
            // A use that panicked does not keep others from the value.
            Err(TryLockError::Poisoned(place)) => place.into_inner(),
            Err(TryLockError::WouldBlock) => refuse(),
        };
        body(&mut place)
    }

    #[cold]
    fn created(&'static self) -> T {
        let mut created = CREATED.lock().unwrap_or_else(PoisonError::into_inner);
        if !created.iter().any(|other| ptr::addr_eq(*other, self)) {
            created.push(self);
        }
        drop(created);
        (self.create)()
    }
}

impl<T: Copy + Send> UnderLock<T> {
    /// Returns the value.
    pub fn get(&'static self) -> T {
        self.with(|value| *value)
    }
}

/// A value of any type.
trait AnyUnderLock: Sync {
    fn reset(&self);
}

impl<T: Send> AnyUnderLock for UnderLock<T> {
    fn reset(&self) {
        UnderLock::reset(self);
    }
}

/// All values that were created, in the order in which they were created first.
static CREATED: Mutex<Vec<&dyn AnyUnderLock>> = Mutex::new(Vec::new());

/// Drops all values before the module is unloaded: the newest first, because it may need older ones.
pub(super) fn drop_all() {
    let created = std::mem::take(&mut *CREATED.lock().unwrap_or_else(PoisonError::into_inner));
    created.into_iter().rev().for_each(AnyUnderLock::reset);
}

#[cold]
#[allow(clippy::panic, reason = "a bug of ours; the guard around each callback catches it")]
fn refuse() -> ! {
    panic!("a value was used while it was in use");
}

#[cfg(test)]
mod tests;
