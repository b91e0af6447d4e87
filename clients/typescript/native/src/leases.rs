//! The leases of local limits. A handle names those of one key. Times are milliseconds of both clocks.
//!
//! JavaScript reads the replies of the server, sends the commands, and keeps the errors: here an error is a number that it
//! chose. It also puts the key into the commands. [`lease_take`] copies no text and allocates nothing.

use std::cell::{Cell, RefCell};

use ::leases::{ErrorReply, Failure, Leases, Now, Round, TakeError, Terms};
use commands::memory::Value;

use crate::{json, with, words};

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

/// Returns `otherwise` for leases that were freed.
fn on<T>(handle: usize, otherwise: T, body: impl FnOnce(&mut Set) -> T) -> T {
    SETS.with_borrow_mut(|sets| match sets.get_mut(handle) {
        Some(Some(set)) => body(set),
        _ => otherwise,
    })
}

/// The casts saturate.
fn now(monotonic_ms: f64, wall_ms: f64) -> Now {
    Now { monotonic_ns: (monotonic_ms * 1e6) as i64, wall_ns: (wall_ms * 1e6) as i64 }
}

/// Creates leases, and returns their handle. The first `len` bytes of the input are words: the start of the ids, the words of
/// the window before the quantity, which are one for a policy and two for others, and those after it.
#[no_mangle]
pub extern "C" fn lease_open(
    len: usize,
    is_policy: bool,
    limit: u64,
    counted_ms: f64,
    lease_ms: f64,
    leave: u64,
    monotonic_ms: f64,
    wall_ms: f64,
) -> usize {
    let (prefix, window, options) = with(|instance| {
        let mut given = words(instance.input.get(..len).unwrap_or_default()).into_iter();
        let prefix = given.next().map(|prefix| String::from_utf8_lossy(prefix).into_owned());
        let mut given = given.map(<[u8]>::to_vec);
        let window = given.by_ref().take(if is_policy { 1 } else { 2 }).collect();
        (prefix.unwrap_or_default(), window, given.collect())
    });
    let terms = Terms {
        key: Vec::new(),
        window,
        options,
        limit: (!is_policy).then_some(limit),
        counted_ms: counted_ms as u64,
        lease_ms: lease_ms as u64,
        leave,
    };
    let set = Set { leases: Leases::new(terms, prefix, now(monotonic_ms, wall_ms)), round: None };
    SETS.with_borrow_mut(|sets| {
        let free = sets.iter().position(Option::is_none);
        let handle = free.unwrap_or(sets.len());
        match sets.get_mut(handle) {
            Some(place) => *place = Some(set),
            None => sets.push(Some(set)),
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

/// Decides: `Leases::take`.
#[no_mangle]
pub extern "C" fn lease_take(
    handle: usize,
    quantity: f64,
    is_counted: bool,
    monotonic_ms: f64,
    wall_ms: f64,
) -> i32 {
    on(handle, ASK, |set| {
        let taken = set.leases.take(quantity as u64, is_counted, now(monotonic_ms, wall_ms));
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
        outcome | due
    })
}

/// Requests what a take needs: `Leases::want`. Returns the number of rounds to wait for, or below 0 why nothing is requested.
#[no_mangle]
pub extern "C" fn lease_want(
    handle: usize,
    quantity: f64,
    is_counted: bool,
    monotonic_ms: f64,
    wall_ms: f64,
) -> f64 {
    on(handle, CLOSED, |set| {
        match set.leases.want(quantity as u64, is_counted, now(monotonic_ms, wall_ms)) {
            Ok(awaited) => awaited as f64,
            Err(TakeError::Closed) => CLOSED,
            Err(TakeError::Semaphore) => -f64::from(SEMAPHORE),
        }
    })
}

/// Returns the number of rounds that are over.
#[no_mangle]
pub extern "C" fn lease_rounds(handle: usize) -> f64 {
    on(handle, 0.0, |set| set.leases.rounds() as f64)
}

/// Writes the commands of the next round to the output, as JSON with an empty key. Returns their number.
#[no_mangle]
pub extern "C" fn lease_next_round(handle: usize, monotonic_ms: f64, wall_ms: f64) -> usize {
    on(handle, 0, |set| {
        set.round = set.leases.next_round(now(monotonic_ms, wall_ms));
        let Some(round) = &set.round else { return 0 };
        let text = |word: &Vec<u8>| Value::Bulk(word.as_slice().into());
        let command = |words: &Vec<Vec<u8>>| Value::Array(words.iter().map(text).collect());
        let commands = Value::Array(round.commands.iter().map(command).collect());
        with(|instance| {
            instance.output.clear();
            json(&commands, &mut instance.output);
        });
        round.commands.len()
    })
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

/// Reads the replies to the round, which are the words in the first `len` bytes of the input. An error reply is the number
/// `first_error` plus its index.
#[no_mangle]
pub extern "C" fn lease_receive(
    handle: usize,
    len: usize,
    first_error: f64,
    monotonic_ms: f64,
    wall_ms: f64,
) {
    let replies = with(|instance| {
        let given = words(instance.input.get(..len).unwrap_or_default());
        let number = |at: usize| first_error + at as f64;
        given.iter().enumerate().map(|(at, word)| read(word, number(at))).collect()
    });
    on(handle, (), |set| {
        if let Some(round) = set.round.take() {
            set.leases.receive(round, replies, now(monotonic_ms, wall_ms));
        }
    });
}

/// Records that the round got no replies.
#[no_mangle]
pub extern "C" fn lease_fail(
    handle: usize,
    error: f64,
    is_sent: bool,
    monotonic_ms: f64,
    wall_ms: f64,
) {
    on(handle, (), |set| {
        if let Some(round) = set.round.take() {
            set.leases.fail(round, error, is_sent, now(monotonic_ms, wall_ms));
        }
    });
}

fn number_of(failure: Option<&Failure<f64>>) -> f64 {
    match failure {
        None => NO_ERROR,
        Some(Failure::Error(error)) => *error,
        Some(Failure::LateBatches) => LATE_BATCHES,
        Some(Failure::Unreadable(_)) => UNREADABLE,
    }
}

/// Returns the error of the round `awaited` or a later one: `Leases::error_since`.
#[no_mangle]
pub extern "C" fn lease_error(handle: usize, awaited: f64) -> f64 {
    on(handle, NO_ERROR, |set| number_of(set.leases.error_since(awaited as u64)))
}

/// Returns why closed leases could not settle everything: `Leases::unsettled`.
#[no_mangle]
pub extern "C" fn lease_unsettled(handle: usize) -> f64 {
    on(handle, NO_ERROR, |set| number_of(set.leases.unsettled().as_ref()))
}

/// Returns when [`lease_next_round`] should be called next, by the monotonic clock; infinity if it need not.
#[no_mangle]
pub extern "C" fn lease_next_at(handle: usize, monotonic_ms: f64, wall_ms: f64) -> f64 {
    on(handle, f64::INFINITY, |set| {
        let next_ns = set.leases.next_at(now(monotonic_ms, wall_ms));
        next_ns.map_or(f64::INFINITY, |next_ns| next_ns as f64 / 1e6)
    })
}

/// Settles what is held, and requests nothing more.
#[no_mangle]
pub extern "C" fn lease_close(handle: usize) {
    on(handle, (), |set| set.leases.close());
}

/// Returns whether closed leases have nothing more to send.
#[no_mangle]
pub extern "C" fn lease_is_settled(handle: usize) -> bool {
    on(handle, true, |set| set.leases.is_settled())
}
