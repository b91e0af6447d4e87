//! The policies of this server.

use crate::redis::under_lock::UnderLock;
use commands::policies::{Definitions, ListedPolicy, Policy, PolicyTable, PolicyVerdict};
use std::sync::Arc;

static TABLE: UnderLock<PolicyTable> = UnderLock::new(PolicyTable::new());

/// The policy of this name.
pub fn named(name: &[u8]) -> Option<Arc<Policy>> {
    TABLE.with(|table| table.named(name))
}

/// The table as it was given.
pub fn text() -> Vec<u8> {
    TABLE.with(|table| table.text().to_vec())
}

/// Counts a call on the policy of this number.
pub fn count(id: u64, ended: PolicyVerdict) {
    TABLE.with(|table| table.count(id, ended));
}

/// Replaces the whole table, as [`PolicyTable::replace`] does.
pub fn replace(text: &[u8], definitions: Definitions) {
    TABLE.with(|table| table.replace(text, definitions));
}

/// Forgets the table, before the module goes.
pub fn unload() {
    TABLE.with(PolicyTable::clear);
}

/// All policies, in the order of the bytes of their names.
pub fn list() -> Vec<ListedPolicy> {
    TABLE.with(|table| table.list())
}
