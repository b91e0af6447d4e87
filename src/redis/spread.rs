//! Commands on several keys in a cluster.
//!
//! A server routes such a command by all its keys only if it asks the module for them. Other servers know the first key, and
//! look up every key in the table of that key's slot. So the module always compares the slots itself before it opens a key.

use super::call::Call;
use super::{key, slot};
use std::ops::Range;

/// The places of a call's keys in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// All in one slot that this node serves, or there is no cluster.
    Together,
    AcrossSlots,
    /// In one slot that is migrating, and some are not on this node.
    AcrossNodes,
}

/// Returns the places of the keys in these arguments of a call. The server has accepted the call for the first key.
pub fn spread(call: &Call, keys: Range<usize>) -> Spread {
    let ctx = call.ctx;
    if keys.len() < 2 || !ctx.is_in_cluster() {
        return Spread::Together;
    }
    let mut slots = keys.clone().filter_map(|at| call.argument(at)).map(slot::key_slot);
    let first_slot = slots.next();
    if !slots.all(|slot| Some(slot) == first_slot) {
        return Spread::AcrossSlots;
    }
    // A node serves every key that it has, even if the slot is migrating.
    let is_here = |at| call.key_at(at).is_some_and(|name| key::is_here(ctx, name));
    // Otherwise it depends on whether the slot is migrating and the client has sent ASKING, which the API does not report.
    // SAFETY: the running call keeps its arguments.
    match keys.clone().all(is_here) || unsafe { ctx.serves_all(call.raw_arguments(keys)) } {
        true => Spread::Together,
        false => Spread::AcrossNodes,
    }
}
