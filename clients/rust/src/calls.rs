//! The commands of each call, and the meaning of their replies. Does no I/O.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::clause::{Clause, Groups};
use crate::limit::AnyLimit;
use crate::options::Options;
use crate::period::whole_ms;
use crate::reply::Id;
use crate::transport::{Command, ErrorReply, Value};
use crate::{AllReply, Error, Limiter, Reply};

/// The commands of a call, and what the core has to know to send them.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// One command, or several that are sent as one transaction. Their keys lie in one slot.
    pub commands: Vec<Command>,
    /// The index of the key in the first command; `None` for a command that every node of a cluster answers for itself.
    pub key_at: Option<usize>,
    /// The longest that the server lets the call wait; zero waits without limit.
    pub block: Option<Duration>,
    /// The deadline if the limiter has none.
    pub within: Option<Duration>,
    /// True if a limit is a policy.
    pub has_policy: bool,
    /// True if `unreachable` can answer the call.
    pub is_decision: bool,
    /// The way to give back what the call took if its future is dropped.
    pub undo: Undo,
}

/// The way to give back what a call took.
#[derive(Clone, Debug)]
pub(crate) enum Undo {
    /// It takes nothing, or counts what was used.
    Nothing,
    /// It takes this quantity, or with `is_at_most` the one that the reply says was granted.
    Take { limit: Box<AnyLimit>, quantity: u64, is_at_most: bool },
    /// It reserves with this id, which the limiter made if `is_made` is true. With an id of its own, the caller may try
    /// again, and another holder may have the same.
    Release { id: Id, is_made: bool },
    /// It takes of several limits.
    All(Arc<Groups>),
}

impl Request {
    pub fn new(commands: Vec<Command>, key_at: Option<usize>) -> Request {
        Request {
            commands,
            key_at,
            block: None,
            within: None,
            has_policy: false,
            is_decision: false,
            undo: Undo::Nothing,
        }
    }

    /// Returns the key that says which node of a cluster the call is for.
    pub fn key(&self) -> Option<&[u8]> {
        self.commands.first()?.word(self.key_at?)
    }

    /// Returns the request that gives back what the call took. `reply` is `None` if it was lost: then only what has an id
    /// that the limiter made is released.
    pub fn undo_request(&self, reply: Option<&Value>) -> Option<Request> {
        let commands = match (&self.undo, reply) {
            (Undo::Nothing, _) | (Undo::Take { .. }, None) => return None,
            (Undo::Take { limit, quantity, is_at_most }, Some(value)) => {
                Reply::read(value).ok().filter(Reply::is_allowed)?;
                let granted = match is_at_most {
                    true => Reply::read_granted(value).ok()?.granted.unwrap_or_default(),
                    false => *quantity,
                };
                vec![give_back(self.key()?, limit, granted)?]
            }
            (Undo::Release { id, is_made }, reply) => {
                let reply = reply.and_then(|value| Reply::read_id(value).ok());
                let is_reserved = reply.map_or(*is_made, |reply| reply.id.is_some());
                if !is_reserved {
                    return None;
                }
                vec![release(self.key()?, [id])]
            }
            (Undo::All(groups), Some(value)) => groups.give_back(&AllReply::read(value).ok()?),
            (Undo::All(groups), None) => groups.release_made(),
        };
        (!commands.is_empty()).then(|| Request::new(commands, Some(1)))
    }
}

/// Returns a command on a limit; with the limit's ban only if `bans` is true.
fn on_limit(
    name: &str,
    key: &[u8],
    limit: &AnyLimit,
    quantity: impl Into<i128>,
    options: &Options,
    bans: bool,
) -> Command {
    let mut command = Command::on(name, key);
    limit.write(&mut command, quantity, options, bans);
    command.arg(b"MS");
    command
}

/// Returns the command that gives back a quantity; `None` if it is 0.
pub(crate) fn give_back(key: &[u8], limit: &AnyLimit, quantity: u64) -> Option<Command> {
    let (name, given_back) = (limit.taking_command(), i128::from(quantity).saturating_neg());
    (quantity > 0).then(|| on_limit(name, key, limit, given_back, &Options::default(), false))
}

/// Returns the command that counts a quantity even if there is not enough.
pub(crate) fn force(key: &[u8], limit: &AnyLimit, quantity: u64) -> Command {
    let options = Options { force: true, ..Options::default() };
    on_limit(limit.taking_command(), key, limit, quantity, &options, false)
}

/// What a call asks of a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum CallKind {
    Take,
    Look,
    /// Looks as a reservation would.
    LookToReserve,
    Reserve,
}

/// A call of one limit.
#[derive(Clone, Debug)]
pub(crate) struct LimitCall<'a> {
    pub limiter: &'a Limiter,
    pub kind: CallKind,
    pub key: &'a [u8],
    pub limit: AnyLimit,
    pub quantity: i64,
    pub options: Options,
}

impl LimitCall<'_> {
    /// Refuses a call that no server would answer.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`].
    pub fn check(&self) -> Result<(), Error> {
        self.limit.check()?;
        let looks = matches!(self.kind, CallKind::Look | CallKind::LookToReserve);
        let ban = self.limit.ban_length().filter(|_| !looks);
        self.options.check(ban, self.quantity, self.kind == CallKind::Reserve)
    }

    /// Returns the request of the call. A reservation has an id before it is sent, so that one that the limiter made can
    /// be released if the reply is lost.
    pub fn request(&self) -> Request {
        let LimitCall { kind, key, limit, quantity, options, .. } = self;
        let takes = *kind == CallKind::Take;
        let name = match (kind, limit) {
            (CallKind::Take, _) => limit.taking_command(),
            (CallKind::Look, AnyLimit::Rate(_)) => "RL.THROTTLE_RO",
            (CallKind::Look, AnyLimit::Window(_)) => "RL.WINDOW_RO",
            (CallKind::Look | CallKind::LookToReserve, _) => "RL.ACQUIRE_RO",
            (CallKind::Reserve, _) => "RL.ACQUIRE",
        };
        let undo = match (&options.id, u64::try_from(*quantity)) {
            (_, Err(_) | Ok(0)) => Undo::Nothing,
            (Some(id), _) => Undo::Release { id: id.clone(), is_made: options.has_made_id },
            // FORCE counts what was used, and that stays. After AHEAD, later bookings would not move up, and the next one
            // would get the same turn as one of them.
            (None, Ok(quantity)) if takes && !options.force && options.ahead.is_none() => {
                Undo::Take { limit: Box::new(limit.clone()), quantity, is_at_most: options.at_most }
            }
            _ => Undo::Nothing,
        };
        Request {
            block: options.block,
            has_policy: limit.is_policy(),
            is_decision: true,
            undo,
            ..Request::new(vec![on_limit(name, key, limit, *quantity, options, takes)], Some(1))
        }
    }
}

/// Reads the reply to a [`LimitCall`].
pub(crate) fn read(value: &Value, kind: CallKind, options: &Options) -> Result<Reply, Error> {
    match (kind, options) {
        (CallKind::Reserve, Options { at_most: true, .. }) => Reply::read_id_and_granted(value),
        (CallKind::Reserve, _) => Reply::read_id(value),
        (_, Options { at_most: true, .. }) => Reply::read_granted(value),
        (_, Options { ahead: Some(_), .. }) => Reply::read_wait(value),
        _ => Reply::read(value),
    }
}

/// Returns the answer to a [`LimitCall`] while no server answers.
pub(crate) fn unreached(allow: bool, quantity: i64, options: &Options) -> Reply {
    // What a server would never deny is not denied here either.
    let is_allowed = allow || options.force || quantity <= 0;
    let granted = if is_allowed { u64::try_from(quantity).unwrap_or(0) } else { 0 };
    Reply {
        granted: options.at_most.then_some(granted),
        wait: options.ahead.filter(|_| is_allowed).map(|_| Duration::ZERO),
        ..Reply::unreached(is_allowed)
    }
}

/// Returns RL.APPLY.
pub(crate) fn apply(key: &[u8], id: &Id, quantity: Option<u64>) -> Command {
    let mut command = Command::on("RL.APPLY", key);
    command.arg(id.as_ref());
    if let Some(quantity) = quantity {
        command.number(quantity);
    }
    command
}

/// Returns RL.RELEASE.
pub(crate) fn release<'a>(key: &[u8], ids: impl IntoIterator<Item = &'a Id>) -> Command {
    let mut command = Command::on("RL.RELEASE", key);
    for id in ids {
        command.arg(id.as_ref());
    }
    command
}

/// Returns RL.RENEW.
pub(crate) fn renew(key: &[u8], id: &Id, lease: Option<Duration>) -> Command {
    let mut command = Command::on("RL.RENEW", key);
    command.arg(id.as_ref());
    if let Some(lease) = lease {
        command.arg(b"LEASE").number(whole_ms(lease));
    }
    command
}

/// Returns the request of RL.ALL, or of RL.ALL_RO if it takes nothing.
pub(crate) fn all(groups: &Arc<Groups>, takes: bool) -> Request {
    let mut command = Command::new(if takes { "RL.ALL" } else { "RL.ALL_RO" });
    command.number(u64::try_from(groups.clauses().count()).unwrap_or(u64::MAX));
    for clause in groups.clauses() {
        command.arg(&clause.key);
    }
    for group in groups.iter() {
        for (at, clause) in group.iter().enumerate() {
            if at > 0 {
                command.arg(b"ELSE");
            }
            clause.write(&mut command);
        }
    }
    command.arg(b"MS");
    Request {
        has_policy: groups.clauses().any(|clause| clause.limit.is_policy()),
        is_decision: true,
        undo: if takes { Undo::All(Arc::clone(groups)) } else { Undo::Nothing },
        ..Request::new(vec![command], Some(2))
    }
}

/// Returns the request of RL.THROTTLE and RL.WINDOW with FORCE, one for each limit, as one step.
pub(crate) fn charge(groups: &Groups) -> Request {
    let command = |clause: &Clause| force(&clause.key, &clause.limit, clause.quantity_taken());
    Request {
        has_policy: groups.clauses().any(|clause| clause.limit.is_policy()),
        is_decision: true,
        ..Request::new(groups.clauses().map(command).collect(), Some(1))
    }
}

/// Reads the replies to [`charge`], which have no names.
pub(crate) fn read_charge(values: &[Value], groups: &Groups) -> Result<AllReply, Error> {
    let names = groups.clauses().map(|clause| clause.shown_name());
    without_errors(names.zip(values))?;
    let answers = values.iter().map(Reply::read).collect::<Result<Vec<_>, _>>()?;
    // The limit with the least left, relative to its quantity, decides, as for RL.ALL. Quantities of 0 come last.
    let left = |(clause, answer): (&Clause, &Reply)| {
        answer.remaining.checked_div(clause.quantity_taken()).unwrap_or(u64::MAX)
    };
    let deciding =
        groups.clauses().zip(&answers).map(left).enumerate().min_by_key(|(_, left)| *left);
    let at = deciding.map_or(0, |(at, _)| at);
    let reply = answers.get(at).cloned().unwrap_or_else(|| Reply::unreached(true));
    Ok(AllReply::new(reply, at.saturating_add(1), answers))
}

/// Returns the first error reply among the answers, if there is one. Its text names the limits of all of them.
fn without_errors<'a>(answers: impl Iterator<Item = (&'a str, &'a Value)>) -> Result<(), Error> {
    let mut first: Option<ErrorReply> = None;
    for (name, answer) in answers {
        let Value::Error(error) = answer else { continue };
        match &mut first {
            None => {
                let message = format!("{} (limit {name})", error.message);
                first = Some(ErrorReply { code: error.code.clone(), message });
            }
            Some(first) => first.message.push_str(&format!("; {error} (limit {name})")),
        }
    }
    first.map_or(Ok(()), |error| Err(Error::Server(error)))
}

/// A reservation of one limit.
#[derive(Clone, Debug)]
pub(crate) struct Reserved {
    pub clause: Clause,
    pub id: Id,
}

/// A way to settle reservations.
#[derive(Clone, Debug)]
pub(crate) enum Settle {
    /// Counts them, or the true costs of those that are named.
    Apply(HashMap<String, u64>),
    Release,
    Renew(Option<Duration>),
}

impl Settle {
    fn commands(&self, Reserved { clause, id }: &Reserved) -> Vec<Command> {
        let released = release(&clause.key, [id]);
        match self {
            Settle::Apply(costs) => {
                let cost = costs.get(clause.shown_name()).copied();
                let applied = apply(&clause.key, id, cost);
                match cost {
                    None if clause.limit.is_semaphore() => vec![released],
                    // Only the server knows what a policy is. Where it is a window, nothing is left to release.
                    None if clause.limit.is_policy() => vec![applied, released],
                    _ => vec![applied],
                }
            }
            Settle::Release => vec![released],
            Settle::Renew(lease) => vec![renew(&clause.key, id, *lease)],
        }
    }

    /// Returns the commands for all reservations, as one step.
    pub fn request(&self, reserved: &[Reserved]) -> Request {
        Request::new(reserved.iter().flat_map(|each| self.commands(each)).collect(), Some(1))
    }

    /// Reads the replies. Returns the names of the limits whose reservation is not held.
    pub fn read(&self, values: &[Value], reserved: &[Reserved]) -> Result<Vec<String>, Error> {
        let mut rest = values.iter();
        let mut outcomes = Vec::with_capacity(reserved.len());
        for each in reserved {
            let replies: Vec<&Value> = rest.by_ref().take(self.commands(each).len()).collect();
            // A policy that turned out to be a semaphore is not applied, but released by the command that follows.
            let outcome = replies.iter().rev().find(|value| ***value == Value::Integer(1));
            let Some(outcome) = outcome.or(replies.first()) else {
                return Err(Error::unexpected("more replies", &values));
            };
            outcomes.push((each.clause.shown_name(), *outcome));
        }
        without_errors(outcomes.iter().copied())?;
        let is_lapsed = |(_, outcome): &&(&str, &Value)| **outcome != Value::Integer(1);
        Ok(outcomes.iter().filter(is_lapsed).map(|(name, _)| (*name).to_owned()).collect())
    }
}
