//! Calls of several limits.

use std::collections::HashSet;
use std::time::Duration;

use crate::calls::{give_back, release, write_limit, AskedLimit, Taken};
#[cfg(feature = "tower")]
use crate::http::Quota;
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
    key: Vec<u8>,
    name: Option<String>,
    limit: AnyLimit,
    acquires: bool,
    quantity: i64,
    options: Options,
    alternatives: Vec<Clause>,
}

impl Clause {
    fn new(key: &[u8], limit: AnyLimit, acquires: bool) -> Clause {
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
    #[doc = example!(limiter)]
    /// let limits = [
    ///     Clause::take("{u1}:rpm", &Window::per("60/min")?),
    ///     Clause::take("{u1}:burst", &Rate::per("5/s")?),
    /// ];
    /// assert_eq!(limiter.all(limits).await?.paid, ["{u1}:rpm", "{u1}:burst"]);
    #[doc = example!(end)]
    pub fn take(key: impl AsRef<[u8]>, limit: &impl Take) -> Clause {
        Clause::new(key.as_ref(), limit.to_any(), false)
    }

    /// Creates a clause that reserves in a window or of a semaphore. All reservations of a call are settled as one, see
    /// [`Limiter::acquire_all`](crate::Limiter::acquire_all).
    #[doc = example!(limiter)]
    /// let jobs = Clause::acquire("{u1}:jobs", &Semaphore::new(5));
    /// let reservation = limiter.acquire_all([jobs]).await?;
    /// assert_eq!(reservation.reply().remaining, 4);
    #[doc = example!(end)]
    pub fn acquire(key: impl AsRef<[u8]>, limit: &impl Reserve) -> Clause {
        Clause::new(key.as_ref(), limit.to_any(), true)
    }

    /// Sets the name of the limit; the default is its key.
    #[doc = example!(limiter)]
    /// let requests = Clause::take("{u1}:rpm", &Window::per("60/min")?).name("requests");
    /// assert_eq!(limiter.all([requests]).await?.paid, ["requests"]);
    #[doc = example!(end)]
    pub fn name(mut self, name: impl Into<String>) -> Clause {
        self.name = Some(name.into());
        self
    }

    /// Sets how much it takes; the default is 1, and 0 only looks. Unlike a single call, a clause cannot give back.
    #[doc = example!(limiter)]
    /// let tokens = Clause::take("{u1}:tpm", &Window::per("100000/min")?).quantity(800);
    /// assert_eq!(limiter.all([tokens]).await?.remaining, 99_200);
    #[doc = example!(end)]
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
    #[doc = example!(limiter)]
    /// let (plan, credits) = (Window::per("1/month")?, Window::per("500/y")?);
    /// let limits =
    ///     || [Clause::take("{u1}:plan", &plan).or_else(Clause::take("{u1}:credits", &credits))];
    /// assert_eq!(limiter.all(limits()).await?.paid, ["{u1}:plan"]);
    /// assert_eq!(limiter.all(limits()).await?.paid, ["{u1}:credits"]);
    #[doc = example!(end)]
    pub fn or_else(mut self, mut other: Clause) -> Clause {
        let others = std::mem::take(&mut other.alternatives);
        self.alternatives.push(other);
        self.alternatives.extend(others);
        self
    }

    /// Returns the name that was set for each limit, and its quota for headers.
    #[cfg(feature = "tower")]
    pub(crate) fn quotas(&self) -> impl Iterator<Item = (Option<String>, Quota)> + '_ {
        let all = std::iter::once(self).chain(&self.alternatives);
        all.map(|clause| (clause.name.clone(), Quota::new(&clause.limit)))
    }

    /// Returns the clause to send. With `has_ids`, it gets an id if it reserves.
    fn part(mut self, has_ids: bool) -> Result<Part, Error> {
        let name = match self.name.take() {
            Some(name) => name,
            None => String::from_utf8_lossy(&self.key).into_owned(),
        };
        self.limit.check()?;
        self.options.check(self.limit.ban_length(), self.quantity, self.acquires)?;
        let kind = if self.acquires { "ACQUIRE" } else { self.limit.command() };
        let options = &mut self.options;
        let misused = [
            ("count_denied", options.count_denied && kind != "WINDOW"),
            ("lease", options.lease.is_some() && !self.acquires),
            ("count_lapsed", options.count_lapsed && !self.acquires),
            ("id", options.id.is_some() && !self.acquires),
        ];
        if let Some((option, _)) = misused.iter().find(|(_, is_misused)| *is_misused) {
            return Err(Error::option_of_clause(option, kind, &name));
        }
        let reserves = self.acquires && !options.check && self.quantity > 0;
        if reserves && has_ids {
            options.make_id()?;
        }
        let mut words = Command::new(kind);
        let mut taken =
            write_limit(&mut words, &*self.limit, self.quantity, options, !self.acquires);
        let is_plain = !self.acquires && words.words().len() == taken.options_at;
        if options.check {
            taken.quantity = 0;
        }
        Ok(Part {
            words,
            taken,
            is_plain,
            is_shadow: options.shadow,
            id: options.id.take(),
            has_made_id: options.has_made_id,
            limit: AskedLimit {
                name,
                key: self.key,
                reserves,
                is_semaphore: self.limit.is_semaphore(),
                is_policy: self.limit.is_policy(),
                lease: options.lease,
            },
        })
    }
}

/// A clause to send, and what the client has to know about it.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub limit: AskedLimit,
    /// The clause of RL.ALL.
    pub words: Command,
    /// The places of what it takes. The quantity is 0 if it only checks.
    pub taken: Taken,
    /// True if it takes and has no options.
    pub is_plain: bool,
    pub is_shadow: bool,
    pub id: Option<Id>,
    /// True if the limiter made the id.
    pub has_made_id: bool,
}

impl Part {
    /// Returns the command that gives back what the clause took by this answer.
    fn give_back(&self, answer: &Reply) -> Option<Command> {
        match (self.limit.reserves, &answer.id) {
            (true, Some(id)) => Some(release(&self.limit.key, [id])),
            (true, None) => None,
            (false, _) => {
                let name = [b"RL.".as_slice(), self.words.word(0)?];
                let is_taken = answer.is_allowed() && self.words.word(0)? != b"ACQUIRE";
                let quantity = if is_taken { self.taken.quantity } else { 0 };
                give_back(&name, &self.limit.key, &self.words, 1, &self.taken, quantity)
            }
        }
    }
}

/// The limits of a call, checked: a clause by itself is a group of one.
#[derive(Clone, Debug)]
pub(crate) struct Groups(Vec<Vec<Part>>);

impl Groups {
    /// Checks the clauses. With `has_ids` each reservation gets an id, so that it can be given back if its reply is lost.
    pub fn new(clauses: impl IntoIterator<Item = Clause>, has_ids: bool) -> Result<Groups, Error> {
        let group = |mut clause: Clause| {
            let alternatives = std::mem::take(&mut clause.alternatives);
            let all = std::iter::once(clause).chain(alternatives);
            all.map(|each| each.part(has_ids)).collect::<Result<Vec<_>, _>>()
        };
        let groups = clauses.into_iter().map(group).collect::<Result<Vec<_>, _>>()?;
        let groups = Groups(groups);
        let mut names = HashSet::new();
        if let Some(twice) = groups.parts().find(|part| !names.insert(part.limit.name.as_str())) {
            return Err(Error::same_name(&twice.limit.name));
        }
        if groups.0.is_empty() {
            return Err(Error::no_clauses());
        }
        Ok(groups)
    }

    pub fn iter(&self) -> impl Iterator<Item = &[Part]> {
        self.0.iter().map(Vec::as_slice)
    }

    pub fn parts(&self) -> impl Iterator<Item = &Part> {
        self.0.iter().flatten()
    }

    /// Returns the first limit that reserves.
    pub fn reserving(&self) -> Option<&Part> {
        self.parts().find(|part| part.limit.reserves)
    }

    /// Refuses limits with options or groups, which `force` does not take.
    pub fn check_plain(&self) -> Result<(), Error> {
        let mut groups = self.iter();
        let other = groups.find_map(|group| match group {
            [part] if part.is_plain => None,
            _ => group.first(),
        });
        other.map_or(Ok(()), |part| Err(Error::force_of_options(&part.limit.name)))
    }

    /// Returns the clause of each group that took in an allowed call, with its answer.
    fn choices<'a>(&'a self, reply: &'a AllReply) -> impl Iterator<Item = (&'a Part, &'a Reply)> {
        let mut answers = reply.answers.iter();
        self.0.iter().filter_map(move |group| {
            let answered: Vec<_> = group.iter().zip(answers.by_ref().take(group.len())).collect();
            answered.into_iter().find(|(part, answer)| answer.is_allowed() || part.is_shadow)
        })
    }

    /// Returns the names of the limits that took: the choices, unless they only check, or are in shadow and would have been
    /// denied.
    pub fn paid(&self, reply: &AllReply, has_taken: bool) -> Vec<String> {
        if !reply.is_allowed() {
            return Vec::new();
        }
        let has_paid = |(part, answer): &(&Part, &Reply)| {
            let is_missing = has_taken && part.limit.reserves && answer.id.is_none();
            answer.is_allowed() && part.taken.quantity > 0 && !is_missing
        };
        self.choices(reply).filter(has_paid).map(|(part, _)| part.limit.name.clone()).collect()
    }

    /// Returns the commands that give back what an allowed call took.
    pub fn give_back(&self, reply: &AllReply) -> Vec<Command> {
        if !reply.is_allowed() {
            return Vec::new();
        }
        self.choices(reply).filter_map(|(part, answer)| part.give_back(answer)).collect()
    }

    /// Returns the commands that release all that may have been reserved with ids that the limiter made. Another holder may
    /// have an id that the caller chose.
    pub fn release_made(&self) -> Vec<Command> {
        let each = |part: &Part| Some(release(&part.limit.key, [part.id.as_ref()?]));
        let made = |part: &&Part| part.limit.reserves && part.has_made_id;
        self.parts().filter(made).filter_map(each).collect()
    }
}
