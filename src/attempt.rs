//! The order of work of every call that takes or looks, over one limit or many.
//!
//! ```text
//! open, read and judge all --> plan all --> write all --> observe
//! an error here leaves everything as it is  only here is anything written
//! ```

use crate::error::Error;
use crate::policies::PolicyVerdict;
use crate::redis::random;
use crate::reply::{Reply, ReplyTail};
use crate::state::window::release_untold;
use crate::state::{Intent, KeyContext, ServerKey};
use crate::stats;
use engine::all::{Choices, PartDecision};
use engine::decision::{Ask, Manner, Quantity, Verdict};
use engine::judge::{self, Mode};
use engine::request::{Limit, Request};
use engine::reservation::{end_us, Id};

/// A plan on a key of the server.
type Plan<'p, 'c> = judge::Plan<'p, 'c, ServerKey<'c>>;

/// How an attempt is made.
#[derive(Clone, Copy, Debug)]
pub struct AttemptTerms {
    /// Others wait on the key and came before: nothing is granted.
    pub barred: bool,
    /// What may be written.
    pub mode: Mode,
}

fn intent(mode: Mode) -> Intent {
    match mode {
        Mode::Look => Intent::Read,
        Mode::Try | Mode::Final => Intent::Write,
    }
}

/// How an attempt went.
pub struct AttemptReply {
    /// What the caller is told.
    pub answer: Reply,
    /// When a denied request could be granted if nothing were held and nobody waited, in Unix microseconds; `None`
    /// if never. Only worked out for a call that may wait.
    pub alone_us: Option<u64>,
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

/// One limit of a call over several.
#[derive(Clone, Copy)]
pub struct Part<'c> {
    /// The key.
    pub key_ctx: KeyContext<'c>,
    /// What is asked of it.
    pub request: &'c Request,
    /// It must be allowed, and takes nothing.
    pub check: bool,
    /// It never denies the call.
    pub shadow: bool,
    /// The number of its group: parts of which one has to be allowed have the same.
    pub group: usize,
    /// Others wait on the key and came before: nothing is granted.
    pub barred: bool,
    /// A call waits on the key that will give the same id to its reservation.
    pub id_waits: bool,
}

/// What became of a part.
#[derive(Clone, Copy)]
pub struct PartReply {
    /// What the caller is told of it.
    pub answer: Reply,
    /// Whether it was allowed, before a denial was counted.
    pub allowed: bool,
    /// Whether it was the choice of its group.
    pub choice: bool,
}

impl Part<'_> {
    /// The part as it weighs in the answer of the whole call.
    pub fn share(&self, done: &PartReply) -> PartDecision {
        let quantity = if self.check { 0 } else { self.request.ask.quantity.wanted() };
        let (decision, choice) = (done.answer.decision, done.choice);
        PartDecision { decision, quantity, shadow: self.shadow, group: self.group, choice }
    }
}

fn new_id() -> Id {
    Id::from(&random::id()[..])
}

/// The answer to a request that was planned; with ATMOST on RL.ACQUIRE so many leases ran before it.
fn answer(request: &Request, plan: &Plan, running: Option<usize>) -> Reply {
    Reply::to(request, *plan.decision(), plan.id().copied(), running)
}

/// Writes what was planned.
fn write(plan: Plan) {
    let lapsed = plan.apply();
    if lapsed > 0 {
        stats::LAPSED.add(u64::try_from(lapsed).unwrap_or(0));
    }
}

/// Tries a request on its key. Only what takes is ever barred.
pub fn attempt(
    key_ctx: KeyContext,
    request: &Request,
    terms: AttemptTerms,
) -> Result<AttemptReply, Error> {
    let mut call =
        judge::KeyRequest::new(ServerKey { key_ctx, intent: intent(terms.mode) }, request);
    let mut judged = call.judge(terms.barred)?;
    judged.check_room()?;
    let allowed = judged.verdict().allowed();
    let tries = terms.mode == Mode::Try && !allowed;
    let alone_us = if tries { judged.earliest_grant_us()? } else { None };
    let running = judged.running();
    let may_ban = !terms.barred && !request.shadow;
    let on = judge::Terms { may_ban, ..judge::Terms::of(terms.mode) };
    let plan = judged.plan(on, allowed, new_id)?;
    let answer = answer(request, &plan, running);
    write(plan);
    Ok(AttemptReply { answer, alone_us })
}

/// Tries several requests, each on its key, all or nothing; whether the call is allowed, and what became of each. An error
/// leaves every key as it was.
pub fn attempt_all(parts: &[Part], mode: Mode) -> Result<(bool, Vec<PartReply>), Error> {
    let mut calls = Vec::with_capacity(parts.len());
    for Part { key_ctx, request, .. } in parts {
        calls.push(judge::KeyRequest::new(
            ServerKey { key_ctx: *key_ctx, intent: intent(mode) },
            request,
        ));
    }
    let mut judged = Vec::with_capacity(parts.len());
    let mut choices = Choices::default();
    for (call, part) in calls.iter_mut().zip(parts) {
        let Part { check, shadow, group, barred, id_waits, .. } = *part;
        if id_waits {
            return Err(Error::Duplicate);
        }
        let mut terms = judge::Terms { check, ..judge::Terms::of(mode) };
        if mode != Mode::Look {
            // Counting a denial would take from those who wait. A policy may bring SHADOW beside COUNTDENIED.
            terms.may_count = !barred && !shadow;
            terms.may_ban = terms.may_count;
        }
        let one = call.judge(barred)?;
        let choice = choices.next(group, one.verdict(), shadow);
        if choice {
            one.check_room()?;
        }
        terms.check |= !choice;
        judged.push((one, terms, choice));
    }
    let call_allowed = choices.allowed();
    // Only a group that denies the call closes its keys: one without a choice.
    let groups_with_choice: Vec<usize> = judged
        .iter()
        .zip(parts)
        .filter(|((.., choice), _)| *choice)
        .map(|(_, part)| part.group)
        .collect();
    for ((_, terms, _), part) in judged.iter_mut().zip(parts) {
        terms.may_ban &= !groups_with_choice.contains(&part.group);
    }
    let mut plans = Vec::with_capacity(parts.len());
    let mut done = Vec::with_capacity(parts.len());
    for ((judged, terms, choice), part) in judged.into_iter().zip(parts) {
        let allowed = judged.verdict().allowed();
        let plan = judged.plan(terms, call_allowed, new_id)?;
        done.push(PartReply { answer: answer(part.request, &plan, None), allowed, choice });
        plans.push(plan);
    }
    plans.into_iter().for_each(write);
    Ok((call_allowed, done))
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
