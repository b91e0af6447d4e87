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

static NUMBER: UnderLock<u64> = UnderLock::new(|| 1);

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
    assert_eq!(NUMBER.replace(3), 2);
    assert_eq!(NUMBER.get(), 3);
}

#[test]
fn a_value_that_was_dropped_is_created_again_by_its_next_use() {
    static LIST: UnderLock<Vec<u8>> = UnderLock::new(|| vec![7]);
    for _ in 0..2 {
        LIST.with(|list| list.push(8));
        assert_eq!(LIST.with(|list| list.clone()), [7, 8]);
        LIST.reset();
    }
    // It is known once, however often it was created.
    let created = CREATED.lock().unwrap();
    let is_it = |other: &&&dyn AnyUnderLock| ptr::addr_eq(**other, &raw const LIST);
    assert_eq!(created.iter().filter(is_it).count(), 1);
}
