//! Tests that most calls allocate nothing in Rust, from the server's call to the last element of the reply, and that no key
//! is open while others may change it.

use crate::module::dispatch::entry_of;
use crate::redis::fake::{count_allocations, FakeServer, ReplyElement};
use crate::state::State;

const NOW_US: i64 = 1_700_000_000_000_000;

/// Returns the element `limited` of a reply.
fn limited(replies: &[ReplyElement]) -> i64 {
    match replies.get(1) {
        Some(ReplyElement::Integer(limited)) => *limited,
        other => panic!("{other:?}"),
    }
}

#[test]
fn allocations_are_counted() {
    assert_eq!(count_allocations(|| Box::new(7)).0, 1);
    assert_eq!(count_allocations(|| 7).0, 0);
}

#[test]
fn a_call_of_rl_throttle_allocates_nothing_in_rust() {
    let empty = b"1700000000005333333.333333333".as_slice();
    let future = b"9999999999999999999".as_slice();
    let throttle = entry_of("rl.throttle");
    // The first call, and the first denial of a key, allocate what the module keeps between calls.
    FakeServer::at(NOW_US).call(throttle, "RL.THROTTLE k 1 1 1 3");
    for (stored, arguments, is_limited) in [
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
        let replies = server.call(throttle, &format!("RL.THROTTLE k {arguments}"));
        assert_eq!(limited(&replies), is_limited, "{arguments}: {replies:?}");
        assert_eq!(server.allocations, 0, "{stored:?} {arguments}");
        // The call did its work: a change was stored, replicated and signalled.
        let before = stored.map(|stored| String::from_utf8_lossy(stored).into_owned());
        let changed = usize::from(server.get("k") != before);
        let noticed = (server.replicated.len(), server.modified);
        assert_eq!(noticed, (changed, changed), "{stored:?} {arguments}");
    }
}

#[test]
fn a_call_of_rl_window_allocates_nothing_in_rust() {
    let window = entry_of("rl.window");
    // The first call, the first denial of a key, and the first use of a zone allocate what the module keeps between calls.
    FakeServer::at(NOW_US).call(window, "RL.WINDOW w 1 60s 2 FIXED");
    for options in ["", " BUCKETS 4", " FIXED", " FIXED FROM 2023-11-01@09:00", " FIXED FROM first"]
    {
        let mut server = FakeServer::at(NOW_US);
        for (quantity, is_limited) in [(2, 0), (1, 0), (1, 1), (9, 1), (0, 0)] {
            let words = format!("RL.WINDOW w 3 60s {quantity}{options}");
            let replies = server.call(window, &words);
            assert_eq!(limited(&replies), is_limited, "{words}: {replies:?}");
            assert_eq!(server.allocations, 0, "{words}");
        }
        let added = server.replicated.iter().filter(|name| *name == "ZADD").count();
        assert_eq!(added, 2, "{options}");
    }
}

/// Another module that is notified may change or delete the key.
#[test]
fn keys_are_closed_when_a_denial_is_notified() {
    State::get().notify_denied.set(b"yes").unwrap();
    for (name, words) in [
        ("rl.throttle", "RL.THROTTLE k 0 1 60"),
        ("rl.window", "RL.WINDOW k 1 60"),
        ("rl.all", "RL.ALL 2 {k}1 {k}2 THROTTLE 0 1 60 WINDOW 1 60"),
    ] {
        let mut server = FakeServer::at(NOW_US);
        for _ in 0..2 {
            server.call(entry_of(name), words);
        }
        let open = &server.open_when_notified;
        assert!(!open.is_empty() && open.iter().all(|open| *open == 0), "{words}: {open:?}");
    }
}

/// A server may replace a string that is read, and another handle would then use freed memory when it is closed.
#[test]
fn a_key_has_one_handle_when_its_string_is_read() {
    for name in ["rl.info", "rl.throttle", "rl.throttle_ro"] {
        let mut server = FakeServer::at(NOW_US);
        server.set("k", b"1700000000005333333");
        let options = if name == "rl.info" { "" } else { " 15 3 1s" };
        server.call(entry_of(name), &format!("{name} k{options}"));
        assert_eq!(server.handles_of_string("k"), 1, "{name}");
    }
}

#[test]
fn a_call_of_rl_all_over_eight_limits_allocates_nothing_in_rust_and_over_nine_it_does() {
    let all = entry_of("rl.all");
    // The module's state, which a load creates.
    State::get();
    for (number, named, allocates) in
        [(1, false, false), (8, false, false), (9, false, true), (8, true, false), (9, true, true)]
    {
        let mut server = FakeServer::at(NOW_US);
        server.set_field("{k}limits", "rate", "THROTTLE 0 1 60");
        let keys: String = (0..number).map(|key| format!(" {{k}}{key}")).collect();
        let words = match named {
            false => format!("RL.ALL {number}{keys}{}", " THROTTLE 0 1 60".repeat(number)),
            true => format!(
                "RL.ALL {}{keys} {{k}}limits{} LIMITS",
                number + 1,
                " THROTTLE @rate".repeat(number)
            ),
        };
        // The first denial allocates what the module keeps between calls.
        for (round, is_limited) in [0, 1, 1].into_iter().enumerate() {
            let replies = server.call(all, &words);
            assert_eq!(limited(&replies), is_limited, "{words}: {replies:?}");
            let found = server.allocations;
            assert!(round == 1 || (found > 0) == allocates, "{words}: {found}");
        }
    }
}
