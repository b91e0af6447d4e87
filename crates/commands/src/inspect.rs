//! RL.INFO: the state of a key, for someone who wants to know why it is limited.

use crate::arguments::Arguments;
use crate::call::{first_key, CallResult, ServerCall};
use crate::decide::Keyspace;
use crate::error::Error;
use crate::reply::ReplySink;
use engine::ban::BanNow;
use engine::entry::Entries;
use engine::store::{Access, BucketKey, Store, WindowKey};

/// The name and the value of a field in the reply. `None` becomes -1.
type Field = (&'static str, Option<u64>);

/// `RL.INFO key`
pub(crate) fn info<'a, C: ServerCall<'a>>(call: &C) -> Result<CallResult, Error> {
    if Arguments::after_key(call).remaining() > 0 {
        return Err(Error::Arity);
    }
    let (key, now_us) = first_key(call)?;
    let keys = call.keys();
    let Some((kind, mut fields)) = read(&keys, key)? else {
        // A key without state may still have a line: it was deleted, and the head has not been tried since.
        call.sink().map(0);
        return Ok(CallResult::Allowed);
    };
    let ttl_ms = keys.expires_at_ms(key).map(|at_ms| at_ms.saturating_sub(now_us / 1_000));
    fields.extend([("waiting", Some(call.waiting_on(key))), ("ttl", ttl_ms)]);
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

/// Returns the kind of a key, and the fields that follow from its value. `None` if there is no key. O(entries +
/// reservations).
fn read<K: Keyspace>(keys: &K, key: K::Key) -> Result<Option<(&'static str, Vec<Field>)>, Error> {
    let mut store = keys.store(key, Access::Read);
    let now_us = store.now_us();
    let mut window = store.window();
    let (kind, mut fields, ban) = match window.read(None).map_err(Into::into) {
        Ok(()) => {
            let ban = window.ban();
            if window.events().is_empty() && window.reservations().is_empty() && ban.is_none() {
                return Ok(None);
            }
            ("window", window_fields(&mut window, now_us).map_err(Into::into)?, ban)
        }
        Err(Error::NotZset) => {
            let read = store.bucket().read().map_err(Into::into).map_err(|error| match error {
                Error::NotString => Error::NotLimit,
                error => error,
            });
            let Some(stored) = read? else { return Ok(None) };
            let full_in_us = stored.full_at_us().saturating_sub(now_us);
            let fields = vec![
                ("full_in", Some(full_in_us.div_ceil(1_000))),
                ("debt", Some(stored.debt_ns().div_ceil(1_000_000))),
            ];
            ("bucket", fields, stored.ban())
        }
        Err(error) => return Err(error),
    };
    fields.push(("ban", Some(BanNow::at(ban, now_us).left_us().div_ceil(1_000))));
    Ok(Some((kind, fields)))
}

/// Returns the fields of a window, which include its dead entries.
fn window_fields<K: WindowKey>(window: &mut K, now_us: u64) -> Result<Vec<Field>, K::Error> {
    let number = |len: usize| Some(u64::try_from(len).unwrap_or(u64::MAX));
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
