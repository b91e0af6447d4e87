//! A call on a bucket.

use super::{KeyCall, Plan, PlannedWrite};
use crate::decision::{Decision, Verdict};
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
    /// A request on a key that is yet to be read.
    // Inlined, so that it is made in its place.
    #[inline(always)]
    pub fn new(store: S, request: &'r Request, rate: &'r Rate) -> BucketCall<'r, S> {
        let (key, bucket) = (store.bucket(), Bucket::at(rate, None, store.now_us()));
        BucketCall { request, key, bucket }
    }

    /// A plan to tell this decision and make this edit.
    #[inline]
    fn plan(&mut self, (decision, edit): (Decision, BucketEdit)) -> Plan<BucketWrite<'_, S>> {
        Plan { decision, write: Some(BucketWrite { key: &mut self.key, edit }) }
    }
}

/// What is to be written to a bucket.
pub struct BucketWrite<'c, S: Store> {
    key: &'c mut S::Bucket,
    edit: BucketEdit,
}

impl<S: Store> PlannedWrite for BucketWrite<'_, S> {
    /// A bucket makes no reservations.
    fn id(&self) -> Option<&Id> {
        None
    }

    fn count(&self) -> Option<&WindowCount> {
        None
    }

    #[inline]
    fn apply(self) -> usize {
        self.key.write(self.edit);
        0
    }
}

impl<'r, S: Store> KeyCall<'r> for BucketCall<'r, S> {
    type Error = S::Error;
    type Write<'c>
        = BucketWrite<'c, S>
    where
        Self: 'c;

    fn request(&self) -> &'r Request {
        self.request
    }

    #[inline]
    fn read(&mut self, barred: bool) -> Result<Verdict, S::Error> {
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

    fn look(&self, verdict: Verdict) -> Decision {
        self.bucket.look(verdict)
    }

    fn grant<'c>(
        &'c mut self,
        verdict: Verdict,
        _new_id: impl FnOnce() -> Id,
    ) -> Result<Plan<Self::Write<'c>>, S::Error> {
        let granted = self.bucket.grant(&self.request.ask, verdict);
        Ok(self.plan(granted))
    }

    fn deny<'c>(
        &'c mut self,
        verdict: Verdict,
        ban_ms: Option<u64>,
    ) -> Result<Plan<Self::Write<'c>>, S::Error> {
        // One that takes nothing is denied only where another limit of its call denies.
        if !self.request.takes() {
            return Ok(Plan::nothing(self.look(verdict)));
        }
        let denied = match ban_ms {
            None => self.bucket.deny(verdict),
            Some(ms) => self.bucket.deny_and_ban(&self.request.ask, verdict, ms),
        };
        Ok(self.plan(denied))
    }

    /// A bucket counts no denials.
    fn count_denial<'c>(
        &'c mut self,
        verdict: Verdict,
        ban_ms: Option<u64>,
    ) -> Result<Plan<Self::Write<'c>>, S::Error> {
        self.deny(verdict, ban_ms)
    }
}
