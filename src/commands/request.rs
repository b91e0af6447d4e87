//! What the taking commands ask for, in a form that can wait and be tried again.

use super::{acquire, throttle, window};
use crate::answer::Answer;
use crate::error::Error;
use crate::redis::call::{Call, Context, KeyName};
use crate::redis::clock;

/// A checked call of RL.THROTTLE, RL.WINDOW or RL.ACQUIRE.
#[derive(Clone, Copy)]
pub enum Request {
    /// RL.THROTTLE
    Throttle(throttle::Request),
    /// RL.WINDOW
    Window(window::Request),
    /// RL.ACQUIRE
    Acquire(acquire::Request),
}

/// Where and when something is tried: on which key, and at which time of the wall clock.
#[derive(Clone, Copy)]
pub struct Spot<'c> {
    /// The running command or callback.
    pub ctx: Context<'c>,
    /// The key, in the database that is selected.
    pub name: KeyName<'c>,
    /// Unix microseconds.
    pub now_us: u64,
}

impl<'c> Spot<'c> {
    /// The key of `call`, at the time of the command.
    pub fn of(call: &Call<'c>) -> Result<Spot<'c>, Error> {
        Ok(Spot { ctx: call.context(), name: call.key()?, now_us: clock::command_time_us() })
    }
}

/// How an attempt is made.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Others wait on the key and came before: nothing is granted.
    pub barred: bool,
    /// What may be written.
    pub mode: Mode,
}

/// What an attempt may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A grant; and what heals. A denial is not the last word, or counts for nothing.
    Try,
    /// All that, and a denial with COUNTDENIED.
    Final,
    /// Nothing.
    Look,
}

/// How an attempt went.
pub enum Attempt {
    /// The request was granted, or only looked or gave back.
    Allowed(Answer),
    /// It was not.
    Denied {
        /// What the caller is told.
        answer: Answer,
        /// When the request could be granted if nothing were held and nobody waited, in Unix microseconds; `None`
        /// if never.
        alone_us: Option<u64>,
    },
}

impl Attempt {
    /// What the caller is told if that is the end of it.
    pub fn answer(self) -> Answer {
        match self {
            Attempt::Allowed(answer) | Attempt::Denied { answer, .. } => answer,
        }
    }
}

/// Carries out a call of a looking command: answers what `request` would be told now, and changes nothing.
pub fn look(call: &Call, request: Request) -> Result<(), Error> {
    let terms = Terms { barred: false, mode: Mode::Look };
    call.reply(request.attempt(Spot::of(call)?, terms)?.answer());
    Ok(())
}

impl Request {
    /// Whether a denial is written down.
    pub fn counts_denials(&self) -> bool {
        matches!(self, Request::Window(request) if request.count_denied)
    }

    /// Whether it takes something, so that it has to stand in line and may wait.
    pub fn takes(&self) -> bool {
        match self {
            Request::Throttle(request) => request.quantity > 0,
            Request::Window(request) => request.quantity > 0,
            Request::Acquire(request) => request.quantity > 0,
        }
    }

    /// How much must remain for others: in a line, smaller ones stand before larger ones.
    pub fn leave(&self) -> u64 {
        0
    }

    /// The id that the caller gave to the reservation.
    pub fn id(&self) -> Option<&[u8]> {
        match self {
            Request::Acquire(request) => request.id.as_ref().map(|id| id.as_bytes()),
            Request::Throttle(_) | Request::Window(_) => None,
        }
    }

    /// Tries it. Only what takes is ever barred.
    pub fn attempt(&self, spot: Spot, terms: Terms) -> Result<Attempt, Error> {
        let terms = Terms { barred: terms.barred && self.takes(), ..terms };
        match self {
            Request::Throttle(request) => request.attempt(spot, terms),
            Request::Window(request) => request.attempt(spot, terms),
            Request::Acquire(request) => request.attempt(spot, terms),
        }
    }

    /// Gives back what was granted with `answer`, at `granted_us`, to a client that was gone before it could be
    /// told.
    pub fn give_back(&self, spot: Spot, answer: &Answer, granted_us: u64) -> Result<(), Error> {
        match self {
            Request::Throttle(request) => request.give_back(spot, answer),
            Request::Window(request) => request.give_back(spot, answer, granted_us),
            Request::Acquire(request) => request.give_back(spot, answer, granted_us),
        }
    }
}
