//! An answer to a call that takes: what is replied, at once or after waiting.

use crate::limit::decimal::Text;
use crate::limit::decision::{Decision, TimeUnit};
use crate::limit::reservation::MAX_ID;

/// The id of a reservation.
pub type Id = Text<MAX_ID>;

/// Five integers, and perhaps a sixth element.
#[derive(Clone, Copy)]
pub struct Answer {
    /// What the integers say.
    pub decision: Decision,
    /// In which unit the times are.
    pub unit: TimeUnit,
    /// What follows them.
    pub sixth: Sixth,
}

/// The sixth element of an answer.
#[derive(Clone, Copy)]
pub enum Sixth {
    /// There is none.
    Absent,
    /// How much was had, with ATMOST.
    Granted,
    /// The id of the reservation; nil if there is none.
    Id(Option<Id>),
}
