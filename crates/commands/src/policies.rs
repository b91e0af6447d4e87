//! Limits by name: the table of policies, and what became of the calls that used it.

use crate::counter::Counter;
use crate::limits::{LimitSpec, WindowKind};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A limit that has a name.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Its number, never given to another name.
    pub id: u64,
    /// The limit.
    pub limit: LimitSpec,
    /// How a window counts.
    pub window_kind: WindowKind,
    /// For how many milliseconds a denial closes the key (BAN).
    pub ban_ms: Option<u64>,
    /// It never denies.
    pub shadow: bool,
}

/// A policy as it is defined, before it has a number.
pub struct Definition {
    /// The limit.
    pub limit: LimitSpec,
    /// How a window counts.
    pub window_kind: WindowKind,
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
struct PolicyRow {
    policy: Arc<Policy>,
    /// The definition without the name, with single blanks.
    definition: String,
    counts: Arc<Counts>,
}

/// The table of policies, as it was set.
pub struct PolicyTable {
    /// As it was given.
    text: Vec<u8>,
    rows: BTreeMap<Vec<u8>, PolicyRow>,
    by_id: BTreeMap<u64, Arc<Counts>>,
    last_id: u64,
    /// The text of the table before, and the rows that went with it. A CONFIG SET that fails at another setting sets
    /// the old text again.
    before: (Vec<u8>, BTreeMap<Vec<u8>, PolicyRow>),
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

/// A policy as an operator sees it.
pub struct ListedPolicy {
    /// Its name.
    pub name: String,
    /// Its definition without the name.
    pub definition: String,
    /// How many calls on it were allowed.
    pub allowed: u64,
    /// How many were denied.
    pub denied: u64,
    /// How many would have been denied, but for SHADOW.
    pub shadow_denied: u64,
}

impl Default for PolicyTable {
    fn default() -> PolicyTable {
        PolicyTable::new()
    }
}

impl PolicyTable {
    /// No policies.
    pub const fn new() -> PolicyTable {
        PolicyTable {
            text: Vec::new(),
            rows: BTreeMap::new(),
            by_id: BTreeMap::new(),
            last_id: 0,
            before: (Vec::new(), BTreeMap::new()),
        }
    }

    /// The policy of this name.
    pub fn named(&self, name: &[u8]) -> Option<Arc<Policy>> {
        self.rows.get(name).map(|row| Arc::clone(&row.policy))
    }

    /// The table as it was given.
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// Counts a call on the policy of this number. One that is no longer in the table is not counted.
    pub fn count(&self, id: u64, ended: PolicyVerdict) {
        let Some(counts) = self.by_id.get(&id) else { return };
        match ended {
            PolicyVerdict::Allowed => &counts.allowed,
            PolicyVerdict::Denied => &counts.denied,
            PolicyVerdict::ShadowDenied => &counts.shadow_denied,
        }
        .add(1);
    }

    /// Replaces the whole table by what `text` defines. The counts of names that stay go on; so do all where this is the
    /// text that was replaced last.
    pub fn replace(&mut self, text: &[u8], definitions: Definitions) {
        let mut rows = BTreeMap::new();
        let (old_text, mut gone) = std::mem::take(&mut self.before);
        if old_text == text {
            self.rows.append(&mut gone);
        }
        for (name, definition) in definitions {
            let Definition { limit, window_kind, ban_ms, shadow, text: definition } = definition;
            let (id, counts) = match self.rows.remove(&name) {
                Some(row) => (row.policy.id, row.counts),
                None => {
                    self.last_id = self.last_id.saturating_add(1);
                    (self.last_id, Arc::default())
                }
            };
            let policy = Arc::new(Policy { id, limit, window_kind, ban_ms, shadow });
            rows.insert(name, PolicyRow { policy, definition, counts });
        }
        self.by_id = rows.values().map(|row| (row.policy.id, Arc::clone(&row.counts))).collect();
        let gone = std::mem::replace(&mut self.rows, rows);
        self.before = (std::mem::replace(&mut self.text, text.to_vec()), gone);
    }

    /// Forgets all policies. Numbers are not given anew.
    pub fn clear(&mut self) {
        *self = PolicyTable { last_id: self.last_id, ..PolicyTable::new() };
    }

    /// All policies, in the order of the bytes of their names.
    pub fn list(&self) -> Vec<ListedPolicy> {
        let listed = self.rows.iter().map(|(name, row)| {
            let Counts { allowed, denied, shadow_denied } = &*row.counts;
            ListedPolicy {
                name: String::from_utf8_lossy(name).into_owned(),
                definition: row.definition.clone(),
                allowed: allowed.get(),
                denied: denied.get(),
                shadow_denied: shadow_denied.get(),
            }
        });
        listed.collect()
    }
}
