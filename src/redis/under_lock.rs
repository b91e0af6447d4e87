//! Values that belong to the thread that holds the server's lock.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, TryLockError};

/// A value that is used under the server's lock. A server has one lock around all commands, timers and callbacks of modules.
/// The main thread holds it, and lends it to a thread of another module that calls a command or changes a key
/// (`RedisModule_ThreadSafeContextLock`). So no use ever waits for another.
///
/// One callback comes without that lock and must not use such a value: a crashing server asks for INFO on the thread that
/// crashed.
///
/// A use within another use panics, and so does one without the lock during another. The guard turns that into an error for
/// the client and a line in the log.
#[derive(Default)]
pub struct UnderLock<T>(Mutex<T>);

impl<T: Send> UnderLock<T> {
    pub const fn new(value: T) -> UnderLock<T> {
        UnderLock(Mutex::new(value))
    }

    /// Uses the value. `body` must not call a function of the server that may call the module back, such as a command, a
    /// change to a key, or the end of a wait. Return what has to be done, and do it afterwards.
    pub fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        let mut value = match self.0.try_lock() {
            Ok(value) => value,
            // A use that panicked does not keep others from the value.
            Err(TryLockError::Poisoned(value)) => value.into_inner(),
            Err(TryLockError::WouldBlock) => refuse("a value was used while it was in use"),
        };
        body(&mut value)
    }

    pub fn replace(&self, new: T) -> T {
        self.with(|value| std::mem::replace(value, new))
    }
}

impl<T: Copy + Send> UnderLock<T> {
    pub fn get(&self) -> T {
        self.with(|value| *value)
    }
}

/// A value that exists while the module is loaded. The next load starts with a new one, even if the loader keeps the
/// module's memory.
pub struct WhileLoaded<T>(AtomicPtr<T>);

impl<T: Send + Sync> WhileLoaded<T> {
    pub const fn new() -> WhileLoaded<T> {
        WhileLoaded(AtomicPtr::new(null_mut()))
    }

    /// Creates the value, as the first step of a load.
    pub fn create(&self, value: T) {
        let new = Box::into_raw(Box::new(value));
        let old = self.0.swap(new, Ordering::AcqRel);
        assert!(old.is_null(), "the module is loaded once at a time");
    }

    pub fn get(&self) -> &'static T {
        // SAFETY: the pointer is null or comes from `create`, and the value is not dropped while it is used.
        let value = unsafe { self.0.load(Ordering::Acquire).as_ref() };
        value.unwrap_or_else(|| refuse("the module is not loaded"))
    }

    /// Drops the value, if there is one.
    ///
    /// # Safety
    /// Nothing that [`WhileLoaded::get`] has returned is used any more.
    pub(super) unsafe fn drop(&self) {
        let value = self.0.swap(null_mut(), Ordering::AcqRel);
        if !value.is_null() {
            // SAFETY: created by `create`, and no longer used, by the caller's promise.
            drop(unsafe { Box::from_raw(value) });
        }
    }
}

#[cold]
#[allow(clippy::panic, reason = "a bug of ours; the guard around each callback catches it")]
fn refuse(why: &str) -> ! {
    panic!("{why}");
}

#[cfg(test)]
mod tests;
