//! What lies under a key, whatever kind of limit it is.

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
    let ttl_ms = key.reader().expires_at_ms();
    let ttl_ms = ttl_ms.map(|at_ms| at_ms.saturating_sub(key_ctx.now_us / 1_000));
    let mut ban = None;
    let kind = match key.reader().value() {
        KeyValue::Empty => Contents::Nothing,
        KeyValue::String(text) => {
            let stored = Stored::decode(text.bytes()).ok_or(Error::NotTat)?;
            ban = stored.ban();
            Contents::Bucket(BucketContents::of(&stored, key_ctx.now_us))
        }
        KeyValue::Zset => {
            drop(key);
            let mut key = ServerWindow::new(ServerKey::in_mode(key_ctx, Mode::Look));
            key.read(None)?;
            ban = key.ban();
            Contents::Window(WindowContents::of(&mut key, key_ctx.now_us)?)
        }
        KeyValue::Other => return Err(Error::NotLimit),
    };
    let ban_us = BanNow::at(ban, key_ctx.now_us).left_us();
    Ok(KeyContents { kind, ban_us, ttl_ms })
}
