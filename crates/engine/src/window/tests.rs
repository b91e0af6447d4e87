//! Windows compared with the obvious model in [`crate::model::window_world`].

use super::*;
use crate::decision::{Ask, Manner, Quantity, Verdict};
use crate::entry::LAST_US;
use crate::memory::Zset;
use crate::model::window_world::{
    event, plain, rule, Counted, Obvious, Ruled, WindowWorld, MAX_ENTRIES,
};
use crate::model::{ModelCall, ModelCommand, ModelReply};
use crate::properties::START_US;
use crate::reservation::Hold;
use crate::reservations::SortedHolds;

mod lemmas;
mod properties;
mod tables;

/// The most dead entries that a busy key keeps: those that are not worth a removal, and those that come until the next
/// look for them.
const MAX_DEAD: usize = 8 + 16;

fn exact(period_ms: u64) -> (Ruled, Obvious) {
    (rule(&format!("{period_ms}ms")), Obvious::Sliding(period_ms * 1_000))
}

fn ask(quantity: i64) -> Ask {
    Ask::whole(Quantity::from_signed(quantity))
}

fn force(quantity: i64) -> Ask {
    Ask { manner: Manner::Force, ..ask(quantity) }
}
