//! Commands over several keys in a cluster.
//!
//! A server routes such a command by all its keys only where it asks the module for them. Others know the first one, and
//! look a key up in the table of the slot of that one, whichever slot the key is in. So the module compares the slots
//! itself, everywhere, before it opens a key.

use super::call::Call;
use super::{key, slot};
use std::ops::Range;

/// How the keys of a call lie in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Not at all: in one slot, which this node serves for all of them. So it is without a cluster.
    Together,
    /// In different slots.
    AcrossSlots,
    /// In one slot, which is moving from node to node, and not all of them are here.
    AcrossNodes,
}

/// How the keys lie that are these arguments of a call. The server has let the call pass for the first of them.
pub fn spread(call: &Call, keys: Range<usize>) -> Spread {
    let ctx = call.context();
    if keys.len() < 2 || !ctx.is_in_cluster() {
        return Spread::Together;
    }
    let mut slots = keys.clone().filter_map(|at| call.argument(at)).map(slot::key_slot);
    let first = slots.next();
    if !slots.all(|slot| Some(slot) == first) {
        return Spread::AcrossSlots;
    }
    // A key that is here is served here, whether its slot is moving or not.
    let is_here = |at| call.key_at(at).is_some_and(|name| key::is_here(ctx, name));
    if keys.clone().all(is_here) || are_served(call, keys) {
        Spread::Together
    } else {
        Spread::AcrossNodes
    }
}

/// Whether the server would let this client's command over these keys pass. It asks whether the slot is moving, and
/// whether the client was sent here (ASKING), which the API does not tell.
fn are_served(call: &Call, keys: Range<usize>) -> bool {
    // SAFETY: the running call keeps its arguments.
    unsafe { call.context().lets_pass(call.raw_arguments(keys)) }
}
