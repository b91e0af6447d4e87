//! Limits by name: the table of policies, and what became of the calls that used it.

use crate::limits::{Given, Shape};
use crate::redis::under_lock::UnderLock;
use crate::stats::Counter;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A limit that has a name.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Its number, never given to another name.
    pub id: u64,
    /// The limit.
    pub given: Given,
    /// How a window counts.
    pub shape: Shape,
    /// For how many milliseconds a denial closes the key (BAN).
    pub ban_ms: Option<u64>,
    /// It never denies.
    pub shadow: bool,
}

/// A policy as it is defined, before it has a number.
pub struct Definition {
    /// The limit.
    pub given: Given,
    /// How a window counts.
    pub shape: Shape,
    /// For how many milliseconds a denial closes the key (BAN).
    pub ban_ms: Option<u64>,
    /// It never denies.
    pub shadow: bool,
    /// The definition without the name, with single blanks.
    pub text: String,
}

/// Definitions by name.
pub type Definitions = BTreeMap<Vec<u8>, Definition>;

/// What became of the calls that used a policy.
#[derive(Debug, Default)]
pub struct Counts {
    /// Calls that were allowed.
    pub allowed: Counter,
    /// Calls that were denied.
    pub denied: Counter,
    /// Calls that would have been denied, but for SHADOW.
    pub shadow_denied: Counter,
}

/// A row of the table.
struct PolicyEntry {
    policy: Arc<Policy>,
    /// The definition without the name, with single blanks.
    definition: String,
    counts: Arc<Counts>,
}

/// A table as it was set.
struct PolicyTable {
    /// As it was given.
    text: Vec<u8>,
    rows: BTreeMap<Vec<u8>, PolicyEntry>,
    by_id: BTreeMap<u64, Arc<Counts>>,
    last_id: u64,
    /// The text of the table before, and the rows that went with it. A CONFIG SET that fails at another setting sets
    /// the old text again.
    before: (Vec<u8>, BTreeMap<Vec<u8>, PolicyEntry>),
}

static TABLE: UnderLock<PolicyTable> = UnderLock::new(PolicyTable {
    text: Vec::new(),
    rows: BTreeMap::new(),
    by_id: BTreeMap::new(),
    last_id: 0,
    before: (Vec::new(), BTreeMap::new()),
});

/// The policy of this name.
pub fn named(name: &[u8]) -> Option<Arc<Policy>> {
    TABLE.with(|table| table.rows.get(name).map(|row| Arc::clone(&row.policy)))
}

/// The table as it was given.
pub fn text() -> Vec<u8> {
    TABLE.with(|table| table.text.clone())
}

/// How a call on a policy ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyVerdict {
    /// It was allowed.
    Allowed,
    /// It was denied.
    Denied,
    /// It would have been denied, but for SHADOW.
    ShadowDenied,
}

/// Counts a call on the policy of this number. One that is no longer in the table is not counted.
pub fn count(id: u64, ended: PolicyVerdict) {
    TABLE.with(|table| {
        let Some(counts) = table.by_id.get(&id) else { return };
        match ended {
            PolicyVerdict::Allowed => &counts.allowed,
            PolicyVerdict::Denied => &counts.denied,
            PolicyVerdict::ShadowDenied => &counts.shadow_denied,
        }
        .add(1);
    });
}

/// Replaces the whole table by what `text` defines. The counts of names that stay go on; so do all where this is the
/// text that was replaced last.
pub fn replace(text: &[u8], definitions: Definitions) {
    TABLE.with(|table| {
        let mut rows = BTreeMap::new();
        let (old_text, mut gone) = std::mem::take(&mut table.before);
        if old_text == text {
            table.rows.append(&mut gone);
        }
        for (name, definition) in definitions {
            let Definition { given, shape, ban_ms, shadow, text: definition } = definition;
            let (id, counts) = match table.rows.remove(&name) {
                Some(row) => (row.policy.id, row.counts),
                None => {
                    table.last_id = table.last_id.saturating_add(1);
                    (table.last_id, Arc::default())
                }
            };
            let policy = Arc::new(Policy { id, given, shape, ban_ms, shadow });
            rows.insert(name, PolicyEntry { policy, definition, counts });
        }
        table.by_id = rows.values().map(|row| (row.policy.id, Arc::clone(&row.counts))).collect();
        let gone = std::mem::replace(&mut table.rows, rows);
        table.before = (std::mem::replace(&mut table.text, text.to_vec()), gone);
    });
}

/// Forgets the table, before the module goes.
pub fn unload() {
    TABLE.with(|table| {
        table.text = Vec::new();
        table.rows = BTreeMap::new();
        table.by_id = BTreeMap::new();
        table.before = Default::default();
    });
}

/// A policy as an operator sees it.
pub struct PolicyRow {
    /// Its name.
    pub name: String,
    /// Its definition without the name.
    pub definition: String,
    /// Allowed, denied, and denied but for SHADOW.
    pub counts: [u64; 3],
}

/// All policies, in the order of the bytes of their names.
pub fn list() -> Vec<PolicyRow> {
    TABLE.with(|table| {
        let listed = table.rows.iter().map(|(name, row)| {
            let Counts { allowed, denied, shadow_denied } = &*row.counts;
            PolicyRow {
                name: String::from_utf8_lossy(name).into_owned(),
                definition: row.definition.clone(),
                counts: [allowed.get(), denied.get(), shadow_denied.get()],
            }
        });
        listed.collect()
    })
}

/// A digest of names and definitions (FNV-1a, 64 bits), by which nodes can be compared; 0 for an empty table.
pub fn digest() -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let listed = list();
    if listed.is_empty() {
        return 0;
    }
    let lines =
        listed.iter().flat_map(|one| [&one.name, " ", &one.definition, ";"].concat().into_bytes());
    lines.fold(OFFSET, |digest, byte| (digest ^ u64::from(byte)).wrapping_mul(PRIME))
}
