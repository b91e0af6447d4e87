//! The outcome of a step in a world: the event that occurred, and the first claim that the new state violates.

use stateright::{Model, Property};

/// Defines an enum whose variants each stand for a property of a world. The doc comment of a variant, which must be one
/// line, is the name of its property.
macro_rules! properties {
    ($(#[$meta:meta])* $name:ident: $expectation:ident $holds:ident {
        $(#[doc = $text:literal] $variant:ident,)+
    }) => {
        listed! {
            $(#[$meta])*
            $name { $(#[doc = $text] $variant,)+ }
        }

        impl $name {
            /// Returns the property that this stands for.
            pub fn property<M: Model<State: HasOutcome>>(self) -> Property<M> {
                match self {
                    $($name::$variant => {
                        Property::$expectation($text.trim_matches([' ', '.']), |_, state: &M::State| {
                            state.outcome().$holds($name::$variant)
                        })
                    })+
                }
            }
        }
    };
}

properties! {
    /// A claim that holds in every state of a world.
    Claim: always keeps {
        /// No more than the limit is used.
        Limit,
        /// A look returns what the call returns.
        SameReply,
        /// The wait in a reply suffices, and a microsecond less does not.
        RetryAfter,
        /// No reservation is freed before its time.
        HeldLongEnough,
        /// No reservation is held beyond its time.
        HeldNoLonger,
        /// A window that its first event opened lasts one period.
        FirstWindow,
        /// Nothing is taken while a ban runs.
        Banned,
        /// No second ban starts before a grant.
        BannedOnce,
        /// RL.ALL takes from all groups or none, and from the first limit of a group that allows it.
        AllOrNothing,
        /// No more than the limit is spent in a period.
        Spent,
        /// The stored value can be read.
        Readable,
        /// Calls are served by LEAVE, then in the order of their arrival.
        Order,
        /// No waiting call is granted within a transaction.
        OneStep,
        /// No wake-up is lost.
        Woken,
        /// No call waits longer than it asked to.
        Patience,
        /// A waiting call takes nothing.
        HoldsNothing,
        /// A denial at the end of a wait is counted once.
        CountedOnce,
        /// Only a call that waits is granted by a wake-up or the timer.
        Waiting,
        /// The timer does not fire without end.
        TimerStops,
    }
}

properties! {
    /// An event that must occur in some state of a world. Otherwise a world in which nothing happens would pass.
    Event: sometimes shows {
        /// A call is denied.
        Denied,
        /// A ban starts.
        Banned,
        /// A group takes from a limit that is not its first.
        Else,
        /// A reservation is settled.
        Settled,
        /// A reservation is no longer held, or cannot be renewed.
        Lapsed,
        /// A lease is renewed.
        Renewed,
        /// The clock steps back.
        Back,
        /// The clock steps forward.
        Forward,
        /// The replica takes over.
        Failover,
        /// A call starts to wait.
        Waits,
        /// A waiting call changes its line.
        ChangesLine,
        /// A waiting call is granted.
        GrantedAfterWaiting,
        /// A wait ends without a grant.
        Dismissed,
    }
}

/// The outcome of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StepOutcome {
    /// The event that occurred.
    pub event: Option<Event>,
    /// The first claim that is violated.
    pub violated: Option<Claim>,
}

impl StepOutcome {
    /// Notes that `claim` is violated unless it `holds`.
    pub fn check(&mut self, holds: bool, claim: Claim) {
        if !holds {
            self.violated.get_or_insert(claim);
        }
    }

    fn keeps(self, claim: Claim) -> bool {
        self.violated != Some(claim)
    }

    fn shows(self, event: Event) -> bool {
        self.event == Some(event)
    }
}

/// A state with the outcome of the step that led to it.
pub trait HasOutcome {
    /// Returns the outcome.
    fn outcome(&self) -> StepOutcome;
}

/// Returns the properties of a world: every claim, and the events that must occur.
pub fn properties<M: Model<State: HasOutcome>>(must_happen: &[Event]) -> Vec<Property<M>> {
    let claims = Claim::ALL.iter().map(|claim| claim.property());
    claims.chain(must_happen.iter().map(|event| event.property())).collect()
}
