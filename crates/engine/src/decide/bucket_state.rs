//! The state of a part whose key holds a bucket.

use super::Action;
use crate::decision::{Decision, Verdict};
use crate::entry::check_clock;
use crate::request::Request;
use crate::store::{BucketKey, Store};
use crate::throttle::{Bucket, BucketEdit, Rate};

/// The bucket as the call found it, and the edit that was planned.
pub(crate) struct BucketState<'r, S: Store> {
    request: &'r Request,
    pub(super) key: S::Bucket,
    before: Bucket<'r>,
    pub(super) edit: BucketEdit,
}

impl<'r, S: Store> BucketState<'r, S> {
    /// Creates the state of a part whose key has not been read yet.
    #[inline(always)]
    pub(super) fn new(store: S, request: &'r Request, rate: &'r Rate) -> BucketState<'r, S> {
        let before = Bucket::full(rate, store.now_us());
        BucketState { request, key: store.bucket(), before, edit: BucketEdit::Keep }
    }

    #[inline(always)]
    pub(super) fn read(&mut self) -> Result<(), S::Error> {
        check_clock(self.before.now_us())?;
        if let Some(stored) = self.key.read()? {
            self.before.set(stored);
        }
        Ok(())
    }

    #[inline(always)]
    pub(super) fn judge(&self, barred: bool) -> Result<Verdict, S::Error> {
        Ok(self.before.judge(&self.request.ask, barred)?)
    }

    /// Returns the earliest grant in Unix microseconds, ignoring waiters. `None` if there is none. A bucket has no
    /// reservations, and a ban is part of its verdict, so this is the verdict on a call that is not barred.
    pub(super) fn earliest_grant_us(&self) -> Result<Option<u64>, S::Error> {
        let now_us = self.before.now_us();
        Ok(match self.judge(false)? {
            Verdict::Allowed { .. } => Some(now_us),
            Verdict::Denied { wait_us, .. } => Some(now_us.saturating_add(wait_us)),
            Verdict::Never => None,
        })
    }

    /// Plans what to write, and decides.
    #[inline(always)]
    pub(super) fn plan(&mut self, verdict: Verdict, action: Action) -> Decision {
        let (ask, before) = (&self.request.ask, &self.before);
        let (verdict, after, edit) = match action {
            Action::Grant => {
                let (mut after, mut edit) = before.grant(ask, verdict);
                if let Some(ban_ms) = self.request.closes_for_ms() {
                    (after, edit) = after.close(edit, ban_ms);
                }
                (verdict, after, edit)
            }
            Action::Heal if ask.quantity.takes() => before.deny(ask, verdict, None),
            Action::Deny { ban_ms } if ask.quantity.takes() => before.deny(ask, verdict, ban_ms),
            // A call that takes nothing is denied only if another of its limits denies.
            Action::Look | Action::Heal | Action::Deny { .. } => {
                (verdict, *before, BucketEdit::Keep)
            }
        };
        self.edit = edit;
        after.decision(verdict)
    }
}
