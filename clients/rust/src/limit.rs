//! The limits: rates, windows and semaphores.

use std::time::Duration;

use redis::ToRedisArgs;

use crate::clause::Options;
use crate::period::{parse_per, Period};
use crate::transport::Command;
use crate::Error;

/// A steady rate with bursts, by GCRA (a token bucket): RL.THROTTLE.
///
/// ```
/// # use redis_ratelimit_client::Rate;
/// // 30 a minute, and up to 10 at once.
/// let rate = Rate::per("30/min")?.capacity(10)?;
/// // In the terms of RL.THROTTLE: max_burst, count and period.
/// assert_eq!(rate.numbers(), Some((9, 30, "1min".parse()?)));
/// assert_eq!(Rate::policy("free").numbers(), None);
/// # Ok::<(), redis_ratelimit_client::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rate(AnyLimit);

impl Rate {
    /// Creates a rate of `count` for each `period` in the long run, and up to `max_burst + 1` at once.
    ///
    /// A count or a period of 0, and a period in months or years, is an [`Error::InvalidArgument`] of the calls that use the
    /// rate. The server refuses what is out of range.
    pub fn new(max_burst: u64, count: u64, period: impl Into<Period>) -> Rate {
        Rate(AnyLimit::new(Numbers::Rate { max_burst, count, period: period.into() }))
    }

    /// Parses a rate in words: "30/min" is 30 a minute, "5/10s" is 5 in 10 seconds, "100 per hour" is 100 an hour. The same
    /// number is available at once, see [`Rate::capacity`].
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the text is anything else, the count or the period is 0, or the period is in months or
    /// years.
    ///
    /// ```
    /// # use redis_ratelimit_client::Rate;
    /// let rate = Rate::per("5/10s")?;
    /// assert_eq!(rate.numbers(), Some((4, 5, "10s".parse()?)));
    /// assert!(Rate::per("5/m").is_err(), "minutes are min, and months are mo");
    /// # Ok::<(), redis_ratelimit_client::Error>(())
    /// ```
    pub fn per(text: &str) -> Result<Rate, Error> {
        let (count, period) = parse_per(text)?;
        let rate = Rate::new(count.saturating_sub(1), count, period);
        rate.0.check().map(|()| rate)
    }

    /// Names a policy of the server, with or without the `@`.
    pub fn policy(name: &str) -> Rate {
        Rate(AnyLimit::policy(Kind::Rate, name))
    }

    /// Sets how much is available at once, from 1.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if it is 0, or the rate is a policy.
    pub fn capacity(mut self, capacity: u64) -> Result<Rate, Error> {
        let burst = capacity.checked_sub(1).ok_or_else(|| Error::zero("capacity"))?;
        match &mut self.0.numbers {
            Numbers::Rate { max_burst, .. } => *max_burst = burst,
            _ => return Err(Error::set_by_policy("capacity", self.0.policy_name().unwrap_or(""))),
        }
        Ok(self)
    }

    /// Closes the key for this long after a denied call, from 1 ms to a year.
    ///
    /// A call that uses the rate with a quantity below 1, `at_most`, `force`, `ahead`, `block` or `check` is an
    /// [`Error::InvalidArgument`].
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Rate};
    /// # use std::time::Duration;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let rate = Rate::per("1/h")?.ban(Duration::from_secs(86_400));
    /// limiter.take("login", &rate).await?;
    /// let denied = limiter.take("login", &rate).await?;
    /// assert_eq!(denied.retry_after, Some(Duration::from_secs(86_400)));
    /// # Ok(()) }
    /// ```
    pub fn ban(mut self, length: Duration) -> Rate {
        self.0.ban = Some(length);
        self
    }

    /// Returns `max_burst`, `count` and period; `None` for a policy.
    pub fn numbers(&self) -> Option<(u64, u64, Period)> {
        self.0.rate_numbers()
    }
}

/// At most a limit in any period, or in each period of the calendar: RL.WINDOW and RL.ACQUIRE.
///
/// ```
/// # use redis_ratelimit_client::Window;
/// // At most 5 in any minute.
/// assert_eq!(Window::per("5/min")?.numbers(), Some((5, "1min".parse()?)));
/// // 1000 from the 15th of a month to the next, in Shanghai.
/// let plan = Window::per("1000/month")?.fixed().start("15").tz("Asia/Shanghai");
/// assert_eq!((plan.is_fixed(), plan.starts_at()), (true, Some("15")));
/// // The sliding-window counter, in 60 buckets. In HTTP headers tokens are counted.
/// let tokens = Window::per("1000000/h")?.buckets(60).unit("tokens")?;
/// assert_eq!(tokens.counted_unit(), Some("tokens"));
/// # Ok::<(), redis_ratelimit_client::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Window(AnyLimit);

impl Window {
    /// Creates a window with at most `limit` in any `period`. The server refuses what is out of range. With a period of 0 it
    /// is a [`Semaphore`], which is only acquired: another call that uses it is an [`Error::InvalidArgument`].
    pub fn new(limit: u64, period: impl Into<Period>) -> Window {
        Window(AnyLimit::new(Numbers::Window { limit, period: period.into() }))
    }

    /// Parses a window in words: "5/min" is at most 5 in any minute, "3/10s" at most 3 in any 10 seconds.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the text is anything else, or the period is 0.
    pub fn per(text: &str) -> Result<Window, Error> {
        let (limit, period) = parse_per(text)?;
        Ok(Window::new(limit, period))
    }

    /// Names a policy of the server, with or without the `@`. The server has its numbers and its kind: a call that uses a
    /// policy with buckets or fixed windows is an [`Error::InvalidArgument`].
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Window};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = MemoryLimiter::builder().policies("day WINDOW 1000 1d FIXED")?.build();
    /// let reply = limiter.take("user:1", &Window::policy("day")).await?;
    /// assert_eq!(reply.limit, 1000);
    /// # Ok(()) }
    /// ```
    pub fn policy(name: &str) -> Window {
        Window(AnyLimit::policy(Kind::Window, name))
    }

    /// Sets the most entries that a sliding window keeps, from 1 to 65536: fewer need less memory, and the limit is never
    /// exceeded. A call that uses a window with both buckets and fixed windows is an [`Error::InvalidArgument`].
    ///
    /// ```
    /// # use redis_ratelimit_client::{KeyState, MemoryLimiter, Window};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = MemoryLimiter::new();
    /// let window = Window::per("1000/h")?.buckets(1);
    /// for _ in 0..100 {
    ///     limiter.take("user:1", &window).await?;
    /// }
    /// let state = limiter.info("user:1").await?.map(|info| info.state);
    /// assert!(matches!(state, Some(KeyState::Window { events: 100, entries: 1, .. })));
    /// # Ok(()) }
    /// ```
    pub fn buckets(mut self, buckets: u32) -> Window {
        self.0.buckets = Some(buckets);
        self
    }

    /// Uses the windows of the calendar: a period of a day begins at midnight, a month on the 1st.
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Window};
    /// # use std::time::Duration;
    /// # use std::time::UNIX_EPOCH;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let clock = || UNIX_EPOCH + Duration::from_secs(18 * 3600);
    /// # let limiter = MemoryLimiter::builder().clock(clock).build();
    /// // It is 18:00 UTC. The day ends at midnight.
    /// let window = Window::per("1000/day")?.fixed();
    /// let reply = limiter.take("user:1", &window).await?;
    /// assert_eq!(reply.reset_after, Duration::from_secs(6 * 3600));
    /// # Ok(()) }
    /// ```
    pub fn fixed(mut self) -> Window {
        self.0.is_fixed = true;
        self
    }

    /// Sets where fixed windows begin: a time of day ("09:00"), a day of the week, the month or the year with or without one
    /// ("sun", "15@09:00", "04-06"), a date ("2026-11-02"), or "first", the first event that is counted. A call that uses a
    /// window with a start but without [`Window::fixed`] is an [`Error::InvalidArgument`].
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Window};
    /// # use std::time::Duration;
    /// # use std::time::UNIX_EPOCH;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let clock = || UNIX_EPOCH + Duration::from_secs(18 * 3600);
    /// # let limiter = MemoryLimiter::builder().clock(clock).build();
    /// // It is 18:00 UTC. The window ends at 09:00.
    /// let window = Window::per("1000/day")?.fixed().start("09:00");
    /// let reply = limiter.take("user:1", &window).await?;
    /// assert_eq!(reply.reset_after, Duration::from_secs(15 * 3600));
    /// # Ok(()) }
    /// ```
    pub fn start(mut self, start: &str) -> Window {
        self.0.start = Some(start.into());
        self
    }

    /// Sets the time zone of fixed windows: a name such as "Asia/Shanghai", or an offset such as "+08:00". A call that uses
    /// a window with a time zone but without [`Window::fixed`], or with the start "first", is an [`Error::InvalidArgument`].
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Window};
    /// # use std::time::Duration;
    /// # use std::time::UNIX_EPOCH;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let clock = || UNIX_EPOCH + Duration::from_secs(18 * 3600);
    /// # let limiter = MemoryLimiter::builder().clock(clock).build();
    /// // It is 18:00 UTC. In Shanghai it is 02:00.
    /// let window = Window::per("1000/day")?.fixed().tz("Asia/Shanghai");
    /// let reply = limiter.take("user:1", &window).await?;
    /// assert_eq!(reply.reset_after, Duration::from_secs(22 * 3600));
    /// # Ok(()) }
    /// ```
    pub fn tz(mut self, tz: &str) -> Window {
        self.0.tz = Some(tz.into());
        self
    }

    /// Closes the key for this long after a denied call, from 1 ms to a year.
    ///
    /// A call that uses the window with a quantity below 1, `at_most`, `force`, `block` or `check` is an
    /// [`Error::InvalidArgument`], and so is a reservation or a local limit.
    pub fn ban(mut self, length: Duration) -> Window {
        self.0.ban = Some(length);
        self
    }

    /// Names what is counted, for HTTP headers: "tokens". The default is requests.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if it is empty or not printable ASCII.
    pub fn unit(mut self, unit: &str) -> Result<Window, Error> {
        if unit.is_empty() || !unit.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return Err(Error::unit(unit));
        }
        self.0.unit = Some(unit.into());
        Ok(self)
    }

    /// Returns limit and period; `None` for a policy.
    pub fn numbers(&self) -> Option<(u64, Period)> {
        self.0.window_numbers()
    }

    /// Returns whether the windows are those of the calendar. False for a policy, which only the server knows.
    pub fn is_fixed(&self) -> bool {
        self.0.is_fixed && !self.0.is_policy()
    }

    /// Returns where fixed windows begin, see [`Window::start`].
    pub fn starts_at(&self) -> Option<&str> {
        self.0.start.as_deref()
    }

    /// Returns what is counted, see [`Window::unit`].
    pub fn counted_unit(&self) -> Option<&str> {
        self.0.unit.as_deref()
    }
}

/// At most this many held at one time: RL.ACQUIRE with the period 0.
///
/// ```
/// # use redis_ratelimit_client::{MemoryLimiter, Semaphore};
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = MemoryLimiter::new();
/// let jobs = Semaphore::new(1);
/// let mut permit = limiter.acquire("jobs", &jobs).await?;
/// assert!(limiter.acquire("jobs", &jobs).await.is_err());
/// permit.release().await?;
/// assert!(limiter.acquire("jobs", &jobs).await.is_ok());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Semaphore(AnyLimit);

impl Semaphore {
    /// Creates a semaphore with at most `limit` held at one time.
    pub const fn new(limit: u64) -> Semaphore {
        Semaphore(AnyLimit::new(Numbers::Semaphore(limit)))
    }

    /// Names a policy of the server with the period 0, with or without the `@`.
    pub fn policy(name: &str) -> Semaphore {
        Semaphore(AnyLimit::policy(Kind::Semaphore, name))
    }
}

/// A limit: [`Rate`], [`Window`] or [`Semaphore`].
pub trait Limit: Send + Sync + 'static {
    /// Returns the limit without its type.
    #[doc(hidden)]
    fn to_any(&self) -> AnyLimit;
}

/// A limit that [`Limiter::take`](crate::Limiter::take) takes from: [`Rate`] or [`Window`].
pub trait Take: Limit {}

/// A limit that [`Limiter::acquire`](crate::Limiter::acquire) reserves in: [`Window`] or [`Semaphore`].
pub trait Reserve: Limit {}

impl Take for Rate {}
impl Take for Window {}
impl Reserve for Window {}
impl Reserve for Semaphore {}

macro_rules! impl_limit {
    ($($limit:ident),+) => {
        $(impl Limit for $limit {
            fn to_any(&self) -> AnyLimit {
                self.0.clone()
            }
        })+
    };
}

impl_limit!(Rate, Window, Semaphore);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Rate,
    Window,
    Semaphore,
}

/// The numbers of a limit, or the name of a policy of the server, which has them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Numbers {
    Rate { max_burst: u64, count: u64, period: Period },
    Window { limit: u64, period: Period },
    Semaphore(u64),
    Policy { kind: Kind, name: Box<str> },
}

/// Any limit. Only windows have buckets, fixed windows and a unit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AnyLimit {
    numbers: Numbers,
    buckets: Option<u32>,
    is_fixed: bool,
    start: Option<Box<str>>,
    tz: Option<Box<str>>,
    /// The time for which a denied call closes the key.
    pub(crate) ban: Option<Duration>,
    /// What is counted, if it is not requests.
    pub(crate) unit: Option<Box<str>>,
}

impl AnyLimit {
    const fn new(numbers: Numbers) -> AnyLimit {
        AnyLimit {
            numbers,
            buckets: None,
            is_fixed: false,
            start: None,
            tz: None,
            ban: None,
            unit: None,
        }
    }

    /// The name may have the `@` of the commands.
    fn policy(kind: Kind, name: &str) -> AnyLimit {
        let name = name.strip_prefix('@').unwrap_or(name).into();
        AnyLimit::new(Numbers::Policy { kind, name })
    }

    fn kind(&self) -> Kind {
        match self.numbers {
            Numbers::Rate { .. } => Kind::Rate,
            Numbers::Window { period: Period { count: 0, .. }, .. } | Numbers::Semaphore(_) => {
                Kind::Semaphore
            }
            Numbers::Window { .. } => Kind::Window,
            Numbers::Policy { kind, .. } => kind,
        }
    }

    /// Returns the name of the command that takes from it.
    pub(crate) fn taking_command(&self) -> &'static str {
        if self.kind() == Kind::Rate {
            "RL.THROTTLE"
        } else {
            "RL.WINDOW"
        }
    }

    /// Returns whether a reservation can only be released.
    pub(crate) fn is_semaphore(&self) -> bool {
        self.kind() == Kind::Semaphore
    }

    /// Returns the name of the policy, if it is one.
    pub(crate) fn policy_name(&self) -> Option<&str> {
        match &self.numbers {
            Numbers::Policy { name, .. } => Some(name),
            _ => None,
        }
    }

    pub(crate) fn is_policy(&self) -> bool {
        self.policy_name().is_some()
    }

    /// Returns `max_burst`, `count` and period of a rate in numbers.
    pub(crate) fn rate_numbers(&self) -> Option<(u64, u64, Period)> {
        match self.numbers {
            Numbers::Rate { max_burst, count, period } => Some((max_burst, count, period)),
            _ => None,
        }
    }

    /// Returns limit and period of a window in numbers.
    pub(crate) fn window_numbers(&self) -> Option<(u64, Period)> {
        match self.numbers {
            Numbers::Window { limit, period } => Some((limit, period)),
            _ => None,
        }
    }

    /// Refuses a limit that no server takes.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`].
    pub(crate) fn check(&self) -> Result<(), Error> {
        let AnyLimit { buckets, is_fixed, start, tz, .. } = self;
        let has_kind = buckets.is_some() || *is_fixed || start.is_some() || tz.is_some();
        let is_first = start.as_ref().is_some_and(|start| start.eq_ignore_ascii_case("first"));
        match &self.numbers {
            Numbers::Rate { count: 0, .. } => Err(Error::zero("the count of a rate")),
            Numbers::Rate { period: Period { count: 0, .. }, .. } => {
                Err(Error::zero("the period of a rate"))
            }
            Numbers::Rate { period, .. } if period.as_duration().is_none() => {
                Err(Error::rate_of_months(*period))
            }
            Numbers::Policy { name, .. } if has_kind => {
                Err(Error::set_by_policy("kind of window", name))
            }
            _ if start.is_some() && !is_fixed => Err(Error::needs("start", "fixed")),
            _ if tz.is_some() && !is_fixed => Err(Error::needs("tz", "fixed")),
            _ if tz.is_some() && is_first => Err(Error::excluded("tz", "the start \"first\"")),
            _ if buckets.is_some() && *is_fixed => Err(Error::excluded("buckets", "fixed")),
            _ => Ok(()),
        }
    }

    /// Adds the limit, the quantity and the options to a command; the ban only if `bans` is true.
    pub(crate) fn write(
        &self,
        command: &mut Command,
        quantity: impl ToRedisArgs,
        options: &Options,
        bans: bool,
    ) {
        match &self.numbers {
            Numbers::Rate { max_burst, count, period } => {
                command.number(*max_burst).number(*count).displayed(period)
            }
            Numbers::Window { limit, period } => command.number(*limit).displayed(period),
            Numbers::Semaphore(limit) => command.number(*limit).number(0),
            Numbers::Policy { name, .. } => command.displayed(format_args!("@{name}")),
        };
        command.number(quantity);
        if let Some(buckets) = self.buckets {
            command.arg(b"BUCKETS").number(buckets);
        }
        if self.is_fixed {
            command.arg(b"FIXED");
        }
        if let Some(start) = &self.start {
            command.arg(b"FROM").arg(start.as_bytes());
        }
        if let Some(tz) = &self.tz {
            command.arg(b"TZ").arg(tz.as_bytes());
        }
        options.write(command, self.ban.filter(|_| bans));
    }
}
