//! A call that arrives, and the calls that wait on its keys: they come first, and it may join them (BLOCK).

use crate::call::ServerCall;
use crate::decide::{decide, note_end};
use crate::error::Error;
use crate::reply::ReplyForm;
use crate::waiting::{Block, WaitingCall, WaitingKeyspace};
use engine::line::Lines;
use engine::store::Store;
use engine::{AwaitedLimit, DbKey, Judged, Mode, Part, PartDecision, Plan, Request};

/// A call that arrives, without its limits.
pub(crate) struct Arrival<'c, S> {
    pub(crate) keyspace: &'c S,
    pub(crate) mode: Mode,
    /// BLOCK, if the server lets the call wait.
    pub(crate) block: Option<Block<'c>>,
    /// Unix microseconds.
    pub(crate) now_us: u64,
}

impl<'c, S: WaitingKeyspace> Arrival<'c, S> {
    /// Returns whether a waiter comes before a request. That happens only if the request takes, and not in [`Mode::Look`].
    /// With BLOCK only those come before it who would stand before it in line.
    ///
    /// # Errors
    ///
    /// [`Error::Duplicate`] if a waiter will use the id of its reservation.
    #[inline(always)]
    pub(crate) fn is_barred(&self, key: S::Key, request: &Request) -> Result<bool, Error> {
        if self.mode == Mode::Look {
            return Ok(false);
        }
        let is_claimed =
            |id| self.keyspace.read_lines(key, |lines, key| lines.is_id_claimed(key, id));
        if request.id().is_some_and(is_claimed) {
            return Err(Error::Duplicate);
        }
        let is_barred = |lines: &Lines<S::Types>, key: DbKey| match &self.block {
            Some(block) => lines.is_preceded(key, &block.caller.turn(request), None),
            None => lines.is_barred(key, request.leave()),
        };
        Ok(request.takes() && self.keyspace.read_lines(key, is_barred))
    }

    /// Takes the steps of the call up to the plan, as [`decide`] does. With BLOCK a denied call waits if it could be granted
    /// in time.
    ///
    /// # Errors
    ///
    /// Those of reading the keys. Nothing changes then.
    #[inline(always)]
    pub(crate) fn decide<'p, 'r>(
        &self,
        parts: &'p mut [Part<'r, S::Store<'c>>],
    ) -> Result<(Plan<'p, 'r, S::Store<'c>>, Option<AwaitedLimit>), Error> {
        decide(self.keyspace, parts, self.mode, |judged| match &self.block {
            Some(block) => find_awaited(judged, block.last_us(self.now_us)),
            None => Ok(None),
        })
    }

    /// Lets a call wait for a limit, in the line on its key, or notes that the call is over. The keys are closed. Returns
    /// whether the call waits.
    #[inline(always)]
    pub(crate) fn join_or_end<'a, C: ServerCall<'a, Key = S::Key, Keyspace = S>>(
        &self,
        call: &C,
        keys: &[S::Key],
        policies: impl Iterator<Item = Option<u64>>,
        form: ReplyForm,
        decisions: &[PartDecision],
        awaited: Option<AwaitedLimit>,
    ) -> Result<bool, Error> {
        let (Some(awaited), Some(block)) = (awaited, &self.block) else {
            if self.mode != Mode::Look {
                let caller = self.block.map(|block| (block.caller, None));
                note_end(self.keyspace, keys, policies, decisions, caller);
            }
            return Ok(false);
        };
        let names = keys.iter().map(|key| self.keyspace.name(*key));
        let requests = decisions.iter().map(|part| *part.request).zip(policies);
        let waiting = WaitingCall::new(names.zip(requests), form, block.caller);
        let key = *keys.get(awaited.index).ok_or(Error::internal())?;
        call.join(key, waiting, block.ms, awaited).map(|()| true)
    }
}

/// Returns the limit for which a denied call waits: the one with the longest wait. `None` if the call is allowed, or if it
/// is certain that it cannot be granted by `last_us`, in Unix microseconds.
///
/// What is certain is what is counted, because only time frees it. What others hold, or wait for, they may give back at any
/// moment. So the limits are judged once more as if nobody held anything: three uses of a day that are applied deny a call
/// with `BLOCK 5s` at once, and three that are held let it wait.
fn find_awaited<S: Store>(
    judged: &mut Judged<S>,
    last_us: u64,
) -> Result<Option<AwaitedLimit>, S::Error> {
    let Some(longest) = judged.longest_wait() else { return Ok(None) };
    let earliest_us = judged.earliest_grant_us()?;
    let in_time = earliest_us.is_some_and(|earliest_us| earliest_us <= last_us);
    Ok(in_time.then_some(longest))
}
