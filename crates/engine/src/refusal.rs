//! Why a call with valid arguments may be an error.

/// The reason why a call with valid arguments is an error. Nothing changes then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    NotBucket,
    NotWindow,
    NotHash,
    /// The module did not write the value or an entry, or entries contradict each other.
    Foreign,
    /// The clock is beyond the years that scores and calendars support.
    Clock,
    /// The stored time would not fit into a value, or the debt would exceed 100 years.
    DebtTooLong,
    /// FORCE would exceed the largest sum.
    SumTooLarge,
    /// The id is held.
    Duplicate,
    TooManyReservations,
    /// The reservation of a semaphore cannot be applied.
    Semaphore,
}
