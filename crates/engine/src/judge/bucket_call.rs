//! A call on a bucket.

use super::{KeyCall, KeyRequest, Plan, PlannedWrite};
use crate::decision::Verdict;
use crate::request::Request;
use crate::reservation::Id;
use crate::store::{BucketKey, Refused, Store};
use crate::throttle::{Bucket, BucketEdit, Rate};
use crate::window::WindowCount;

/// A request on a bucket.
pub struct BucketCall<'r, S: Store> {
    request: &'r Request,
    key: S::Bucket,
    bucket: Bucket<'r>,
}

impl<'r, S: Store> BucketCall<'r, S> {
    /// A request on a key that is yet to be read. It is made as the [`KeyRequest`] that it stays, and never moved.
    #[inline]
    pub(super) fn unread(store: S, request: &'r Request, rate: &'r Rate) -> KeyRequest<'r, S> {
        let (key, bucket) = (store.bucket(), Bucket::read(rate, None, store.now_us()));
        KeyRequest::Bucket(BucketCall { request, key, bucket })
    }

    /// Writes what was planned.
    pub(super) fn write(&mut self, edit: BucketEdit) {
        self.key.write(edit);
    }
}

impl<'r, S: Store> KeyCall<'r, S> for BucketCall<'r, S> {
    fn request(&self) -> &'r Request {
        self.request
    }

    fn judge(&mut self, barred: bool) -> Result<Verdict, S::Error> {
        Refused::check_clock(self.bucket.now_us())?;
        if let Some(stored) = self.key.read()? {
            self.bucket.set(stored);
        }
        Ok(self.bucket.judge(&self.request.ask, barred)?)
    }

    fn check_room(&self, _verdict: Verdict) -> Result<(), Refused> {
        Ok(())
    }

    /// Nothing is held in a bucket, and a ban is part of its verdict: so it is the verdict of a call that nobody bars.
    fn earliest_grant_us(&mut self) -> Result<Option<u64>, S::Error> {
        let now_us = self.bucket.now_us();
        Ok(match self.bucket.judge(&self.request.ask, false)? {
            Verdict::Allowed { .. } => Some(now_us),
            Verdict::Denied { wait_us, .. } => Some(now_us.saturating_add(wait_us)),
            Verdict::Never => None,
        })
    }

    fn running(&mut self) -> Option<usize> {
        None
    }

    fn count(&self) -> Option<&WindowCount> {
        None
    }

    fn counts_denial(&self) -> bool {
        false
    }

    fn look<'c>(&'c mut self, verdict: Verdict) -> Plan<'c, 'r, S> {
        Plan::nothing(self.bucket.look(verdict))
    }

    fn grant<'c>(
        &'c mut self,
        verdict: Verdict,
        _new_id: impl FnOnce() -> Id,
    ) -> Result<Plan<'c, 'r, S>, S::Error> {
        let (decision, edit) = self.bucket.grant(&self.request.ask, verdict);
        Ok(Plan { decision, write: PlannedWrite::Bucket(self, edit) })
    }

    fn deny<'c>(
        &'c mut self,
        verdict: Verdict,
        ban_ms: Option<u64>,
    ) -> Result<Plan<'c, 'r, S>, S::Error> {
        // One that takes nothing is denied only where another limit of its call denies.
        if !self.request.takes() {
            return Ok(self.look(verdict));
        }
        let (decision, edit) = match ban_ms {
            None => self.bucket.deny(verdict),
            Some(ms) => self.bucket.deny_and_ban(&self.request.ask, verdict, ms),
        };
        Ok(Plan { decision, write: PlannedWrite::Bucket(self, edit) })
    }

    /// A bucket counts no denials.
    fn count_denial<'c>(
        &'c mut self,
        verdict: Verdict,
        ban_ms: Option<u64>,
    ) -> Result<Plan<'c, 'r, S>, S::Error> {
        self.deny(verdict, ban_ms)
    }
}
