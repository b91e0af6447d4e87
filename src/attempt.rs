//! Attempts on the server's keys, for calls that wait.

use crate::redis::random;
use crate::state::window::release_untold;
use crate::state::{KeyContext, ServerKey};
use crate::stats;
use commands::attempt::{self as on_store, AttemptReply};
use commands::error::Error;
use commands::reply::{Reply, ReplyTail};
use engine::attempt::AttemptTerms;
use engine::decision::{Ask, Manner, Quantity};
use engine::judge::Mode;
use engine::request::{Limit, Request};
use engine::reservation::{end_us, Id};

/// A new id for a reservation.
pub fn new_id() -> Id {
    Id::from(&random::id()[..])
}

/// Tries a request on its key. Only what takes is ever barred.
pub fn attempt(
    key_ctx: KeyContext,
    request: &Request,
    terms: AttemptTerms,
) -> Result<AttemptReply, Error> {
    let tried = on_store::attempt(ServerKey::in_mode(key_ctx, terms.mode), request, terms, new_id)?;
    stats::count_lapsed(tried.lapsed);
    Ok(tried)
}

/// Gives back what was granted with `answer`, at `granted_us`, to a client that was gone before it was notified.
pub fn give_back(
    key_ctx: KeyContext,
    request: &Request,
    answer: &Reply,
    granted_us: u64,
) -> Result<(), Error> {
    match (&request.limit, &answer.sixth) {
        (
            Limit::Reserve(_, reserve),
            ReplyTail::Id(Some(id)) | ReplyTail::IdOfPart(Some(id), _),
        ) => release_untold(key_ctx, id.as_bytes(), end_us(granted_us, reserve.lease_ms)),
        (Limit::Reserve(..), _) => Ok(()),
        (Limit::Bucket(_) | Limit::Window(_), _) => {
            let quantity = Quantity::GiveBack(answer.decision.verdict.taken());
            let ask = Ask { quantity, leave: 0, manner: Manner::Whole };
            let terms = AttemptTerms { barred: false, mode: Mode::Final };
            attempt(key_ctx, &Request { ask, ..*request }, terms).map(|_| ())
        }
    }
}
