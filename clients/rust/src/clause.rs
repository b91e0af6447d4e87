//! Calls of several limits.

use std::collections::HashSet;
use std::time::Duration;

use crate::calls::{give_back, release, LimitCall};
use crate::limit::{AnyLimit, Reserve, Take};
use crate::options::{option_methods, Options};
use crate::reply::Id;
use crate::transport::Command;
use crate::{AllReply, Error, Reply};

/// One limit of a call that asks several, see [`Limiter::all`](crate::Limiter::all).
///
/// Its name, by default its key, says in replies, errors and costs which limit is meant. Keys of one call lie in one slot of
/// a cluster: give them the same `{tag}`.
#[doc = example!(limiter)]
/// let plan = Window::per("1000/month")?.fixed();
/// let credits = Window::per("500/y")?;
/// let limits = [
///     Clause::take("{u1}:rpm", &Window::per("60/min")?),
///     // The plan is spent first, and the credits only when nothing is left of it.
///     Clause::take("{u1}:plan", &plan).or_else(Clause::take("{u1}:credits", &credits)),
///     Clause::acquire("{u1}:jobs", &Semaphore::new(5)).name("jobs"),
/// ];
/// let reservation = limiter.acquire_all(limits).await?;
/// assert_eq!(reservation.reply().paid, ["{u1}:rpm", "{u1}:plan", "jobs"]);
#[doc = example!(end)]
#[derive(Clone, Debug)]
pub struct Clause {
    pub(crate) key: Vec<u8>,
    name: Option<String>,
    pub(crate) limit: AnyLimit,
    acquires: bool,
    quantity: i64,
    pub(crate) options: Options,
    alternatives: Vec<Clause>,
}

impl Clause {
    pub(crate) fn new(key: &[u8], limit: AnyLimit, acquires: bool) -> Clause {
        Clause {
            key: key.into(),
            name: None,
            limit,
            acquires,
            quantity: 1,
            options: Options::default(),
            alternatives: Vec::new(),
        }
    }

    /// Creates a clause that takes from a rate or a window.
    pub fn take(key: impl AsRef<[u8]>, limit: &impl Take) -> Clause {
        Clause::new(key.as_ref(), limit.to_any(), false)
    }

    /// Creates a clause that reserves in a window or of a semaphore. All reservations of a call are settled as one, see
    /// [`Limiter::acquire_all`](crate::Limiter::acquire_all).
    pub fn acquire(key: impl AsRef<[u8]>, limit: &impl Reserve) -> Clause {
        Clause::new(key.as_ref(), limit.to_any(), true)
    }

    /// Sets the name of the limit; the default is its key.
    pub fn name(mut self, name: impl Into<String>) -> Clause {
        self.name = Some(name.into());
        self
    }

    /// Sets how much it takes; the default is 1, and 0 only looks. Unlike a single call, a clause cannot give back.
    pub fn quantity(mut self, quantity: u64) -> Clause {
        self.quantity = i64::try_from(quantity).unwrap_or(i64::MAX);
        self
    }

    fn options(&mut self) -> &mut Options {
        &mut self.options
    }

    option_methods!(leave, lease, count_lapsed, id, count_denied, check, shadow);

    /// Adds a limit that is taken from if this one denies: of limits that are joined like this, the first that allows the
    /// call is taken from.
    pub fn or_else(mut self, mut other: Clause) -> Clause {
        let others = std::mem::take(&mut other.alternatives);
        self.alternatives.push(other);
        self.alternatives.extend(others);
        self
    }

    /// Returns each limit, and the name that was set for it.
    #[cfg(feature = "tower")]
    pub(crate) fn named_limits(&self) -> impl Iterator<Item = (Option<String>, AnyLimit)> + '_ {
        let all = std::iter::once(self).chain(&self.alternatives);
        all.map(|clause| (clause.name.clone(), clause.limit.clone()))
    }

    /// Sets the name if the caller did not.
    pub(crate) fn named(mut self) -> Clause {
        let key = &self.key;
        self.name.get_or_insert_with(|| String::from_utf8_lossy(key).into_owned());
        self
    }

    /// Returns the name, which [`Clause::named`] has set.
    pub(crate) fn shown_name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// Returns the word of RL.ALL for what it asks.
    fn kind(&self) -> &'static str {
        let taking = self.limit.taking_command();
        if self.acquires {
            "ACQUIRE"
        } else {
            taking.trim_start_matches("RL.")
        }
    }

    /// Adds the clause to RL.ALL.
    pub(crate) fn write(&self, command: &mut Command) {
        command.arg(self.kind().as_bytes());
        self.limit.write(command, self.quantity, &self.options, !self.acquires);
    }

    /// Returns the quantity that it takes or reserves, 0 if it only checks.
    pub(crate) fn quantity_taken(&self) -> u64 {
        if self.options.check {
            return 0;
        }
        u64::try_from(self.quantity).unwrap_or(0)
    }

    /// Returns whether it makes a reservation, which is settled when the work is done.
    pub(crate) fn reserves(&self) -> bool {
        self.acquires && self.quantity_taken() > 0
    }

    /// Refuses a clause that no server would answer. With `has_ids`, it gets an id if it reserves.
    fn checked(self, has_ids: bool) -> Result<Clause, Error> {
        let mut clause = self.named();
        clause.limit.check()?;
        let Clause { limit, acquires, quantity, options, .. } = &clause;
        options.check(limit.ban_length(), *quantity, *acquires)?;
        let misused = [
            ("count_denied", options.count_denied && clause.kind() != "WINDOW"),
            ("lease", options.lease.is_some() && !acquires),
            ("count_lapsed", options.count_lapsed && !acquires),
            ("id", options.id.is_some() && !acquires),
        ];
        if let Some((option, _)) = misused.iter().find(|(_, is_misused)| *is_misused) {
            return Err(Error::option_of_clause(option, clause.kind(), clause.shown_name()));
        }
        if clause.reserves() && has_ids {
            clause.options.make_id()?;
        }
        Ok(clause)
    }

    /// Returns the command that gives back what the clause took by this answer.
    fn give_back(&self, answer: &Reply) -> Option<Command> {
        match &answer.id {
            Some(id) => Some(release(&self.key, [id])),
            None if self.acquires || !answer.is_allowed() => None,
            None => give_back(&self.key, &self.limit, self.quantity_taken()),
        }
    }
}

/// The limits of a call, checked: a clause by itself is a group of one.
#[derive(Clone, Debug)]
pub(crate) struct Groups(Vec<Vec<Clause>>);

impl From<&LimitCall<'_>> for Groups {
    /// Returns the limit of a call that reserves.
    fn from(call: &LimitCall<'_>) -> Groups {
        let mut clause = Clause::new(call.key, call.limit.clone(), true).named();
        clause.options.lease = call.options.lease;
        Groups(vec![vec![clause]])
    }
}

impl Groups {
    /// Checks the clauses. With `has_ids` each reservation gets an id, so that it can be given back if its reply is lost.
    pub fn new(clauses: impl IntoIterator<Item = Clause>, has_ids: bool) -> Result<Groups, Error> {
        let group = |mut clause: Clause| {
            let alternatives = std::mem::take(&mut clause.alternatives);
            let all = std::iter::once(clause).chain(alternatives);
            all.map(|each| each.checked(has_ids)).collect::<Result<Vec<_>, _>>()
        };
        let groups = clauses.into_iter().map(group).collect::<Result<Vec<_>, _>>()?;
        let groups = Groups(groups);
        let mut names = HashSet::new();
        if let Some(twice) = groups.clauses().find(|clause| !names.insert(clause.shown_name())) {
            return Err(Error::same_name(twice.shown_name()));
        }
        if groups.0.is_empty() {
            return Err(Error::no_clauses());
        }
        Ok(groups)
    }

    pub fn iter(&self) -> impl Iterator<Item = &[Clause]> {
        self.0.iter().map(Vec::as_slice)
    }

    pub fn clauses(&self) -> impl Iterator<Item = &Clause> {
        self.0.iter().flatten()
    }

    /// Returns the first limit that reserves.
    pub fn reserving(&self) -> Option<&Clause> {
        self.clauses().find(|clause| clause.reserves())
    }

    /// Refuses limits with options or groups, which `force` does not take.
    pub fn check_plain(&self) -> Result<(), Error> {
        let is_plain = |clause: &Clause| {
            let has_ban = clause.limit.ban_length().is_some();
            !clause.acquires && !has_ban && clause.options == Options::default()
        };
        let other = self.iter().find_map(|group| match group {
            [clause] if is_plain(clause) => None,
            _ => group.first(),
        });
        other.map_or(Ok(()), |clause| Err(Error::force_of_options(clause.shown_name())))
    }

    /// Returns each group and its choice with the answer to it: the first clause that is allowed or in shadow. It takes if
    /// the call is allowed. A group without a choice denies the call.
    fn choices<'a>(
        &'a self,
        reply: &'a AllReply,
    ) -> impl Iterator<Item = (&'a [Clause], Option<(&'a Clause, &'a Reply)>)> {
        let mut answers = reply.answers.iter();
        self.iter().map(move |group| {
            let mut answered = group.iter().zip(answers.by_ref().take(group.len()));
            let choice =
                answered.find(|(clause, answer)| answer.is_allowed() || clause.options.shadow);
            answered.for_each(drop);
            (group, choice)
        })
    }

    /// Adds the names of the limits, of those that took something, and of those that denied the call. A choice took nothing
    /// if it only checks, or is in shadow and would have been denied.
    pub fn add_names(&self, reply: &mut AllReply, has_taken: bool) {
        let name = |clause: &Clause| clause.shown_name().to_owned();
        let (mut paid, mut denied) = (Vec::new(), Vec::new());
        for (group, choice) in self.choices(reply) {
            let Some((clause, answer)) = choice else {
                denied.extend(group.iter().map(name));
                continue;
            };
            let is_missing = has_taken && clause.reserves() && answer.id.is_none();
            if answer.is_allowed() && clause.quantity_taken() > 0 && !is_missing {
                paid.push(name(clause));
            }
        }
        match reply.is_allowed() {
            true => reply.paid = paid,
            false => reply.denied = denied,
        }
        reply.names = self.clauses().map(name).collect();
    }

    /// Returns the commands that give back what an allowed call took.
    pub fn give_back(&self, reply: &AllReply) -> Vec<Command> {
        if !reply.is_allowed() {
            return Vec::new();
        }
        let choices = self.choices(reply).filter_map(|(_, choice)| choice);
        choices.filter_map(|(clause, answer)| clause.give_back(answer)).collect()
    }

    /// Returns the commands that release all that may have been reserved with ids that the limiter made. Another holder may
    /// have an id that the caller chose.
    pub fn release_made(&self) -> Vec<Command> {
        let release = |clause: &Clause| {
            let id = clause.options.id.as_ref().filter(|_| clause.options.has_made_id)?;
            Some(release(&clause.key, [id]))
        };
        self.clauses().filter_map(release).collect()
    }
}
