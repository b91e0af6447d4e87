//! The limits: rates, windows and semaphores.

use std::time::Duration;

use crate::options::Options;
use crate::period::{parse_per, Period};
use crate::transport::Command;
use crate::Error;

/// The numbers of a limit, or the name of a policy of the server, which has them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Source<T> {
    Numbers(T),
    Policy(Box<str>),
}

impl<T> Source<T> {
    /// The name may have the `@` of the commands.
    fn policy(name: &str) -> Source<T> {
        Source::Policy(name.strip_prefix('@').unwrap_or(name).into())
    }

    fn numbers(&self) -> Option<&T> {
        match self {
            Source::Numbers(numbers) => Some(numbers),
            Source::Policy(_) => None,
        }
    }

    fn policy_name(&self) -> Option<&str> {
        match self {
            Source::Numbers(_) => None,
            Source::Policy(name) => Some(name),
        }
    }
}

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
pub struct Rate {
    source: Source<RateNumbers>,
    ban: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct RateNumbers {
    max_burst: u64,
    count: u64,
    period: Period,
}

impl Rate {
    /// Creates a rate of `count` for each `period` in the long run, and up to `max_burst + 1` at once.
    ///
    /// A count or a period of 0, and a period in months or years, is an [`Error::InvalidArgument`] of the calls that use the
    /// rate. The server refuses what is out of range.
    pub fn new(max_burst: u64, count: u64, period: impl Into<Period>) -> Rate {
        let period = period.into();
        Rate { source: Source::Numbers(RateNumbers { max_burst, count, period }), ban: None }
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
        rate.check().map(|()| rate)
    }

    /// Names a policy of the server, with or without the `@`.
    pub fn policy(name: &str) -> Rate {
        Rate { source: Source::policy(name), ban: None }
    }

    /// Sets how much is available at once, from 1.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if it is 0, or the rate is a policy.
    pub fn capacity(mut self, capacity: u64) -> Result<Rate, Error> {
        let burst = capacity.checked_sub(1).ok_or_else(Error::capacity_of_zero)?;
        match &mut self.source {
            Source::Numbers(numbers) => numbers.max_burst = burst,
            Source::Policy(name) => return Err(Error::set_by_policy("capacity", name)),
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
        self.ban = Some(length);
        self
    }

    /// Returns `max_burst`, `count` and period; `None` for a policy.
    pub fn numbers(&self) -> Option<(u64, u64, Period)> {
        let RateNumbers { max_burst, count, period } = *self.source.numbers()?;
        Some((max_burst, count, period))
    }

    fn check(&self) -> Result<(), Error> {
        match self.numbers() {
            Some((_, 0, _)) => Err(Error::rate_of_zero()),
            Some((_, _, Period { count: 0, .. })) => Err(Error::rate_without_period()),
            Some((_, _, period)) if period.as_duration().is_none() => {
                Err(Error::rate_of_months(period))
            }
            _ => Ok(()),
        }
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
pub struct Window {
    /// The limit and the period.
    source: Source<(u64, Period)>,
    pub(crate) buckets: Option<u32>,
    is_fixed: bool,
    start: Option<Box<str>>,
    pub(crate) tz: Option<Box<str>>,
    ban: Option<Duration>,
    unit: Option<Box<str>>,
}

impl Window {
    /// Creates a window with at most `limit` in any `period`. The server refuses what is out of range.
    pub fn new(limit: u64, period: impl Into<Period>) -> Window {
        Window::with_source(Source::Numbers((limit, period.into())))
    }

    fn with_source(source: Source<(u64, Period)>) -> Window {
        Window {
            source,
            buckets: None,
            is_fixed: false,
            start: None,
            tz: None,
            ban: None,
            unit: None,
        }
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
        Window::with_source(Source::policy(name))
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
        self.buckets = Some(buckets);
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
        self.is_fixed = true;
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
        self.start = Some(start.into());
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
        self.tz = Some(tz.into());
        self
    }

    /// Closes the key for this long after a denied call, from 1 ms to a year.
    ///
    /// A call that uses the window with a quantity below 1, `at_most`, `force`, `block` or `check` is an
    /// [`Error::InvalidArgument`], and so is a reservation or a local limit.
    pub fn ban(mut self, length: Duration) -> Window {
        self.ban = Some(length);
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
        self.unit = Some(unit.into());
        Ok(self)
    }

    /// Returns limit and period; `None` for a policy.
    pub fn numbers(&self) -> Option<(u64, Period)> {
        self.source.numbers().copied()
    }

    /// Returns whether the windows are those of the calendar. False for a policy, which only the server knows.
    pub fn is_fixed(&self) -> bool {
        self.is_fixed && self.source.policy_name().is_none()
    }

    /// Returns where fixed windows begin, see [`Window::start`].
    pub fn starts_at(&self) -> Option<&str> {
        self.start.as_deref()
    }

    /// Returns what is counted, see [`Window::unit`].
    pub fn counted_unit(&self) -> Option<&str> {
        self.unit.as_deref()
    }

    fn check(&self) -> Result<(), Error> {
        let (has_start, has_tz) = (self.start.is_some(), self.tz.is_some());
        let is_first = self.starts_at().is_some_and(|start| start.eq_ignore_ascii_case("first"));
        match self.source.policy_name() {
            Some(name) if self.buckets.is_some() || self.is_fixed || has_start || has_tz => {
                Err(Error::set_by_policy("kind of window", name))
            }
            _ if has_start && !self.is_fixed => Err(Error::without_fixed("start")),
            _ if has_tz && !self.is_fixed => Err(Error::without_fixed("tz")),
            _ if has_tz && is_first => Err(Error::start_first_and_tz()),
            _ if self.buckets.is_some() && self.is_fixed => Err(Error::buckets_and_fixed()),
            _ => Ok(()),
        }
    }

    fn write_options(&self, command: &mut Command) {
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
pub struct Semaphore(Source<u64>);

impl Semaphore {
    /// Creates a semaphore with at most `limit` held at one time.
    pub const fn new(limit: u64) -> Semaphore {
        Semaphore(Source::Numbers(limit))
    }

    /// Names a policy of the server with the period 0, with or without the `@`.
    pub fn policy(name: &str) -> Semaphore {
        Semaphore(Source::policy(name))
    }
}

/// A limit: [`Rate`], [`Window`] or [`Semaphore`].
pub trait Limit: ToAnyLimit {}

/// A limit that [`Limiter::take`](crate::Limiter::take) takes from: [`Rate`] or [`Window`].
pub trait Take: Limit {}

/// A limit that [`Limiter::acquire`](crate::Limiter::acquire) reserves in: [`Window`] or [`Semaphore`].
pub trait Reserve: Limit {}

impl Limit for Rate {}
impl Limit for Window {}
impl Limit for Semaphore {}
impl Take for Rate {}
impl Take for Window {}
impl Reserve for Window {}
impl Reserve for Semaphore {}

/// Returns a limit without its type. Nothing outside this crate implements it.
#[doc(hidden)]
pub trait ToAnyLimit: Send + Sync + 'static {
    fn to_any(&self) -> AnyLimit;
}

impl ToAnyLimit for Rate {
    fn to_any(&self) -> AnyLimit {
        AnyLimit::Rate(self.clone())
    }
}

impl ToAnyLimit for Window {
    fn to_any(&self) -> AnyLimit {
        AnyLimit::Window(self.clone())
    }
}

impl ToAnyLimit for Semaphore {
    fn to_any(&self) -> AnyLimit {
        AnyLimit::Semaphore(self.clone())
    }
}

/// Any limit.
#[derive(Clone, Debug)]
pub enum AnyLimit {
    /// A rate.
    Rate(Rate),
    /// A window.
    Window(Window),
    /// A semaphore.
    Semaphore(Semaphore),
}

impl AnyLimit {
    /// Returns the name of the command that takes from it.
    pub(crate) fn taking_command(&self) -> &'static str {
        match self {
            AnyLimit::Rate(_) => "RL.THROTTLE",
            _ => "RL.WINDOW",
        }
    }

    /// Returns whether a reservation can only be released.
    pub(crate) fn is_semaphore(&self) -> bool {
        matches!(self, AnyLimit::Semaphore(_))
    }

    /// Returns the name of the policy, if it is one.
    pub(crate) fn policy_name(&self) -> Option<&str> {
        match self {
            AnyLimit::Rate(rate) => rate.source.policy_name(),
            AnyLimit::Window(window) => window.source.policy_name(),
            AnyLimit::Semaphore(Semaphore(source)) => source.policy_name(),
        }
    }

    pub(crate) fn is_policy(&self) -> bool {
        self.policy_name().is_some()
    }

    /// Returns the ban of a denied call.
    pub(crate) fn ban_length(&self) -> Option<Duration> {
        match self {
            AnyLimit::Rate(Rate { ban, .. }) | AnyLimit::Window(Window { ban, .. }) => *ban,
            AnyLimit::Semaphore(_) => None,
        }
    }

    /// Refuses a limit that no server takes.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`].
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self {
            AnyLimit::Rate(rate) => rate.check(),
            AnyLimit::Window(window) => window.check(),
            AnyLimit::Semaphore(_) => Ok(()),
        }
    }

    /// Adds the limit, the quantity and the options to a command; the ban only if `bans` is true.
    pub(crate) fn write(
        &self,
        command: &mut Command,
        quantity: impl Into<i128>,
        options: &Options,
        bans: bool,
    ) {
        match self {
            AnyLimit::Rate(Rate { source: Source::Numbers(numbers), .. }) => {
                let RateNumbers { max_burst, count, period } = *numbers;
                command.number(max_burst).number(count).displayed(period)
            }
            AnyLimit::Window(Window { source: Source::Numbers((limit, period)), .. }) => {
                command.number(*limit).displayed(period)
            }
            AnyLimit::Semaphore(Semaphore(Source::Numbers(limit))) => {
                command.number(*limit).number(0)
            }
            _ => command.arg_parts(&[b"@", self.policy_name().unwrap_or_default().as_bytes()]),
        };
        command.number(quantity);
        if let AnyLimit::Window(window) = self {
            window.write_options(command);
        }
        options.write(command, self.ban_length().filter(|_| bans));
    }
}
