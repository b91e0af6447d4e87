//! The ids that waiting calls will give to their reservations.

use crate::db_key::{DbKey, OwnedDbKey};
use std::collections::{BTreeMap, BTreeSet};

type Ids = BTreeSet<Box<[u8]>>;

/// The claimed ids of each key, by database and name of the key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ClaimedIds(BTreeMap<i32, BTreeMap<Box<[u8]>, Ids>>);

impl ClaimedIds {
    pub(super) fn contains(&self, key: DbKey, id: &[u8]) -> bool {
        let ids = self.0.get(&key.db).and_then(|keys| keys.get(key.name));
        ids.is_some_and(|ids| ids.contains(id))
    }

    pub(super) fn insert(&mut self, key: DbKey, id: &[u8]) {
        let keys = self.0.entry(key.db).or_default();
        keys.entry(key.name.into()).or_default().insert(id.into());
    }

    pub(super) fn remove(&mut self, key: &OwnedDbKey, id: &[u8]) {
        let Some(keys) = self.0.get_mut(&key.db) else { return };
        let Some(ids) = keys.get_mut(&key.name) else { return };
        ids.remove(id);
        if ids.is_empty() {
            keys.remove(&key.name);
        }
        if keys.is_empty() {
            self.0.remove(&key.db);
        }
    }
}
