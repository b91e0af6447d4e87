//! Counts what the tests allocate: a call of RL.THROTTLE or RL.WINDOW must allocate nothing in Rust, allowed or denied, and
//! nor must one of RL.ALL over up to eight of them.
#![allow(unsafe_code)]

use crate::module::registration::entry_of;
use crate::redis::fake::{FakeServer, ReplyElement};
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

/// From the server's call to the last element of the reply.
#[test]
fn a_call_of_rl_throttle_allocates_nothing_in_rust() {
    const NOW_US: i64 = 1_700_000_000_000_000;
    let empty = b"1700000000005333333.333333333".as_slice();
    let future = b"9999999999999999999".as_slice();
    let throttle = entry_of("rl.throttle");
    // The first call makes what the module keeps from call to call.
    // So does the first denial of a key, for RL.TOP.
    FakeServer::at(NOW_US).call(throttle, &["RL.THROTTLE", "k", "1", "1", "1", "3"], |call| call());
    for (stored, arguments, limited) in [
        (None, "15 3 1s", 0),
        (None, "15 3 1s 17", 1),
        (None, "15 3 1s -1", 0),
        (Some(empty), "15 3000 1s 1", 1),
        (Some(empty), "15 3000 1s 5 ATMOST", 1),
        (Some(empty), "15 3000 1s 0 MS", 0),
        (Some(empty), "15 3000 1s -3", 0),
        (Some(empty), "15 3000 1s 0", 0),
        (Some(future), "15 9223372036854775807 1s", 0),
        (Some(future), "15 7 1s", 1),
    ] {
        let mut server = FakeServer::at(NOW_US);
        if let Some(stored) = stored {
            server.set("k", stored);
        }
        let words: Vec<_> = ["RL.THROTTLE", "k"].into_iter().chain(arguments.split(' ')).collect();
        let (allocations, replies) = server.call(throttle, &words, |call| allocations_of(call));
        assert_eq!(
            replies.get(1),
            Some(&ReplyElement::Integer(limited)),
            "{arguments}: {replies:?}"
        );
        assert_eq!(allocations, 0, "{stored:?} {arguments}");
        // The fake server has seen the whole call: a change is stored, replicated and told.
        let before = stored.map(|stored| String::from_utf8_lossy(stored).into_owned());
        let changed = usize::from(server.get("k") != before);
        let noticed = (server.replicated().len(), server.modified());
        assert_eq!(noticed, (changed, changed), "{stored:?} {arguments}");
    }
}

/// From the server's call to the last element of the reply, of a key without reservations.
#[test]
fn a_call_of_rl_window_allocates_nothing_in_rust() {
    const NOW_US: i64 = 1_700_000_000_000_000;
    let window = entry_of("rl.window");
    // The first call makes what the module keeps from call to call, and so does the first denial of a key.
    // The zone is read once.
    let first = ["RL.WINDOW", "w", "1", "60s", "2", "FIXED"];
    FakeServer::at(NOW_US).call(window, &first, |call| call());
    for options in ["", "BUCKETS 4", "FIXED", "FIXED FROM 2023-11-01@09:00", "FIXED FROM first"] {
        let mut server = FakeServer::at(NOW_US);
        for (quantity, limited) in [("2", 0), ("1", 0), ("1", 1), ("9", 1), ("0", 0)] {
            let words = ["RL.WINDOW", "w", "3", "60s", quantity];
            let words: Vec<_> = words.into_iter().chain(options.split_whitespace()).collect();
            let (allocations, replies) = server.call(window, &words, |call| allocations_of(call));
            assert_eq!(
                replies.get(1),
                Some(&ReplyElement::Integer(limited)),
                "{words:?}: {replies:?}"
            );
            assert_eq!(allocations, 0, "{words:?}");
        }
        let added = server.replicated().iter().filter(|name| *name == "ZADD").count();
        assert_eq!(added, 2, "{options}");
    }
}

/// From the server's call to the last element of the reply. A ninth limit takes memory.
#[test]
fn a_call_of_rl_all_over_eight_limits_allocates_nothing_in_rust() {
    const NOW_US: i64 = 1_700_000_000_000_000;
    let all = entry_of("rl.all");
    for (number, allocates) in [(1, false), (8, false), (9, true)] {
        let mut server = FakeServer::at(NOW_US);
        let keys: Vec<_> = (0..number).map(|key| format!("{{k}}{key}")).collect();
        let mut words = vec!["RL.ALL".to_string(), number.to_string()];
        words.extend(keys);
        words.extend((0..number).map(|_| "THROTTLE 0 1 60".to_string()));
        let text = words.join(" ");
        let words: Vec<_> = text.split(' ').collect();
        // The first denial makes what the module keeps from call to call.
        for (round, limited) in [0, 1, 1].into_iter().enumerate() {
            let (allocations, replies) = server.call(all, &words, |call| allocations_of(call));
            assert_eq!(
                replies.get(1),
                Some(&ReplyElement::Integer(limited)),
                "{text}: {replies:?}"
            );
            assert!(round == 1 || (allocations > 0) == allocates, "{text}: {allocations}");
        }
    }
}
