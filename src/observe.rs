//! What is noted when a call has ended: the counters of policies, the most denied keys, and keyspace events.

use crate::config;
use crate::environment::policies;
use crate::redis::events::notify;
use crate::redis::under_lock::UnderLock;
use crate::state::KeyContext;
use commands::notes::Notes;
use commands::policies::PolicyVerdict;
use commands::report::MAX_TOP_KEY;
use engine::db_key::DbKey;
use engine::heavy::{HeavyRow, RecentHeavy};

/// The most denied keys, by database and name.
static TOP: UnderLock<Option<RecentHeavy>> = UnderLock::new(None);

fn top<T>(body: impl FnOnce(&mut RecentHeavy) -> T) -> T {
    TOP.with(|top| {
        body(top.get_or_insert_with(|| {
            RecentHeavy::new(usize::try_from(config::TOP_KEYS.get()).unwrap_or(usize::MAX))
        }))
    })
}

/// Forgets which keys were denied: on RESET, when the setting `top-keys` changes, and before the module is unloaded.
pub fn forget_top() {
    drop(TOP.with(Option::take));
}

/// Notes how calls ended on this server.
pub struct ServerNotes;

impl Notes<KeyContext<'_>> for ServerNotes {
    fn count_policy(&self, id: u64, ended: PolicyVerdict) {
        policies(|table| table.count(id, ended));
    }

    /// Counts the denial for RL.TOP, and publishes a keyspace event.
    fn note_denial(&self, key_ctx: KeyContext) {
        if config::TOP_KEYS.get() > 0 {
            let name = key_ctx.name.as_bytes();
            let key = DbKey { db: key_ctx.ctx.db(), name: name.get(..MAX_TOP_KEY).unwrap_or(name) };
            top(|top| top.add(key, key_ctx.now_us));
        }
        if config::NOTIFY_DENIED.get() {
            notify(key_ctx.ctx, c"rl.denied", key_ctx.name);
        }
    }
}

/// At most `most` of the keys that are denied most at `now_us`, the most denied first.
pub fn most_denied(now_us: u64, most: usize) -> Vec<HeavyRow> {
    match config::TOP_KEYS.get() {
        0 => Vec::new(),
        _ => top(|top| top.heaviest(now_us, most)),
    }
}
