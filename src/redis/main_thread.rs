//! What belongs to the server's main thread.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A value that one thread uses: the one that loaded the module, which is the server's main thread. That thread runs
/// every command, timer and callback of this module but two: a server that crashes asks for INFO on the thread that
/// crashed, and some servers ask for the keys of a command in I/O threads. These two must not use such a value.
///
/// Whoever uses one elsewhere, or once more while it is in use, panics. The guard makes that an error for the client and a
/// line in the log.
pub struct MainThread<T>(RefCell<T>);

// SAFETY: `with` is the only way to the value, and lets no thread pass but the main one. So the value is never used by two
// threads, and need not be `Send`: it is made, changed and dropped there. The value that a static begins with is made by
// the compiler.
unsafe impl<T> Sync for MainThread<T> {}

impl<T> MainThread<T> {
    /// Begins with this value.
    pub const fn new(value: T) -> MainThread<T> {
        MainThread(RefCell::new(value))
    }

    /// Uses the value. `body` must not call a function of the server that may call the module back: a command, a change
    /// to a key, the end of a wait. What is to be done with the server is returned, and done afterwards.
    #[inline]
    pub fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        #[cfg(test)]
        let _turn = tests::Turn::take();
        #[cfg(not(test))]
        if !is_main() {
            refuse("state of the main thread was used in another thread");
        }
        match self.0.try_borrow_mut() {
            Ok(mut value) => body(&mut value),
            Err(_) => refuse("state of the main thread was used while it was in use"),
        }
    }
}

impl<T: Copy> MainThread<T> {
    /// The value.
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
fn refuse(why: &str) -> ! {
    panic!("{why}")
}

/// The main thread; 0 before the module is loaded.
static MAIN: AtomicUsize = AtomicUsize::new(0);

/// Makes this thread the main one. The server loads modules on its main thread.
pub(super) fn claim() {
    MAIN.store(this_thread(), Ordering::Relaxed);
}

/// Whether this is the main thread.
#[cfg_attr(test, allow(dead_code))]
#[inline]
fn is_main() -> bool {
    MAIN.load(Ordering::Relaxed) == this_thread()
}

/// Names the running thread among those that live. The main thread lives as long as the server.
#[inline]
fn this_thread() -> usize {
    // SAFETY: takes nothing. `std::thread::current` takes ten times as long.
    unsafe { libc::pthread_self() as usize }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{catch_unwind, AssertUnwindSafe};
    use std::sync::{Condvar, Mutex, PoisonError};
    use std::thread;

    /// The turn of a thread. Each unit test has a thread of its own, so there is no main one: they take turns, and one
    /// that has the turn may take it again.
    pub struct Turn;

    /// Which thread has the turn, and how often it took it.
    static TURN: Mutex<(usize, usize)> = Mutex::new((0, 0));
    static NEXT: Condvar = Condvar::new();

    impl Turn {
        pub fn take() -> Turn {
            let this = this_thread();
            let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
            let is_taken = |turn: &mut (usize, usize)| turn.1 > 0 && turn.0 != this;
            let mut turn = NEXT.wait_while(turn, is_taken).unwrap_or_else(PoisonError::into_inner);
            *turn = (this, turn.1 + 1);
            Turn
        }
    }

    impl Drop for Turn {
        fn drop(&mut self) {
            TURN.lock().unwrap_or_else(PoisonError::into_inner).1 -= 1;
            NEXT.notify_all();
        }
    }

    static NUMBER: MainThread<u64> = MainThread::new(1);

    #[test]
    fn a_value_that_is_in_use_is_not_used_again_and_is_free_after_a_panic() {
        let again = catch_unwind(|| NUMBER.with(|_| NUMBER.get()));
        assert!(again.is_err());
        let broken = catch_unwind(AssertUnwindSafe(|| {
            NUMBER.with(|number| {
                *number = 2;
                panic!("as a bug would");
            })
        }));
        assert!(broken.is_err());
        assert_eq!(NUMBER.get(), 2);
        NUMBER.set(3);
        assert_eq!(NUMBER.with(|number| std::mem::replace(number, 4)), 3);
    }

    #[test]
    fn the_thread_that_loads_the_module_is_the_main_one_and_no_other() {
        claim();
        assert!(is_main());
        assert!(!thread::spawn(is_main).join().unwrap());
    }
}
