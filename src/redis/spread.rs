//! Commands on several keys in a cluster.
//!
//! A server routes such a command by all its keys only if it asks the module for them. Other servers know the first key, and
//! look up every key in the table of that key's slot. So the module always compares the slots itself before it opens a key.

use super::call::Call;
use super::{key, slot};
use std::ops::Range;

/// Where the keys of a call are in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// In one slot, and this node serves all of them. Always so without a cluster.
    Together,
    /// In different slots.
    AcrossSlots,
    /// In one slot that is migrating, and not all of them are here.
    AcrossNodes,
}

/// Returns where the keys are that these arguments of a call name. The server has accepted the call for the first of them.
pub fn spread(call: &Call, keys: Range<usize>) -> Spread {
    let ctx = call.ctx;
    if keys.len() < 2 || !ctx.is_in_cluster() {
        return Spread::Together;
    }
    let mut slots = keys.clone().filter_map(|at| call.argument(at)).map(slot::key_slot);
    let first = slots.next();
    if !slots.all(|slot| Some(slot) == first) {
        return Spread::AcrossSlots;
    }
    // A key that is here is served here, whether its slot is migrating or not.
    let is_here = |at| call.key_at(at).is_some_and(|name| key::is_here(ctx, name));
    if keys.clone().all(is_here) || are_served(call, keys) {
        Spread::Together
    } else {
        Spread::AcrossNodes
    }
}

/// Returns whether the server would accept a command of this client on these keys. That depends on whether the slot is
/// migrating and whether the client has sent ASKING, which the API does not report.
fn are_served(call: &Call, keys: Range<usize>) -> bool {
    // SAFETY: the running call keeps its arguments.
    unsafe { call.ctx.lets_pass(call.raw_arguments(keys)) }
}
