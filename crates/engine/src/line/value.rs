//! Lines as a value that can be copied, compared, hashed and shown, where all that waits in them can: so that a search
//! through all states of a small world can tell one from another.

use super::*;
use std::fmt::{Debug, Formatter};
use std::hash::{Hash, Hasher};

impl<P: LineTypes + Clone> Clone for Lines<P>
where
    P::Handle: Clone,
    P::Write: Clone,
{
    fn clone(&self) -> Lines<P> {
        Lines {
            waiters: self.waiters.clone(),
            lines: self.lines.clone(),
            line_on: self.line_on.clone(),
            tries: self.tries.clone(),
            deadlines: self.deadlines.clone(),
            work: self.work.clone(),
            ..*self
        }
    }
}

/// Everything in `$lines`, as tuples of references.
macro_rules! fields {
    ($lines:expr) => {{
        let Lines {
            last_number,
            waiting,
            waiters,
            lines,
            line_on,
            tries,
            deadlines,
            paused_until_us,
            timer_us,
            work,
            ahead_us,
            last_passed_us,
            spent_us,
            budget_since_us,
            event_loop,
        } = $lines;
        (
            (last_number, waiting, waiters, lines, line_on, tries, deadlines),
            (paused_until_us, timer_us, work, ahead_us, last_passed_us),
            (spent_us, budget_since_us, event_loop),
        )
    }};
}

impl<P: LineTypes + PartialEq> PartialEq for Lines<P>
where
    P::Call: PartialEq,
    P::Handle: PartialEq,
    P::Reply: PartialEq,
    P::Write: PartialEq,
{
    fn eq(&self, other: &Lines<P>) -> bool {
        fields!(self) == fields!(other)
    }
}

impl<P: LineTypes + Hash> Hash for Lines<P>
where
    P::Call: Hash,
    P::Handle: Hash,
    P::Reply: Hash,
    P::Write: Hash,
{
    fn hash<H: Hasher>(&self, state: &mut H) {
        fields!(self).hash(state);
    }
}

impl<P: LineTypes + Debug> Debug for Lines<P>
where
    P::Call: Debug,
    P::Handle: Debug,
    P::Reply: Debug,
    P::Write: Debug,
{
    fn fmt(&self, f: &mut Formatter) -> std::fmt::Result {
        fields!(self).fmt(f)
    }
}
