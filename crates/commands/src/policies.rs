//! The table of policies: named limits, with counters of the calls on each of them.

use crate::counter::Counter;
use crate::limits::{LimitSpec, WindowKind};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A limit with a name.
#[derive(Debug)]
pub struct Policy {
    /// Identifies the policy, and is never used again for another one. 0 before the policy is in the table.
    pub id: u64,
    /// The numbers of the limit.
    pub limit: LimitSpec,
    /// The kind of window, if the limit is a window.
    pub window_kind: WindowKind,
    /// The length of the ban that a denial starts (BAN), in milliseconds.
    pub ban_ms: Option<u64>,
    /// True if the policy only counts the calls that it would deny (SHADOW).
    pub shadow: bool,
    /// The definition without the name, with single blanks between words.
    pub definition: String,
}

/// Policies by name.
pub type Policies = BTreeMap<Vec<u8>, Policy>;

/// Counters of the calls on a policy, by how they ended.
#[derive(Debug, Default)]
pub struct Counts {
    /// Calls that were allowed.
    pub allowed: Counter,
    /// Calls that were denied.
    pub denied: Counter,
    /// Calls that would have been denied without SHADOW.
    pub shadow_denied: Counter,
}

/// A row of the table.
struct PolicyRow {
    policy: Arc<Policy>,
    counts: Arc<Counts>,
}

/// All policies.
#[derive(Default)]
pub struct PolicyTable {
    /// The value of the setting that defines the policies.
    text: Vec<u8>,
    rows: BTreeMap<Vec<u8>, PolicyRow>,
    by_id: BTreeMap<u64, Arc<Counts>>,
    last_id: u64,
    /// The text and the rows that were replaced last, because a CONFIG SET that fails at another setting restores the old
    /// text.
    before: (Vec<u8>, BTreeMap<Vec<u8>, PolicyRow>),
}

/// The outcome of a call on a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyVerdict {
    /// The call was allowed.
    Allowed,
    /// The call was denied.
    Denied,
    /// The call would have been denied without SHADOW.
    ShadowDenied,
}

/// A policy as an operator sees it.
pub struct ListedPolicy {
    /// The name, which `@name` in a call refers to.
    pub name: String,
    /// The definition without the name.
    pub definition: String,
    /// The number of calls that were allowed.
    pub allowed: u64,
    /// The number of calls that were denied.
    pub denied: u64,
    /// The number of calls that would have been denied without SHADOW.
    pub shadow_denied: u64,
}

impl PolicyTable {
    /// Returns the policy of this name.
    pub fn policy_by_name(&self, name: &[u8]) -> Option<Arc<Policy>> {
        self.rows.get(name).map(|row| Arc::clone(&row.policy))
    }

    /// Returns the value of the setting that defines the policies.
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// Counts a call on the policy with this id, if it is still in the table.
    pub fn count(&self, id: u64, verdict: PolicyVerdict) {
        let Some(counts) = self.by_id.get(&id) else { return };
        match verdict {
            PolicyVerdict::Allowed => &counts.allowed,
            PolicyVerdict::Denied => &counts.denied,
            PolicyVerdict::ShadowDenied => &counts.shadow_denied,
        }
        .add(1);
    }

    /// Replaces all policies by those that `text` defines. Policies that keep their names keep their counters. If `text` is
    /// the text before the current one, all its policies have their counters back.
    pub fn replace(&mut self, text: &[u8], policies: Policies) {
        let mut rows = BTreeMap::new();
        let (text_before, mut rows_before) = std::mem::take(&mut self.before);
        if text_before == text {
            self.rows.append(&mut rows_before);
        }
        for (name, mut policy) in policies {
            let counts = match self.rows.remove(&name) {
                Some(row) => {
                    policy.id = row.policy.id;
                    row.counts
                }
                None => {
                    self.last_id = self.last_id.saturating_add(1);
                    policy.id = self.last_id;
                    Arc::default()
                }
            };
            rows.insert(name, PolicyRow { policy: Arc::new(policy), counts });
        }
        self.by_id = rows.values().map(|row| (row.policy.id, Arc::clone(&row.counts))).collect();
        let replaced = std::mem::replace(&mut self.rows, rows);
        self.before = (std::mem::replace(&mut self.text, text.to_vec()), replaced);
    }

    /// Returns all policies, in the order of the bytes of their names.
    pub fn list(&self) -> Vec<ListedPolicy> {
        let listed = self.rows.iter().map(|(name, row)| {
            let Counts { allowed, denied, shadow_denied } = &*row.counts;
            ListedPolicy {
                name: String::from_utf8_lossy(name).into_owned(),
                definition: row.policy.definition.clone(),
                allowed: allowed.get(),
                denied: denied.get(),
                shadow_denied: shadow_denied.get(),
            }
        });
        listed.collect()
    }
}
