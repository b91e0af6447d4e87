//! The keys of this server as the commands use them. Counts calls for policies and settled reservations for INFO, and notes
//! denials for RL.TOP and as keyspace events.

use super::server_bucket::decode_bucket;
use super::{KeyContext, KeyHandle, ServerKey, ServerKeyspace, ServerWindow};
use crate::redis::key::{KeyValue, ReadKey};
use crate::redis::key_events::notify;
use crate::redis::random::RandomPool;
use commands::error::Error;
use commands::keyspace::{Inspection, Keyspace};
use commands::policies::PolicyVerdict;
use commands::report::MAX_TOP_KEY;
use engine::reservation::{id_from_random, Id};
use engine::store::{Access, KeyState, WindowKey};
use engine::top_keys::TopRow;
use engine::DbKey;

impl<'c> Keyspace for ServerKeyspace<'c> {
    type Key = KeyContext<'c>;
    type Store<'k>
        = ServerKey<'k, 'c>
    where
        Self: 'k;

    fn store(&self, key_ctx: KeyContext<'c>, access: Access) -> ServerKey<'_, 'c> {
        ServerKey { keyspace: self, key_ctx, access, emptied: None }
    }

    fn new_id(&self) -> Id {
        Id::from(&id_from_random(self.state.random.with(RandomPool::next))[..])
    }

    fn inspect(
        &self,
        key_ctx: KeyContext<'c>,
    ) -> Result<Option<Inspection<ServerWindow<'_, 'c>>>, Error> {
        let key = ReadKey::open(key_ctx.ctx, key_ctx.name);
        let expires_at_ms = key.expires_at_ms();
        let state = match key.value() {
            KeyValue::Empty => return Ok(None),
            KeyValue::String(text) => KeyState::Bucket(decode_bucket(text.bytes())?),
            KeyValue::Zset => {
                let mut window =
                    ServerWindow::new(self.store(key_ctx, Access::Read), KeyHandle::Read(key));
                window.read(None)?;
                KeyState::Window(window)
            }
            KeyValue::Hash | KeyValue::Other => return Err(Error::NotLimit),
        };
        Ok(Some((state, expires_at_ms)))
    }

    fn count_applied(&self, number: u64) {
        self.state.stats.applied.add(number);
    }

    fn count_released(&self, number: u64) {
        self.state.stats.released.add(number);
    }

    fn count_policy(&self, id: u64, verdict: PolicyVerdict) {
        self.state.policies.with(|table| table.count(id, verdict));
    }

    /// Counts the denial for RL.TOP, and publishes a keyspace event.
    fn note_denial(&self, key_ctx: KeyContext) {
        if self.state.numbers.top_keys.get() > 0 {
            let name = key_ctx.name.as_bytes();
            let key = DbKey { db: key_ctx.ctx.db(), name: name.get(..MAX_TOP_KEY).unwrap_or(name) };
            self.state.most_denied.with(|top| top.add(key, key_ctx.now_us));
        }
        if self.state.notify_denied.get() {
            notify(key_ctx.ctx, c"rl.denied", key_ctx.name);
        }
    }

    fn most_denied(&self, now_us: u64, count: usize) -> Vec<TopRow> {
        self.state.most_denied.with(|top| top.top(now_us, count))
    }

    fn forget_denials(&self) {
        self.state.forget_denials();
    }
}
