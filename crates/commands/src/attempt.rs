//! One attempt of a call, with the answer that its caller is told.

use crate::error::Error;
use crate::policies::PolicyVerdict;
use crate::reply::Reply;
use engine::attempt::{self as work, AttemptTerms};
use engine::decision::Verdict;
use engine::request::Request;
use engine::reservation::Id;
use engine::store::Store;

/// How an attempt went.
pub struct AttemptReply {
    /// What the caller is told.
    pub answer: Reply,
    /// When a denied request could be granted if nothing were held and nobody waited, in Unix microseconds; `None`
    /// if never. Only worked out for a call that may wait.
    pub alone_us: Option<u64>,
    /// How many lapsed reservations were dropped.
    pub lapsed: usize,
}

impl AttemptReply {
    /// Whether the request was granted, or only looked or gave back.
    pub fn allowed(&self) -> bool {
        self.answer.allowed()
    }

    /// How it ended, if that is the end of it. Under a policy with SHADOW nobody is told of a denial.
    pub fn end(&mut self, request: &Request) -> PolicyVerdict {
        let ended = match self.allowed() {
            true => PolicyVerdict::Allowed,
            false if request.shadow => PolicyVerdict::ShadowDenied,
            false => PolicyVerdict::Denied,
        };
        if request.shadow {
            let verdict = &mut self.answer.decision.verdict;
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
    let done = work::attempt(store, request, terms, new_id).map_err(Into::into)?;
    let answer = Reply::to(request, done.decision, done.id, done.running);
    Ok(AttemptReply { answer, alone_us: done.alone_us, lapsed: done.lapsed })
}
