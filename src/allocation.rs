//! Counts what the tests allocate: a call of RL.THROTTLE must allocate nothing in Rust, allowed or denied.
#![allow(unsafe_code)]

use crate::limit::decimal::parse_i64;
use crate::limit::period::Period;
use crate::limit::throttle::{decide, look, Next, Rate, Tat};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that ends has no counter any more, and nobody who asks.
    let _ = ALLOCATIONS.try_with(|number| number.set(number.get() + 1));
}

// SAFETY: the system's allocator does the work; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// How often `work` allocates on this thread.
pub fn allocations_of<T>(work: impl FnOnce() -> T) -> u64 {
    let before = ALLOCATIONS.get();
    black_box(work());
    ALLOCATIONS.get() - before
}

#[test]
fn allocations_are_counted() {
    assert_eq!(allocations_of(|| Box::new(7)), 1);
    assert_eq!(allocations_of(|| 7), 0);
}

/// From the arguments' bytes to the bytes of the value; what is left of a call is the server's.
#[test]
fn a_throttle_call_allocates_nothing() {
    const NOW_US: u64 = 1_700_000_000_000_000;
    let empty = b"1700000000005333333.333333333".as_slice();
    let future = b"9999999999999999999".as_slice();
    for (stored, count, quantity, atmost, allowed) in [
        (None, "3", "1", false, true),
        (None, "3", "17", false, false),
        (None, "3", "-1", false, true),
        (Some(empty), "3000", "1", false, false),
        (Some(empty), "3000", "5", true, false),
        (Some(empty), "3000", "-3", false, true),
        (Some(empty), "3000", "0", false, true),
        (Some(future), "9223372036854775807", "1", false, true),
        (Some(future), "7", "1", false, false),
    ] {
        let mut outcome = None;
        let allocations = allocations_of(|| {
            let number = |text: &str| parse_i64(black_box(text).as_bytes()).unwrap();
            let period = Period::parse(black_box(b"1s")).unwrap();
            black_box(period.length());
            let rate = Rate::new(15, number(count).unsigned_abs(), 1000).unwrap();
            let stored = stored.map(|value| Tat::decode(value).unwrap());
            let (decision, next) = decide(&rate, stored, NOW_US, number(quantity), atmost);
            black_box(look(&rate, stored, NOW_US, number(quantity), atmost));
            if let Next::Store(tat) = next {
                black_box(tat.encode().as_bytes());
            }
            outcome = Some(decision.allowed());
        });
        assert_eq!((outcome, allocations), (Some(allowed), 0), "{stored:?} {count} {quantity}");
    }
}
