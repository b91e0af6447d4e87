//! One limit of a call, and its options. Each option is a field of [`Options`], a line of its `write`, and a method of a
//! clause or a call.

use std::time::Duration;

use crate::calls::{give_back, release};
use crate::limit::{AnyLimit, Reserve, Take};
use crate::period::whole_ms;
use crate::reply::Id;
use crate::transport::Command;
use crate::{Error, Reply};

/// One limit of a call that asks several, see [`Limiter::all`](crate::Limiter::all).
///
/// Its name, by default its key, says in replies, errors and costs which limit is meant. Keys of one call lie in one slot of
/// a cluster: give them the same `{tag}`.
///
/// ```
/// # use redis_ratelimit_client::{Clause, MemoryLimiter, Semaphore, Window};
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = MemoryLimiter::new();
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
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a clause is a part of a call"]
pub struct Clause {
    pub(crate) key: Vec<u8>,
    /// The name that the caller gave it. Unlike a key, it may be shown to clients of the program.
    pub(crate) name: Option<String>,
    /// The key as text, unless it has a name.
    default_name: String,
    pub(crate) limit: AnyLimit,
    /// True if it reserves, or looks as a reservation does.
    pub(crate) acquires: bool,
    pub(crate) quantity: i64,
    pub(crate) options: Options,
    pub(crate) alternatives: Vec<Clause>,
}

impl Clause {
    pub(crate) fn new(key: &[u8], limit: AnyLimit, acquires: bool) -> Clause {
        Clause {
            key: key.into(),
            name: None,
            default_name: String::new(),
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
        self.set_quantity(quantity);
        self
    }

    pub(crate) fn set_quantity(&mut self, quantity: u64) {
        self.quantity = i64::try_from(quantity).unwrap_or(i64::MAX);
    }

    /// Leaves at least this much for others, see [`Call::leave`](crate::Call::leave).
    pub fn leave(mut self, leave: u64) -> Clause {
        self.options.leave = leave;
        self
    }

    /// Sets how long the reservation lasts if it is not renewed, from 1 ms to a year. The server's default is 20 s.
    pub fn lease(mut self, lease: Duration) -> Clause {
        self.options.lease = Some(lease);
        self
    }

    /// Counts the reservation if its lease ends before it is settled, see [`Call::count_lapsed`](crate::Call::count_lapsed).
    pub fn count_lapsed(mut self) -> Clause {
        self.options.count_lapsed = true;
        self
    }

    /// Names the reservation, uniquely within its key. The limiter makes an id if none is given.
    pub fn id(mut self, id: impl Into<Id>) -> Clause {
        self.options.id = Some(id.into());
        self
    }

    /// Counts the call even if it is denied, see [`Call::count_denied`](crate::Call::count_denied). Only for a window that
    /// is taken from.
    pub fn count_denied(mut self) -> Clause {
        self.options.count_denied = true;
        self
    }

    /// Requires that the limit allows the call, but takes nothing.
    ///
    /// ```
    /// # use redis_ratelimit_client::{Clause, MemoryLimiter, Semaphore};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let stop = Semaphore::new(1);
    /// let check = || limiter.all([Clause::acquire("{u1}:stop", &stop).check()]);
    /// assert!(check().await?.is_allowed());
    /// // While someone holds the semaphore, calls are denied.
    /// let stopped = limiter.acquire("{u1}:stop", &stop).await?;
    /// assert!(!check().await?.is_allowed());
    /// # Ok(()) }
    /// ```
    pub fn check(mut self) -> Clause {
        self.options.check = true;
        self
    }

    /// Decides and reports the limit, but never denies the call because of it.
    ///
    /// ```
    /// # use redis_ratelimit_client::{Clause, MemoryLimiter, Window};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let on_trial = Clause::take("{u1}:tpm", &Window::per("100/min")?).quantity(800).shadow();
    /// let reply = limiter.all([on_trial, Clause::take("{u1}:rpm", &Window::per("60/min")?)]).await?;
    /// assert!(reply.is_allowed() && !reply.answers[0].is_allowed());
    /// # Ok(()) }
    /// ```
    pub fn shadow(mut self) -> Clause {
        self.options.shadow = true;
        self
    }

    /// Closes its key for this long, and takes nothing.
    pub(crate) fn closing(mut self, length: Duration) -> Clause {
        (self.quantity, self.options.force, self.limit.ban) = (0, true, Some(length));
        self
    }

    /// Adds a limit that is taken from if this one denies: of limits that are joined like this, the first that allows the
    /// call is taken from.
    pub fn or_else(mut self, mut other: Clause) -> Clause {
        let others = std::mem::take(&mut other.alternatives);
        self.alternatives.push(other);
        self.alternatives.extend(others);
        self
    }

    /// Returns the clauses of its group.
    pub(crate) fn with_alternatives(&self) -> impl Iterator<Item = &Clause> {
        std::iter::once(self).chain(&self.alternatives)
    }

    /// Returns its name, or that of its key if it has none.
    pub(crate) fn shown_name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.default_name)
    }

    /// Returns the word of RL.ALL for what it asks.
    fn kind(&self) -> &'static str {
        if self.acquires {
            "ACQUIRE"
        } else {
            self.limit.taking_command().trim_start_matches("RL.")
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

    /// Names it after its key, if it has no name.
    pub(crate) fn set_default_name(&mut self) {
        if self.name.is_none() {
            self.default_name = String::from_utf8_lossy(&self.key).into_owned();
        }
    }

    /// Refuses a clause that no server would answer. `bans` is false if a denial does not close its key.
    pub(crate) fn validate(&self, bans: bool) -> Result<(), Error> {
        let Clause { limit, acquires, quantity, options, .. } = self;
        limit.check()?;
        if limit.is_semaphore() && !acquires {
            return Err(Error::semaphore_not_acquired());
        }
        let ban = limit.ban.filter(|_| bans);
        check_length("lease", options.lease)?;
        check_length("ban", ban)?;
        check_length("ahead", options.ahead)?;
        let excluded = used(&[
            ("a reservation", *acquires),
            ("a quantity below 1", *quantity < 1),
            ("at_most", options.at_most),
            ("force", options.force),
            ("check", options.check),
            ("ahead", options.ahead.is_some()),
        ]);
        if let Some(what) = excluded.filter(|_| ban.is_some()) {
            return Err(Error::excluded("a ban", what));
        }
        let misused = used(&[
            ("count_denied", options.count_denied && self.kind() != "WINDOW"),
            ("lease", options.lease.is_some() && !acquires),
            ("count_lapsed", options.count_lapsed && !acquires),
            ("id", options.id.is_some() && !acquires),
        ]);
        misused.map_or(Ok(()), |option| {
            Err(Error::option_of_clause(option, self.kind(), self.shown_name()))
        })
    }

    /// Returns the command that gives back what the clause took by this answer. What was used already stays counted. Later
    /// bookings of `ahead` would not move up, and the next one would get the same turn as one of them. What a name means in
    /// a hash of limits only RL.ALL knows, which gives nothing back.
    pub(crate) fn give_back(&self, answer: &Reply, has_limits: bool) -> Option<Command> {
        let is_unknown = has_limits && self.limit.is_policy();
        let stays =
            self.acquires || is_unknown || self.options.force || self.options.ahead.is_some();
        match &answer.id {
            Some(id) => Some(release(&self.key, [id])),
            None if stays || !answer.is_allowed() => None,
            None => {
                let quantity = answer.granted.unwrap_or(self.quantity_taken());
                give_back(&self.key, &self.limit, quantity)
            }
        }
    }
}

/// The options of a limit, which follow the quantity.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Options {
    pub leave: u64,
    pub lease: Option<Duration>,
    pub count_lapsed: bool,
    pub id: Option<Id>,
    /// True if the limiter made the id.
    pub has_made_id: bool,
    pub at_most: bool,
    pub force: bool,
    pub count_denied: bool,
    pub check: bool,
    pub shadow: bool,
    pub ahead: Option<Duration>,
}

impl Options {
    /// Adds the options to a command.
    pub fn write(&self, command: &mut Command, ban: Option<Duration>) {
        if self.leave > 0 {
            command.arg(b"LEAVE").number(self.leave);
        }
        write_length(command, b"LEASE", self.lease);
        write_flag(command, b"COUNTLAPSED", self.count_lapsed);
        if let Some(id) = &self.id {
            command.arg(b"ID").arg(id.as_ref());
        }
        write_flag(command, b"ATMOST", self.at_most);
        write_flag(command, b"FORCE", self.force);
        write_flag(command, b"COUNTDENIED", self.count_denied);
        write_flag(command, b"CHECK", self.check);
        write_flag(command, b"SHADOW", self.shadow);
        write_length(command, b"BAN", ban);
        write_length(command, b"AHEAD", self.ahead);
    }
}

/// Returns the first of these options that is used.
pub(crate) fn used<'a>(options: &[(&'a str, bool)]) -> Option<&'a str> {
    options.iter().find(|(_, is_used)| *is_used).map(|(option, _)| *option)
}

/// Refuses a length of 0, which no server accepts.
///
/// # Errors
///
/// [`Error::InvalidArgument`].
pub(crate) fn check_length(name: &str, length: Option<Duration>) -> Result<(), Error> {
    match length {
        Some(Duration::ZERO) => Err(Error::zero(name)),
        _ => Ok(()),
    }
}

pub(crate) fn write_length(command: &mut Command, word: &[u8], length: Option<Duration>) {
    if let Some(length) = length {
        command.arg(word).number(whole_ms(length));
    }
}

pub(crate) fn write_flag(command: &mut Command, word: &[u8], is_set: bool) {
    if is_set {
        command.arg(word);
    }
}
