use super::*;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::{self, ThreadId};

/// The turn of a thread, in place of a server's lock. Each unit test has its own thread and server, so threads take
/// turns. A thread that has the turn may take it again.
pub struct ThreadTurn;

/// The thread that has the turn, and how often it has taken it.
static TURN: Mutex<(Option<ThreadId>, usize)> = Mutex::new((None, 0));
static NEXT: Condvar = Condvar::new();

impl ThreadTurn {
    pub fn take() -> ThreadTurn {
        let this = Some(thread::current().id());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let is_taken = |turn: &mut (Option<ThreadId>, usize)| turn.1 > 0 && turn.0 != this;
        let mut turn = NEXT.wait_while(turn, is_taken).unwrap_or_else(PoisonError::into_inner);
        *turn = (this, turn.1 + 1);
        ThreadTurn
    }
}

impl Drop for ThreadTurn {
    fn drop(&mut self) {
        TURN.lock().unwrap_or_else(PoisonError::into_inner).1 -= 1;
        NEXT.notify_all();
    }
}

static NUMBER: UnderLock<u64> = UnderLock::new(1);

#[test]
fn a_value_in_use_cannot_be_used_again_and_is_free_after_a_panic() {
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
