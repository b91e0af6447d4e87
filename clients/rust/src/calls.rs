//! The commands of each call, and the meaning of their replies. Does no I/O.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::ToRedisArgs;

use crate::clause::{used, write_flag, write_length, Clause, Options};
use crate::limit::AnyLimit;
use crate::period::whole_ms;
use crate::reply::Id;
use crate::transport::{Command, ErrorReply, Value};
use crate::{AllReply, Error, Reply};

/// The longest name of a caller in a line, in bytes.
const MAX_NAME: usize = 64;
/// The largest weight of a caller in a line.
const MAX_WEIGHT: u64 = 1000;

/// The commands of a call, and what the core has to know to send them.
#[derive(Clone, Debug, Default)]
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
    /// The limits that the call takes from, which give it back if its future is dropped.
    pub undo: Option<Arc<Groups>>,
}

impl Request {
    pub fn new(commands: Vec<Command>, key_at: Option<usize>) -> Request {
        Request { commands, key_at, ..Request::default() }
    }

    /// Returns the key that says which node of a cluster the call is for.
    pub fn key(&self) -> Option<&[u8]> {
        self.commands.first()?.word(self.key_at?)
    }

    /// Returns the request that gives back what the call took. `reply` is `None` if it was lost: then only what has an id
    /// that the limiter made is released.
    pub fn undo_request(&self, reply: Option<&Value>) -> Option<Request> {
        let groups = self.undo.as_ref()?;
        let commands = match reply {
            Some(value) => groups.give_back(&groups.read(std::slice::from_ref(value), true).ok()?),
            None => groups.release_made(),
        };
        (!commands.is_empty()).then(|| Request::new(commands, Some(1)))
    }
}

/// Returns a command that takes from a limit, without a ban.
fn on_limit(
    key: &[u8],
    limit: &AnyLimit,
    quantity: impl ToRedisArgs,
    options: &Options,
) -> Command {
    let mut command = Command::on(limit.taking_command(), key);
    limit.write(&mut command, quantity, options, false);
    command.arg(b"MS");
    command
}

/// Returns the command that gives back a quantity; `None` if it is 0.
pub(crate) fn give_back(key: &[u8], limit: &AnyLimit, quantity: u64) -> Option<Command> {
    let given_back = i128::from(quantity).saturating_neg();
    (quantity > 0).then(|| on_limit(key, limit, given_back, &Options::default()))
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

/// What a call asks of its limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verb {
    Take,
    /// Takes nothing.
    Look,
    Reserve,
    /// Counts what was used, even if there is not enough.
    Charge,
    /// Closes a key for as long as the ban of its limit says.
    Close,
}

/// The options of a call as a whole, which are its last.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallOptions {
    /// The key of the hash of limits.
    pub limits: Option<Box<[u8]>>,
    /// Zero waits without limit.
    pub block: Option<Duration>,
    pub by: Option<Box<[u8]>>,
    pub weight: Option<u64>,
}

impl CallOptions {
    /// Refuses a name or a weight that no server accepts.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`].
    pub fn check(&self) -> Result<(), Error> {
        match (&self.by, self.weight) {
            (Some(_), _) if self.block.is_none() => Err(Error::needs("by", "block")),
            (None, Some(_)) => Err(Error::needs("weight", "by")),
            (Some(who), _) if who.is_empty() || who.len() > MAX_NAME => {
                Err(Error::name_length(MAX_NAME, who.len()))
            }
            (_, Some(weight)) if !(1..=MAX_WEIGHT).contains(&weight) => {
                Err(Error::weight(MAX_WEIGHT, weight))
            }
            _ => Ok(()),
        }
    }

    /// Adds the options to a command.
    pub fn write(&self, command: &mut Command) {
        write_flag(command, b"LIMITS", self.limits.is_some());
        write_length(command, b"BLOCK", self.block);
        if let Some(who) = &self.by {
            command.arg(b"BY").arg(who);
        }
        if let Some(weight) = self.weight {
            command.arg(b"WEIGHT").number(weight);
        }
    }
}

/// The limits of a call, checked, and what it asks of them. A clause and its alternatives are a group.
#[derive(Clone, Debug)]
pub(crate) struct Groups {
    groups: Vec<Clause>,
    options: CallOptions,
    verb: Verb,
    /// True if it asks one limit by a command of its own, and not by RL.ALL.
    is_single: bool,
}

impl Groups {
    /// Checks the clauses. Each reservation gets an id, so that it can be given back if its reply is lost.
    pub fn new(
        mut groups: Vec<Clause>,
        options: CallOptions,
        verb: Verb,
        is_single: bool,
    ) -> Result<Groups, Error> {
        let prepare = |clause: &mut Clause| {
            // The answer to a single limit does not name it.
            if verb == Verb::Reserve || !is_single {
                clause.set_default_name();
            }
            let reserves = verb == Verb::Reserve && clause.reserves();
            if reserves && clause.options.id.is_none() {
                clause.options.id = Some(Id::random()?);
                clause.options.has_made_id = true;
            }
            Ok::<_, Error>(())
        };
        for clause in &mut groups {
            prepare(clause)?;
            clause.alternatives.iter_mut().try_for_each(prepare)?;
        }
        let groups = Groups { groups, options, verb, is_single };
        groups.check()?;
        Ok(groups)
    }

    fn check(&self) -> Result<(), Error> {
        let bans = self.verb != Verb::Close && (self.verb != Verb::Look || !self.is_single);
        for (at, clause) in self.clauses().enumerate() {
            clause.validate(bans)?;
            let name = clause.shown_name();
            if self.clauses().take(at).any(|other| other.shown_name() == name) {
                return Err(Error::same_name(name));
            }
        }
        self.options.check()?;
        if self.options.block.is_some() {
            self.check_wait()?;
        }
        let reserving = self.clauses().find(|clause| clause.reserves());
        match (self.verb, reserving) {
            _ if self.groups.is_empty() => Err(Error::no_clauses()),
            (Verb::Take, Some(clause)) => Err(Error::must_be_acquired(clause.shown_name())),
            (Verb::Reserve, None) if !self.is_single => Err(Error::reserves_nothing()),
            (Verb::Charge, _) if self.options.limits.is_some() => {
                Err(Error::excluded("limits", "force"))
            }
            (Verb::Charge, _) => self.check_plain(),
            _ => Ok(()),
        }
    }

    /// Refuses what does not wait.
    fn check_wait(&self) -> Result<(), Error> {
        let excluded = used(&[
            ("look", self.verb == Verb::Look),
            ("force", self.verb == Verb::Charge),
            ("or_else", self.groups.iter().any(|clause| !clause.alternatives.is_empty())),
            ("a ban", self.clauses().any(|clause| clause.limit.ban.is_some())),
        ]);
        excluded.map_or(Ok(()), |other| Err(Error::excluded("block", other)))
    }

    /// Refuses limits with options or groups, which `force` does not take.
    fn check_plain(&self) -> Result<(), Error> {
        let is_plain = |clause: &Clause| {
            let is_group = !clause.alternatives.is_empty();
            let has_ban = clause.limit.ban.is_some();
            !is_group && !clause.acquires && !has_ban && clause.options == Options::default()
        };
        let other = self.groups.iter().find(|clause| !is_plain(clause));
        other.map_or(Ok(()), |clause| Err(Error::force_of_options(clause.shown_name())))
    }

    pub fn clauses(&self) -> impl Iterator<Item = &Clause> {
        self.groups.iter().flat_map(Clause::with_alternatives)
    }

    fn has_policy(&self) -> bool {
        self.clauses().any(|clause| clause.limit.is_policy())
    }

    /// Returns the only limit, if the call asks it by a command of its own.
    fn single(&self) -> Option<&Clause> {
        self.clauses().next().filter(|_| self.is_single)
    }

    /// Returns the request of the call. A reservation has an id before it is sent, so that one that the limiter made can
    /// be released if the reply is lost.
    pub fn request(self: &Arc<Groups>) -> Request {
        let takes = matches!(self.verb, Verb::Take | Verb::Reserve);
        let (commands, key_at) = match self.single() {
            Some(clause) => (vec![self.single_command(clause)], 1),
            // One for each limit, as one step.
            None if self.verb == Verb::Charge => (self.clauses().map(charge).collect(), 1),
            None => (vec![self.all_command(takes)], 2),
        };
        Request {
            block: self.options.block,
            has_policy: self.has_policy(),
            is_decision: true,
            undo: takes.then(|| Arc::clone(self)),
            ..Request::new(commands, Some(key_at))
        }
    }

    fn single_command(&self, clause: &Clause) -> Command {
        let Clause { key, limit, acquires, quantity, options, .. } = clause;
        let name = if *acquires { "RL.ACQUIRE" } else { limit.taking_command() };
        let name = match self.verb {
            Verb::Look => &format!("{name}_RO"),
            _ => name,
        };
        let mut command = Command::on(name, key);
        let bans = matches!(self.verb, Verb::Take | Verb::Close);
        limit.write(&mut command, *quantity, options, bans);
        self.options.write(&mut command);
        command.arg(b"MS");
        command
    }

    /// Returns RL.ALL, or RL.ALL_RO if it takes nothing.
    fn all_command(&self, takes: bool) -> Command {
        let mut command = Command::new(if takes { "RL.ALL" } else { "RL.ALL_RO" });
        let keys =
            || self.clauses().map(|clause| &*clause.key).chain(self.options.limits.as_deref());
        command.number(keys().count());
        for key in keys() {
            command.arg(key);
        }
        for group in &self.groups {
            for (at, clause) in group.with_alternatives().enumerate() {
                if at > 0 {
                    command.arg(b"ELSE");
                }
                clause.write(&mut command);
            }
        }
        self.options.write(&mut command);
        command.arg(b"MS");
        command
    }

    /// Reads the replies to the request. `reachable` is false if another limiter decided in the place of a server.
    pub fn read(&self, values: &[Value], reachable: bool) -> Result<AllReply, Error> {
        let first = values.first().unwrap_or(&Value::Nil);
        if let Some(clause) = self.single() {
            let reply = Reply::read_with(first, self.verb == Verb::Reserve, &clause.options)?;
            let mut reply = AllReply::from(Reply { reachable, ..reply });
            if self.verb == Verb::Reserve {
                reply.asked = self.asked();
            }
            return Ok(reply);
        }
        let mut reply = match self.verb {
            Verb::Charge => self.read_charge(values)?,
            _ => AllReply::read(first)?,
        };
        self.add_names(&mut reply);
        reply.reply.reachable = reachable;
        Ok(reply)
    }

    /// Reads the replies to [`charge`].
    fn read_charge(&self, values: &[Value]) -> Result<AllReply, Error> {
        let names = self.clauses().map(|clause| clause.shown_name());
        without_errors(names.zip(values), self.has_policy())?;
        let answers = values.iter().map(Reply::read).collect::<Result<Vec<_>, _>>()?;
        // The limit with the least left, relative to its quantity, decides, as for RL.ALL. Quantities of 0 come last.
        let left = |(clause, answer): (&Clause, &Reply)| {
            answer.remaining.checked_div(clause.quantity_taken()).unwrap_or(u64::MAX)
        };
        let lefts = self.clauses().zip(&answers).map(left).enumerate();
        let at = lefts.min_by_key(|(_, left)| *left).map_or(0, |(at, _)| at);
        let reply = answers.get(at).cloned().unwrap_or_else(|| Reply::unreached(true));
        Ok(AllReply::new(reply, at.saturating_add(1), answers))
    }

    /// Returns the answer while no server answers. What a server would never deny is not denied here either.
    pub fn unreached(&self, allow: bool) -> AllReply {
        match self.single() {
            Some(Clause { quantity, options, .. }) => {
                AllReply::from(unreached(allow, *quantity, options))
            }
            None => AllReply::unreached(allow || self.verb == Verb::Charge),
        }
    }

    /// Returns each group and its choice with the answer to it: the first clause that is allowed or in shadow. It takes if
    /// the call is allowed. A group without a choice denies the call.
    fn choices<'a>(
        &'a self,
        reply: &'a AllReply,
    ) -> impl Iterator<Item = (&'a Clause, Option<(&'a Clause, &'a Reply)>)> {
        let mut answers = reply.answers.iter();
        self.groups.iter().map(move |group| {
            let mut answered = group.with_alternatives().zip(answers.by_ref());
            let choice =
                answered.find(|(clause, answer)| answer.is_allowed() || clause.options.shadow);
            answered.for_each(drop);
            (group, choice)
        })
    }

    /// Returns the limits, each with the name that the caller gave it.
    fn asked(&self) -> Vec<(Option<String>, AnyLimit)> {
        self.clauses().map(|clause| (clause.name.clone(), clause.limit.clone())).collect()
    }

    /// Adds the names of the limits, of those that took something, and of those that denied the call. A choice took nothing
    /// if it only checks, or is in shadow and would have been denied.
    fn add_names(&self, reply: &mut AllReply) {
        let name = |clause: &Clause| clause.shown_name().to_owned();
        let (mut paid, mut denied) = (Vec::new(), Vec::new());
        for (group, choice) in self.choices(reply) {
            let Some((clause, answer)) = choice else {
                denied.extend(group.with_alternatives().map(name));
                continue;
            };
            let is_missing = self.verb != Verb::Look && clause.reserves() && answer.id.is_none();
            if answer.is_allowed() && clause.quantity_taken() > 0 && !is_missing {
                paid.push(name(clause));
            }
        }
        match reply.is_allowed() {
            true => reply.paid = paid,
            false => reply.denied = denied,
        }
        reply.names = self.clauses().map(name).collect();
        reply.asked = self.asked();
    }

    /// Returns the commands that give back what an allowed call took.
    fn give_back(&self, reply: &AllReply) -> Vec<Command> {
        if !reply.is_allowed() {
            return Vec::new();
        }
        let has_limits = self.options.limits.is_some();
        let choices = self.choices(reply).filter_map(|(_, choice)| choice);
        choices.filter_map(|(clause, answer)| clause.give_back(answer, has_limits)).collect()
    }

    /// Returns the commands that release all that may have been reserved with ids that the limiter made. Another holder may
    /// have an id that the caller chose.
    fn release_made(&self) -> Vec<Command> {
        let release = |clause: &Clause| {
            let id = clause.options.id.as_ref().filter(|_| clause.options.has_made_id)?;
            Some(release(&clause.key, [id]))
        };
        self.clauses().filter_map(release).collect()
    }
}

/// Returns the command that counts a quantity even if there is not enough.
fn charge(Clause { key, limit, quantity, .. }: &Clause) -> Command {
    let options = Options { force: true, ..Options::default() };
    on_limit(key, limit, *quantity, &options)
}

/// Returns the answer to a call of a single limit while no server answers.
pub(crate) fn unreached(allow: bool, quantity: i64, options: &Options) -> Reply {
    let is_allowed = allow || options.force || quantity <= 0;
    let granted = if is_allowed { u64::try_from(quantity).unwrap_or(0) } else { 0 };
    Reply {
        granted: options.at_most.then_some(granted),
        wait: options.ahead.filter(|_| is_allowed).map(|_| Duration::ZERO),
        ..Reply::unreached(is_allowed)
    }
}

/// Returns the first error reply among the answers, if there is one. Its text names the limits of all of them.
fn without_errors<'a>(
    answers: impl Iterator<Item = (&'a str, &'a Value)>,
    has_policy: bool,
) -> Result<(), Error> {
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
    first.map_or(Ok(()), |error| Err(Error::from_reply(error, has_policy)))
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
        without_errors(outcomes.iter().copied(), false)?;
        let is_lapsed = |(_, outcome): &&(&str, &Value)| **outcome != Value::Integer(1);
        Ok(outcomes.iter().filter(is_lapsed).map(|(name, _)| (*name).to_owned()).collect())
    }
}
