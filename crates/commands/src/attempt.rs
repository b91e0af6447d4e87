//! One attempt of a call, with the reply to its caller.

use crate::error::Error;
use crate::policies::PolicyVerdict;
use crate::reply::{Reply, ReplyTail};
use engine::attempt::{Attempt, AttemptTerms};
use engine::decision::{Ask, Decision, Quantity, TimeUnit, Verdict};
use engine::judge::Mode;
use engine::request::{Limit, Request};
use engine::reservation::{lease_end_us, Id};
use engine::settle::release_ending;
use engine::store::Store;

/// How an attempt went.
pub struct AttemptReply {
    /// What the caller is told.
    pub reply: Reply,
    /// Earliest grant, ignoring reservations and waiters, in Unix microseconds. `None` if it can never be granted, and
    /// unless the mode is [`Mode::Try`].
    pub earliest_grant_us: Option<u64>,
    /// How many reservations were dropped because they were gone.
    pub dropped: usize,
}

impl AttemptReply {
    /// Of an attempt that is yet to be made.
    pub fn untold() -> AttemptReply {
        let reply = Reply {
            decision: Decision::default(),
            unit: TimeUnit::Seconds,
            tail: ReplyTail::Absent,
        };
        AttemptReply { reply, earliest_grant_us: None, dropped: 0 }
    }

    /// Whether the request was granted, or only looked or gave back.
    pub fn allowed(&self) -> bool {
        self.reply.allowed()
    }

    /// Ends the call: a denial under a policy with SHADOW becomes an allowed call. Returns what its policy counts.
    pub fn conclude(&mut self, request: &Request) -> PolicyVerdict {
        let ended = match self.allowed() {
            true => PolicyVerdict::Allowed,
            false if request.shadow => PolicyVerdict::ShadowDenied,
            false => PolicyVerdict::Denied,
        };
        if request.shadow {
            let verdict = &mut self.reply.decision.verdict;
            let go_after_us = match verdict {
                Verdict::Allowed { go_after_us, .. } => *go_after_us,
                Verdict::Denied { .. } | Verdict::Never => 0,
            };
            *verdict = Verdict::Allowed { taken: request.ask.quantity.wanted(), go_after_us };
        }
        ended
    }
}

/// Tries a request on its key, as [`engine::attempt::attempt`] does.
///
/// # Errors
///
/// As there.
#[inline]
pub fn attempt<S: Store<Error: Into<Error>>>(
    store: S,
    request: &Request,
    terms: AttemptTerms,
    new_id: impl FnOnce() -> Id,
) -> Result<AttemptReply, Error> {
    let mut tried = AttemptReply::untold();
    attempt_into(store, request, terms, new_id, &mut tried)?;
    Ok(tried)
}

/// The same, but writes into `tried`, where the reply is needed: returned, it would be copied at each function on its way.
///
/// # Errors
///
/// As there.
#[inline]
pub fn attempt_into<S: Store<Error: Into<Error>>>(
    store: S,
    request: &Request,
    terms: AttemptTerms,
    new_id: impl FnOnce() -> Id,
    tried: &mut AttemptReply,
) -> Result<(), Error> {
    let told = |done: Attempt| {
        tried.reply = Reply::to(request, done.decision, done.id, done.running);
        (tried.earliest_grant_us, tried.dropped) = (done.earliest_grant_us, done.dropped);
    };
    engine::attempt::attempt(store, request, terms, new_id, told).map_err(Into::into)
}

/// Gives back what was granted with `reply`, at `granted_us`, to a client that was gone before it was notified; returns how
/// many reservations were dropped because they were gone.
///
/// # Errors
///
/// The key's own. Nothing changes then.
pub fn give_back<S: Store<Error: Into<Error>>>(
    store: S,
    request: &Request,
    reply: &Reply,
    granted_us: u64,
    new_id: impl FnOnce() -> Id,
) -> Result<usize, Error> {
    match (&request.limit, &reply.tail) {
        (
            Limit::Reserve(_, reserve),
            ReplyTail::Id(Some(id)) | ReplyTail::IdAtMost { id: Some(id), .. },
        ) => {
            let lease_end_us = lease_end_us(granted_us, reserve.lease_ms);
            release_ending(store, id, lease_end_us).map_err(Into::into)?;
            Ok(0)
        }
        (Limit::Reserve(..), _) => Ok(0),
        (Limit::Bucket(_) | Limit::Window(_), _) => {
            let quantity = Quantity::GiveBack(reply.decision.verdict.taken());
            let ask = Ask::of(quantity);
            let terms = AttemptTerms { barred: false, mode: Mode::Final };
            Ok(attempt(store, &Request { ask, ..*request }, terms, new_id)?.dropped)
        }
    }
}
