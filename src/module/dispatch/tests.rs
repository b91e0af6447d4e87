use super::*;
use crate::redis::blocked::BlockedEvents;
use crate::redis::call::CommandNumber;
use crate::redis::clock::wall_time_us;
use crate::redis::fake::{FakeServer, ReplyElement};
use crate::waiting::{serve_timer, WaitEvents};
use commands::error::Error;
use std::ffi::CStr;

const NOW_US: i64 = 1_700_000_000_000_000;

fn row_of(name: &CStr) -> ServerCommand {
    let mut all = (0..COMMANDS.len())
        .flat_map(|number| ServerCommand::find(State::get(), CommandNumber(number)));
    all.find(|command| command.row.name == name).unwrap()
}

/// A command that no other test calls.
const LAST: usize = COMMANDS.len() - 1;

/// Panics in each call, and then replies like the module.
struct Panics;

impl Commands for Panics {
    fn run(_: &Call) {
        panic!("as a bug would");
    }

    fn reply_to_panic(call: &Call) {
        CommandTable::reply_to_panic(call);
    }
}

#[test]
fn a_panic_becomes_an_error_and_a_line_in_the_log() {
    let mut server = FakeServer::at(NOW_US);
    let errors = || State::get().stats.by_command[LAST].errors.get();
    let before = errors();
    let replies = server.call(entry::<Panics, LAST>, "any");
    assert_eq!(replies, [ReplyElement::Error(Error::internal().to_string())]);
    assert_eq!(server.log.len(), 1);
    assert_eq!(errors(), before + 1);
    // The next call works.
    let replies = server.call(entry_of("rl.held"), "RL.HELD k");
    assert_eq!(replies, [ReplyElement::Array(0)]);
}

/// Fails in each call like a bug that is noticed.
struct Fails;

impl Commands for Fails {
    fn run(call: &Call) {
        end_call(call.ctx, row_of(c"rl.held"), Err(Error::internal().into()));
    }

    fn reply_to_panic(_: &Call) {}
}

#[test]
fn a_noticed_bug_is_logged_with_its_location() {
    let mut server = FakeServer::at(NOW_US);
    let replies = server.call(entry::<Fails, 0>, "any");
    let text = "ERR internal error of redis-ratelimit, see the server's log";
    assert_eq!(replies, [ReplyElement::Error(text.into())]);
    let [line] = server.log.try_into().unwrap();
    assert!(line.starts_with("redis-ratelimit: internal error in rl.held at src/"), "{line}");
    assert!(line.contains("dispatch/tests.rs:"), "{line}");
}

/// Fires the timer. Returns how many waits have ended so far.
fn fire(server: &mut FakeServer) -> usize {
    server.call_back(|ctx| serve_timer(State::get(), ctx));
    server.unblocked()
}

#[test]
fn waiters_on_a_key_that_the_server_has_in_use_wait_until_it_is_free() {
    let mut server = FakeServer::at(NOW_US);
    let throttle = entry_of("rl.throttle");
    // By the clock of the timer, which is the real one, the waiter could be granted.
    let fire = |server: &mut FakeServer| {
        // Makes a head due that was postponed.
        State::get().waiting.restart_timer();
        fire(server)
    };
    let replies = server.call(throttle, "RL.THROTTLE in_use 0 1 60");
    assert_eq!(replies.get(1), Some(&ReplyElement::Integer(0)));
    let before = server.get("in_use");
    assert_eq!(server.call(throttle, "RL.THROTTLE in_use 0 1 60 1 BLOCK 3600000"), []);
    server.keys_in_use = true;
    for _ in 0..3 {
        assert_eq!(fire(&mut server), 0);
    }
    let text = "TRYAGAIN the server cannot write the key at the moment: call again";
    let replies = server.call(throttle, "RL.THROTTLE in_use 0 1 60");
    assert_eq!(replies, [ReplyElement::Error(text.into())]);
    assert_eq!((server.get("in_use"), server.unblocked()), (before, 0));
    server.keys_in_use = false;
    assert_eq!(fire(&mut server), 1);
}

#[test]
fn a_panic_in_the_reply_to_a_waiter_is_an_error_of_its_command() {
    let mut server = FakeServer::at(NOW_US);
    // How many errors of RL.THROTTLE it counts.
    let count = |server: &mut FakeServer| {
        let errors = &row_of(c"rl.throttle").stats.errors;
        let before = errors.get();
        let replies = server.call_back(|ctx| {
            for wait in 1..10_000 {
                WaitEvents::answer_after_panic(ctx, wait);
                WaitEvents::forget(wait, false);
            }
        });
        let internal = ReplyElement::Error(Error::internal().to_string());
        assert!(replies.iter().all(|reply| *reply == internal), "{replies:?}");
        errors.get() - before
    };
    count(&mut server);
    for options in ["", " 1 BLOCK 3600000"] {
        server.call(entry_of("rl.throttle"), &format!("RL.THROTTLE panic 0 1 60{options}"));
    }
    assert_eq!(count(&mut server), 1);
}

#[test]
fn waiters_are_denied_when_their_time_is_up_though_the_server_has_the_key_in_use() {
    const WAITERS: usize = 2_000;
    // The time of the timer, for which the reservation holds.
    let mut server = FakeServer::at(wall_time_us() as i64);
    let acquire = entry_of("rl.acquire");
    server.call(acquire, "RL.ACQUIRE busy 1 0 1 LEASE 1h");
    assert_eq!(server.call(acquire, "RL.ACQUIRE busy 1 0 1 BLOCK 0"), []);
    for _ in 0..WAITERS {
        assert_eq!(server.call(acquire, "RL.ACQUIRE busy 1 0 1 BLOCK 1"), []);
    }
    std::thread::sleep(std::time::Duration::from_millis(2));
    // The head is tried, and those behind it are denied until the time for waiters is spent.
    let denied = fire(&mut server);
    assert!(denied > 0 && denied < WAITERS, "{denied}");
    server.keys_in_use = true;
    assert!((0..20).any(|_| fire(&mut server) > denied));
    let replies =
        server.call_back(|ctx| (1..10_000).for_each(|wait| WaitEvents::answer(ctx, wait)));
    assert!(replies.iter().all(|reply| !matches!(reply, ReplyElement::Error(_))), "{replies:?}");
}

#[test]
fn calls_are_counted_once_as_allowed_denied_or_errors() {
    let mut server = FakeServer::at(NOW_US);
    let stats = &row_of(c"rl.window").stats;
    let counts = || [stats.allowed.get(), stats.denied.get(), stats.errors.get()];
    let before = counts();
    let mut call = |words: &str| server.call(entry_of("rl.window"), words);
    let integers = |values: [i64; 5]| {
        let values = values.map(ReplyElement::Integer);
        [&[ReplyElement::Array(5)], values.as_slice()].concat()
    };
    assert_eq!(call("RL.WINDOW k 1 60"), integers([0, 1, 0, -1, 60]));
    assert_eq!(call("RL.WINDOW k 1 60"), integers([1, 1, 0, 60, 60]));
    assert_eq!(call("RL.WINDOW k 1"), [ReplyElement::WrongArity]);
    assert!(matches!(call("RL.WINDOW k 1 x").as_slice(), [ReplyElement::Error(_)]));
    let after = counts();
    assert_eq!([0, 1, 2].map(|at| after[at] - before[at]), [1, 1, 2]);
}
