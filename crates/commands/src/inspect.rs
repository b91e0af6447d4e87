//! RL.INFO: what a key holds, for someone who wants to know why it is limited.

use crate::arguments::Arguments;
use crate::call::{first_key, CallResult, ServerCall};
use crate::error::Error;
use crate::reply::ReplySink;
use engine::held::Holds;
use engine::store::{Entries, Reservations, WindowKey};
use engine::throttle::Stored;

/// A key, as a person asks for it.
pub struct KeyContents {
    /// What the key holds.
    pub kind: Contents,
    /// Microseconds until its ban ends; 0 where none runs.
    pub ban_us: u64,
    /// Milliseconds until the key expires; `None` where it never does.
    pub ttl_ms: Option<u64>,
}

/// The kind of limit that a key holds.
pub enum Contents {
    /// There is no key.
    Nothing,
    /// What RL.THROTTLE keeps.
    Bucket(BucketContents),
    /// What RL.WINDOW and RL.ACQUIRE keep.
    Window(WindowContents),
}

/// A bucket.
pub struct BucketContents {
    /// Microseconds until it is full.
    pub full_in_us: u64,
    /// Its debt when it was written, in nanoseconds.
    pub debt_ns: u64,
}

/// A window, or a semaphore.
#[derive(Default)]
pub struct WindowContents {
    /// What is counted in the key, dead entries too.
    pub events: u64,
    /// How much of that are denied calls.
    pub denied: u64,
    /// How many entries of events there are.
    pub entries: u64,
    /// The age of the oldest event, in microseconds; `None` without events.
    pub oldest_us: Option<u64>,
    /// The age of the newest event.
    pub newest_us: Option<u64>,
    /// What live reservations hold.
    pub held: u64,
    /// How many live reservations there are.
    pub reservations: u64,
}

impl BucketContents {
    /// What a stored time says at `now_us`.
    pub fn of(stored: &Stored, now_us: u64) -> BucketContents {
        let full_in_us = stored.full_at_us().saturating_sub(now_us);
        BucketContents { full_in_us, debt_ns: stored.debt_ns() }
    }
}

impl WindowContents {
    /// Counts what is in a key that was read, at `now_us`. O(entries + reservations).
    ///
    /// # Errors
    ///
    /// The key's own.
    pub fn of<K: WindowKey>(key: &mut K, now_us: u64) -> Result<WindowContents, K::Error> {
        let mut found = WindowContents::default();
        let (mut events, reservations) = key.split();
        found.entries = number(events.len());
        found.held = u64::try_from(reservations.total()).unwrap_or(u64::MAX);
        found.reservations = number(reservations.live_len());
        events.scan(None, None, |event| {
            found.events = found.events.saturating_add(event.weight);
            if event.denied {
                found.denied = found.denied.saturating_add(event.weight);
            }
            let age = |us: u64| Some(now_us.saturating_sub(us));
            found.oldest_us = found.oldest_us.or(age(event.first_us()));
            found.newest_us = age(event.newest_us);
            true
        })?;
        Ok(found)
    }
}

fn number(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

/// `RL.INFO key`
pub(crate) fn info<'a, C: ServerCall<'a>>(call: &C) -> Result<CallResult, Error> {
    if Arguments::after_key(call).remaining() > 0 {
        return Err(Error::Arity);
    }
    let (key, _) = first_key(call)?;
    let found = call.contents(key)?;
    let waiting = call.waiting_on(key);
    let sink = &call.sink();
    match &found.kind {
        // A key without state may have a line: calls wait for a semaphore of 0.
        Contents::Nothing => {
            sink.map(0);
            return Ok(CallResult::Allowed);
        }
        Contents::Bucket(bucket) => reply_bucket(sink, bucket),
        Contents::Window(window) => reply_window(sink, window),
    }
    field(sink, "ban", found.ban_us.div_ceil(1_000));
    field(sink, "waiting", waiting);
    optional_field(sink, "ttl", found.ttl_ms.map(i64::try_from));
    Ok(CallResult::Allowed)
}

/// Begins the reply for a key of this kind with its number of fields, and writes the fields that all kinds have.
fn begin(sink: &impl ReplySink, kind: &str, own_fields: usize) {
    const SHARED_FIELDS: usize = 4;
    sink.map(own_fields.saturating_add(SHARED_FIELDS));
    sink.text(b"kind");
    sink.text(kind.as_bytes());
}

fn reply_bucket(sink: &impl ReplySink, bucket: &BucketContents) {
    begin(sink, "bucket", 2);
    field(sink, "full_in", bucket.full_in_us.div_ceil(1_000));
    field(sink, "debt", bucket.debt_ns.div_ceil(1_000_000));
}

fn reply_window(sink: &impl ReplySink, window: &WindowContents) {
    begin(sink, "window", 7);
    field(sink, "events", window.events);
    field(sink, "denied", window.denied);
    field(sink, "entries", window.entries);
    for (name, age_us) in [("oldest", window.oldest_us), ("newest", window.newest_us)] {
        optional_field(sink, name, age_us.map(|age_us| i64::try_from(age_us / 1_000)));
    }
    field(sink, "held", window.held);
    field(sink, "reservations", window.reservations);
}

fn field(sink: &impl ReplySink, name: &str, value: u64) {
    sink.text(name.as_bytes());
    sink.unsigned(value);
}

/// A field that is -1 where there is nothing to tell.
fn optional_field<E>(sink: &impl ReplySink, name: &str, value: Option<Result<i64, E>>) {
    sink.text(name.as_bytes());
    sink.integer(value.map_or(-1, |value| value.unwrap_or(i64::MAX)));
}
