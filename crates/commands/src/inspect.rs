//! RL.INFO: the state of a key, for someone who wants to know why it is limited.

use crate::arguments::Arguments;
use crate::call::{first_key, ServerCall};
use crate::error::Error;
use crate::keyspace::Keyspace;
use crate::reply::{CallResult, ReplySink};
use crate::waiting::WaitingKeyspace;
use engine::ban::BanNow;
use engine::entry::Entries;
use engine::store::{KeyState, WindowKey};
use engine::throttle::StoredBucket;

/// The name and the value of a field in the reply. `None` becomes -1.
type Field = (&'static str, Option<u64>);

/// `RL.INFO key`
pub(crate) fn info<'a, C: ServerCall<'a>>(call: &C) -> Result<CallResult, Error> {
    if Arguments::after_key(call).remaining() > 0 {
        return Err(Error::Arity);
    }
    let (key, now_us) = first_key(call)?;
    let keyspace = call.keyspace();
    let Some((state, expires_at_ms)) = keyspace.inspect(key)? else {
        // The reply is empty, although calls may wait: the key was deleted, and the head has not been tried since.
        call.sink().map(0);
        return Ok(CallResult::Allowed);
    };
    let (kind, mut fields, ban) = match state {
        KeyState::Bucket(stored) => ("bucket", bucket_fields(&stored, now_us), stored.ban()),
        KeyState::Window(mut window) => {
            let fields = window_fields(&mut window, now_us).map_err(Into::into)?;
            ("window", fields, window.ban())
        }
    };
    let ttl_ms = expires_at_ms.map(|at_ms| at_ms.saturating_sub(now_us / 1_000));
    fields.extend([
        ("ban", Some(BanNow::at(ban, now_us).left_us().div_ceil(1_000))),
        ("waiting", number(keyspace.read_lines(key, |lines, key| lines.waiting_on(key)))),
        ("ttl", ttl_ms),
    ]);
    let sink = call.sink();
    sink.map(fields.len().saturating_add(1));
    sink.text(b"kind");
    sink.text(kind.as_bytes());
    for (name, value) in fields {
        sink.text(name.as_bytes());
        match value {
            Some(value) => sink.unsigned(value),
            None => sink.integer(-1),
        }
    }
    Ok(CallResult::Allowed)
}

fn number(len: usize) -> Option<u64> {
    Some(u64::try_from(len).unwrap_or(u64::MAX))
}

fn bucket_fields(stored: &StoredBucket, now_us: u64) -> Vec<Field> {
    let full_in_us = stored.full_at_us().saturating_sub(now_us);
    vec![
        ("full_in", Some(full_in_us.div_ceil(1_000))),
        ("debt", Some(stored.debt_ns().div_ceil(1_000_000))),
    ]
}

/// Returns the fields of a window, which include its dead entries. O(entries + reservations).
fn window_fields<K: WindowKey>(window: &mut K, now_us: u64) -> Result<Vec<Field>, K::Error> {
    let (mut counted, mut denied) = (0_u64, 0_u64);
    let (mut oldest_us, mut newest_us) = (None, None);
    let (events, reservations) = window.split();
    events.scan(None, None, |event| {
        counted = counted.saturating_add(event.weight);
        if event.denied {
            denied = denied.saturating_add(event.weight);
        }
        oldest_us = oldest_us.or(Some(event.first_us()));
        newest_us = Some(event.newest_us);
        true
    })?;
    let age_ms = |us: Option<u64>| us.map(|us| now_us.saturating_sub(us) / 1_000);
    Ok(vec![
        ("events", Some(counted)),
        ("denied", Some(denied)),
        ("entries", number(events.len())),
        ("oldest", age_ms(oldest_us)),
        ("newest", age_ms(newest_us)),
        ("held", Some(u64::try_from(reservations.total()).unwrap_or(u64::MAX))),
        ("reservations", number(reservations.live_len())),
    ])
}
