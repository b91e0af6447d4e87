//! Reading a key for RL.INFO, whatever kind of limit it holds.

use super::window::ServerWindow;
use super::{Intent, KeyContext, Open, ServerKey};
use crate::redis::key::KeyValue;
use commands::error::Error;
use commands::inspect::{BucketContents, Contents, KeyContents, WindowContents};
use engine::ban::BanNow;
use engine::decide::Mode;
use engine::store::WindowKey as _;
use engine::throttle::Stored;

/// Reads a key. O(entries + reservations).
pub fn contents(key_ctx: KeyContext) -> Result<KeyContents, Error> {
    let mut key = Open::new(key_ctx, Intent::Read)?;
    let now_us = key_ctx.now_us;
    let ttl_ms = key.reader().expires_at_ms().map(|at_ms| at_ms.saturating_sub(now_us / 1_000));
    let (kind, ban) = match key.reader().value() {
        KeyValue::Empty => (Contents::Nothing, None),
        KeyValue::String(text) => {
            let stored = Stored::decode(text.bytes()).ok_or(Error::NotTat)?;
            (Contents::Bucket(BucketContents::of(&stored, now_us)), stored.ban())
        }
        KeyValue::Zset => {
            drop(key);
            let mut key = ServerWindow::new(ServerKey::in_mode(key_ctx, Mode::Look));
            key.read(None)?;
            (Contents::Window(WindowContents::of(&mut key, now_us)?), key.ban())
        }
        KeyValue::Other => return Err(Error::NotLimit),
    };
    Ok(KeyContents { kind, ban_us: BanNow::at(ban, now_us).left_us(), ttl_ms })
}
