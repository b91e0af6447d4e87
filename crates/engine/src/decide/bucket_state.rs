//! The state of a part whose key holds a bucket.

use super::Action;
use crate::decision::Verdict;
use crate::entry::check_clock;
use crate::request::Request;
use crate::store::{BucketKey, Store};
use crate::throttle::{Bucket, BucketEdit, Rate};

/// What a request asks of a bucket: the bucket as it was read, and the change to write.
pub(crate) struct BucketState<'r, S: Store> {
    request: &'r Request,
    pub(super) key: S::Bucket,
    pub(super) bucket: Bucket<'r>,
    pub(super) edit: BucketEdit,
}

impl<'r, S: Store> BucketState<'r, S> {
    /// Creates the state of a part whose key has not been read yet.
    #[inline(always)]
    pub(super) fn new(store: S, request: &'r Request, rate: &'r Rate) -> BucketState<'r, S> {
        let bucket = Bucket::full(rate, store.now_us());
        BucketState { request, key: store.bucket(), bucket, edit: BucketEdit::Keep }
    }

    /// Reads the key and judges the request.
    #[inline(always)]
    pub(super) fn judge(&mut self, barred: bool) -> Result<Verdict, S::Error> {
        check_clock(self.bucket.now_us())?;
        if let Some(stored) = self.key.read()? {
            self.bucket.set(stored);
        }
        Ok(self.bucket.judge(&self.request.ask, barred)?)
    }

    /// Returns the earliest grant in Unix microseconds, ignoring waiters. `None` if there is none. A bucket has no
    /// reservations, and a ban is part of its verdict, so this is the verdict on a call that is not barred.
    pub(super) fn earliest_grant_us(&self) -> Result<Option<u64>, S::Error> {
        let now_us = self.bucket.now_us();
        Ok(match self.bucket.judge(&self.request.ask, false)? {
            Verdict::Allowed { .. } => Some(now_us),
            Verdict::Denied { wait_us, .. } => Some(now_us.saturating_add(wait_us)),
            Verdict::Never => None,
        })
    }

    /// Plans what to write, and returns the verdict after it.
    #[inline(always)]
    pub(super) fn plan(&mut self, verdict: Verdict, action: Action) -> Verdict {
        let ask = &self.request.ask;
        let (verdict, edit) = match action {
            Action::Grant => (verdict, self.bucket.grant(ask, verdict)),
            Action::Deny { ban_ms, .. } if ask.quantity.takes() => {
                self.bucket.deny(ask, verdict, ban_ms)
            }
            // A call that takes nothing is denied only if another of its limits denies.
            Action::Look | Action::Deny { .. } => (verdict, BucketEdit::Keep),
        };
        self.edit = edit;
        verdict
    }
}
