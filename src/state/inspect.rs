//! What lies under a key, whatever kind of limit it is.

use super::entries::EventReader;
use super::window::ServerWindow;
use super::{Intent, KeyContext, Open, ServerKey};
use crate::error::Error;
use crate::redis::key::Kind;
use engine::ban::Bans;
use engine::held::Leases;
use engine::store::{Entries, Reservations, WindowKey as _};
use engine::throttle::Stored;

/// A key, as a person asks for it.
pub struct Found {
    /// What lies there.
    pub kind: Contents,
    /// Microseconds until its ban ends; 0 where none runs.
    pub ban_us: u64,
    /// Milliseconds until the key expires; `None` where it never does.
    pub ttl_ms: Option<u64>,
}

/// What lies under a key.
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

/// Reads a key. O(entries + reservations).
pub fn contents(key_ctx: KeyContext) -> Result<Found, Error> {
    let mut key = Open::new(key_ctx, Intent::Read)?;
    let ttl_ms = key.reader().expires_at_ms();
    let ttl_ms = ttl_ms.map(|at_ms| at_ms.saturating_sub(key_ctx.now_us / 1_000));
    let mut ban = None;
    let kind = match key.kind() {
        Kind::Empty => Contents::Nothing,
        Kind::String => {
            let stored = Stored::decode(key.reader().string()).ok_or(Error::NotTat)?;
            ban = stored.ban();
            let full_in_us = stored.full_at_us().saturating_sub(key_ctx.now_us);
            Contents::Bucket(BucketContents { full_in_us, debt_ns: stored.debt_ns() })
        }
        Kind::Zset => {
            drop(key);
            let mut key = ServerWindow::of(ServerKey { key_ctx, intent: Intent::Read });
            key.read(None)?;
            ban = key.ban();
            Contents::Window(window(key_ctx, &mut key)?)
        }
        Kind::Other => return Err(Error::NotLimit),
    };
    let ban_us = Bans::at(ban, key_ctx.now_us).left_us();
    Ok(Found { kind, ban_us, ttl_ms })
}

fn window(key_ctx: KeyContext, key: &mut ServerWindow) -> Result<WindowContents, Error> {
    let mut found = WindowContents::default();
    let (mut events, reservations): (EventReader, _) = key.split();
    found.entries = number(events.len());
    found.held = u64::try_from(reservations.total()).unwrap_or(u64::MAX);
    found.reservations = number(reservations.live_len());
    events.scan(None, |event| {
        found.events = found.events.saturating_add(event.weight);
        if event.denied {
            found.denied = found.denied.saturating_add(event.weight);
        }
        let age = |us: u64| Some(key_ctx.now_us.saturating_sub(us));
        found.oldest_us = found.oldest_us.or(age(event.first_us()));
        found.newest_us = age(event.newest_us);
        true
    })?;
    Ok(found)
}

fn number(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
