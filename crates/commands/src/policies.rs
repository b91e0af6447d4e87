//! The table of policies: named limits, with counters of the calls on each of them.

use crate::counter::Counter;
use crate::limits::{LimitSpec, WindowKind};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Debug)]
pub struct Policy {
    /// Never used again for another policy. 0 before the policy is in the table.
    pub id: u64,
    pub limit: DefinedLimit,
    /// The definition without the name, with single spaces between words.
    pub definition: String,
    /// Counters of the calls. A new definition of the same name keeps them.
    pub counts: Arc<PolicyCounts>,
}

/// What a definition says, of a policy or of a field in a hash of limits.
#[derive(Clone, Copy, Debug)]
pub struct DefinedLimit {
    /// The numbers of the limit.
    pub spec: LimitSpec,
    pub window_kind: WindowKind,
    /// The length of the ban that a denial starts (BAN), in milliseconds.
    pub ban_ms: Option<u64>,
    /// True if calls that the limit would deny are only counted (SHADOW).
    pub shadow: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct NamedLimit {
    pub defined: DefinedLimit,
    /// The policy of this name, on which the call is counted. The field of a hash of limits needs no such policy.
    pub policy_id: Option<u64>,
}

pub type Definitions = BTreeMap<String, Policy>;

/// The policies of a server, in the order of the bytes of their names.
pub type Policies = BTreeMap<String, Arc<Policy>>;

#[derive(Debug, Default)]
pub struct PolicyCounts {
    pub allowed: Counter,
    pub denied: Counter,
    /// Calls that would have been denied without SHADOW.
    pub shadow_denied: Counter,
}

#[derive(Default)]
pub struct PolicyTable {
    /// The value of the setting that defines the policies.
    text: Vec<u8>,
    policies: Policies,
    counts_by_id: BTreeMap<u64, Arc<PolicyCounts>>,
    last_id: u64,
    /// The text and the policies that were replaced last, because a CONFIG SET that fails at another setting restores the
    /// old text.
    replaced: (Vec<u8>, Policies),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyVerdict {
    Allowed,
    Denied,
    ShadowDenied,
}

impl PolicyTable {
    /// A clone shares the counters of the table.
    pub fn policies(&self) -> &Policies {
        &self.policies
    }

    pub fn policy_by_name(&self, name: &[u8]) -> Option<Arc<Policy>> {
        self.policies.get(std::str::from_utf8(name).ok()?).cloned()
    }

    pub fn text(&self) -> &[u8] {
        &self.text
    }

    pub fn count(&self, id: u64, verdict: PolicyVerdict) {
        let Some(counts) = self.counts_by_id.get(&id) else { return };
        match verdict {
            PolicyVerdict::Allowed => &counts.allowed,
            PolicyVerdict::Denied => &counts.denied,
            PolicyVerdict::ShadowDenied => &counts.shadow_denied,
        }
        .add(1);
    }

    /// Replaces all policies by those that `text` defines. Policies that keep their names keep their counters. If `text` is
    /// the text before the current one, all its policies have their counters back.
    pub fn replace(&mut self, text: &[u8], definitions: Definitions) {
        let (text_before, mut policies_before) = std::mem::take(&mut self.replaced);
        if text_before == text {
            self.policies.append(&mut policies_before);
        }
        let mut policies = Policies::new();
        for (name, mut policy) in definitions {
            match self.policies.remove(&name) {
                Some(old) => (policy.id, policy.counts) = (old.id, Arc::clone(&old.counts)),
                None => {
                    self.last_id = self.last_id.saturating_add(1);
                    policy.id = self.last_id;
                }
            }
            policies.insert(name, Arc::new(policy));
        }
        self.counts_by_id =
            policies.values().map(|one| (one.id, Arc::clone(&one.counts))).collect();
        let replaced = std::mem::replace(&mut self.policies, policies);
        self.replaced = (std::mem::replace(&mut self.text, text.to_vec()), replaced);
    }
}
