//! The leases of local limits. A handle names those of one key. Times are milliseconds of both clocks.
//!
//! JavaScript reads the replies of the server, sends the commands, and keeps the errors: here an error is a number that it
//! chose. It also puts the key into the commands. [`lease_take`] copies no text and allocates nothing.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use ::leases::{ErrorReply, Failure, Leases, Now, Round, TakeError, Terms};
use commands::memory::Value;

use crate::{with, words};

/// The results of [`lease_take`] that are no decision, which is 0, 1 or 2: the server must be asked.
const ASK: i32 = 3;
/// The policy is a semaphore.
const SEMAPHORE: i32 = 4;
/// Added to the result of [`lease_take`] if [`lease_next_round`] may have something to send.
const DUE: i32 = 8;
/// The results of [`lease_error`] and [`lease_unsettled`] that are no number of JavaScript's: there is no error.
const NO_ERROR: f64 = -1.0;
const LATE_BATCHES: f64 = -2.0;
const UNREADABLE: f64 = -3.0;
/// The result of [`lease_want`] if the leases are closed.
const CLOSED: f64 = -1.0;

const NONE: f64 = 0.0;
const SETTLED: f64 = 1.0;
const NEVER: f64 = f64::INFINITY;

struct Set {
    leases: Leases<f64>,
    /// The round that is under way.
    round: Option<Round>,
}

thread_local! {
    static SETS: RefCell<Vec<Option<Set>>> = const { RefCell::new(Vec::new()) };
    /// The numbers of the last decision.
    static TAKEN: Cell<[f64; 4]> = const { Cell::new([0.0; 4]) };
}

/// The casts saturate.
fn now(monotonic_ms: f64, wall_ms: f64) -> Now {
    Now { monotonic_ns: (monotonic_ms * 1e6) as i64, wall_ns: (wall_ms * 1e6) as i64 }
}

/// Creates leases, and returns their handle. The first `len` bytes of the input are words: the start of the ids, the limit, which
/// is empty for a policy, for how long the window counts an event and the length of a lease, both in milliseconds, what must
/// remain for others, and the words of the window before and after the quantity.
#[no_mangle]
pub extern "C" fn lease_open(len: usize, monotonic_ms: f64, wall_ms: f64) -> usize {
    let mut given: VecDeque<_> = with(|instance| {
        let given = words(instance.input.get(..len).unwrap_or_default());
        given.into_iter().map(<[u8]>::to_vec).collect()
    });
    let mut text =
        || given.pop_front().and_then(|word| String::from_utf8(word).ok()).unwrap_or_default();
    let prefix = text();
    let [limit, counted_ms, lease_ms, leave] =
        [text(), text(), text(), text()].map(|it| it.parse().ok());
    // A policy is one word, and another window two.
    let options = given.split_off(if limit.is_none() { 1 } else { 2 });
    let terms = Terms {
        key: Vec::new(),
        window: given.into(),
        options: options.into(),
        limit,
        counted_ms: counted_ms.unwrap_or_default(),
        lease_ms: lease_ms.unwrap_or_default(),
        leave: leave.unwrap_or_default(),
    };
    let set = Set { leases: Leases::new(terms, prefix, now(monotonic_ms, wall_ms)), round: None };
    SETS.with_borrow_mut(|sets| {
        let handle = sets.iter().position(Option::is_none).unwrap_or(sets.len());
        sets.resize_with(sets.len().max(handle + 1), || None);
        if let Some(place) = sets.get_mut(handle) {
            *place = Some(set);
        }
        handle
    })
}

/// Frees leases, whose handle may then be that of others.
#[no_mangle]
pub extern "C" fn lease_free(handle: usize) {
    SETS.with_borrow_mut(|sets| {
        if let Some(place) = sets.get_mut(handle) {
            *place = None;
        }
    });
}

/// Returns the address of four numbers of the last decision: `limit`, `remaining`, `retry_after_ms`, which is below 0 if there
/// is none, and `reset_after_ms`. It never changes.
#[no_mangle]
pub extern "C" fn lease_taken() -> *const f64 {
    TAKEN.with(|taken| taken.as_ptr().cast())
}

/// Defines exports with the same arguments: a handle, two numbers, which not all of them use, and both clocks. Each names its
/// result for leases that were freed.
macro_rules! exports {
    ($($(#[$doc:meta])* fn $name:ident($set:pat, $a:pat, $b:pat, $now:pat) or $freed:ident $body:block)*) => {$(
        $(#[$doc])*
        #[no_mangle]
        pub extern "C" fn $name(handle: usize, a: f64, b: f64, monotonic_ms: f64, wall_ms: f64) -> f64 {
            let ($a, $b, $now) = (a, b, now(monotonic_ms, wall_ms));
            SETS.with_borrow_mut(|sets| match sets.get_mut(handle) {
                Some(Some($set)) => $body,
                _ => $freed.into(),
            })
        }
    )*};
}

exports! {
    /// Decides about a quantity that may be counted already: `Leases::take`.
    fn lease_take(set, quantity, is_counted, now) or ASK {
        let taken = set.leases.take(quantity as u64, is_counted != 0.0, now);
        let due = if set.leases.take_due() { DUE } else { 0 };
        let outcome = match taken {
            Ok(Some(reply)) => {
                let retry_ms = reply.retry_after_ms.map_or(-1.0, |retry| retry as f64);
                let (limit, remaining) = (reply.limit as f64, reply.remaining as f64);
                TAKEN.set([limit, remaining, retry_ms, reply.reset_after_ms as f64]);
                reply.decision as i32
            }
            Ok(None) => ASK,
            // `take` does not know that the leases are closed.
            Err(TakeError::Semaphore | TakeError::Closed) => SEMAPHORE,
        };
        f64::from(outcome | due)
    }

    /// Requests what a take needs: `Leases::want`. Returns the number of rounds to wait for, or below 0 why nothing is
    /// requested.
    fn lease_want(set, quantity, is_counted, now) or CLOSED {
        match set.leases.want(quantity as u64, is_counted != 0.0, now) {
            Ok(awaited) => awaited as f64,
            Err(TakeError::Closed) => CLOSED,
            Err(TakeError::Semaphore) => -f64::from(SEMAPHORE),
        }
    }

    /// Writes the commands of the next round to the output, as JSON with an empty key. Returns their number.
    fn lease_next_round(set, _, _, now) or NONE {
        set.round = set.leases.next_round(now);
        let Some(round) = &set.round else { return NONE };
        let text = |word: &Vec<u8>| Value::Bulk(word.as_slice().into());
        let command = |words: &Vec<Vec<u8>>| Value::Array(words.iter().map(text).collect());
        with(|instance| instance.write(&Value::Array(round.commands.iter().map(command).collect())));
        round.commands.len() as f64
    }

    /// Reads the replies to the round, which are the words in the first `len` bytes of the input. An error reply is the
    /// number `first_error` plus its index.
    fn lease_receive(set, len, first_error, now) or NONE {
        let replies = with(|instance| {
            let given = words(instance.input.get(..len as usize).unwrap_or_default());
            given.iter().enumerate().map(|(at, word)| read(word, first_error + at as f64)).collect()
        });
        if let Some(round) = set.round.take() {
            set.leases.receive(round, replies, now);
        }
        NONE
    }

    /// Records that the round got no replies.
    fn lease_fail(set, error, is_sent, now) or NONE {
        if let Some(round) = set.round.take() {
            set.leases.fail(round, error, is_sent != 0.0, now);
        }
        NONE
    }

    /// Returns the error of the round `awaited` or a later one: `Leases::error_since`.
    fn lease_error(set, awaited, _, _) or NO_ERROR {
        number_of(set.leases.error_since(awaited as u64))
    }

    /// Returns why closed leases could not settle everything: `Leases::unsettled`.
    fn lease_unsettled(set, _, _, _) or NO_ERROR {
        number_of(set.leases.unsettled().as_ref())
    }

    /// Returns when [`lease_next_round`] should be called next, by the monotonic clock; infinity if it need not.
    fn lease_next_at(set, _, _, now) or NEVER {
        set.leases.next_at(now).map_or(NEVER, |next_ns| next_ns as f64 / 1e6)
    }

    /// Settles what is held, and requests nothing more.
    fn lease_close(set, _, _, _) or NONE {
        set.leases.close();
        NONE
    }

    /// Returns 1 if closed leases have nothing more to send.
    fn lease_is_settled(set, _, _, _) or SETTLED {
        f64::from(u8::from(set.leases.is_settled()))
    }
}

/// Reads a reply: `:1`, the numbers of a decision such as `0 100 99 -1 1000 id 1 1`, or the code of an error.
fn read(word: &[u8], error: f64) -> Result<::leases::Value, ErrorReply<f64>> {
    let text = String::from_utf8_lossy(word);
    if let Some(code) = text.strip_prefix('-') {
        return Err(ErrorReply { code: code.to_string(), error });
    }
    // The server's largest number, as JavaScript rounds it, is one too large.
    let integer = |text: &str| ::leases::Value::Integer(text.parse().unwrap_or(i64::MAX));
    let value = |text| match text {
        "id" => ::leases::Value::Text,
        "nil" => ::leases::Value::Nil,
        number => integer(number),
    };
    Ok(match text.strip_prefix(':') {
        Some(count) => integer(count),
        None => ::leases::Value::Array(text.split(' ').map(value).collect()),
    })
}

fn number_of(failure: Option<&Failure<f64>>) -> f64 {
    match failure {
        None => NO_ERROR,
        Some(Failure::Error(error)) => *error,
        Some(Failure::LateBatches) => LATE_BATCHES,
        Some(Failure::Unreadable(_)) => UNREADABLE,
    }
}
