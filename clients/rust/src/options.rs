//! The options of calls and clauses. Each is a field of [`Options`], a line of [`Options::write`], and a method of
//! [`option_methods`].

use std::time::Duration;

use crate::error::Error;
use crate::period::whole_ms;
use crate::reply::Id;
use crate::transport::Command;

/// The options of a call or a clause, which follow the quantity.
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
    /// Zero waits without limit.
    pub block: Option<Duration>,
}

impl Options {
    /// Refuses lengths of 0, and a ban by a call that cannot ban. `reserves` is true if the call reserves.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`].
    pub fn check(&self, ban: Option<Duration>, quantity: i64, reserves: bool) -> Result<(), Error> {
        check_length("lease", self.lease)?;
        check_length("ban", ban)?;
        check_length("ahead", self.ahead)?;
        let excluded = [
            ("a reservation", reserves),
            ("a quantity below 1", quantity < 1),
            ("at_most", self.at_most),
            ("force", self.force),
            ("check", self.check),
            ("ahead", self.ahead.is_some()),
            ("block", self.block.is_some()),
        ];
        match excluded.iter().find(|(_, is_used)| *is_used) {
            Some((what, _)) if ban.is_some() => Err(Error::ban_with(what)),
            _ => Ok(()),
        }
    }

    /// Makes an id, unless the caller gave one.
    ///
    /// # Errors
    ///
    /// [`Error::NoRandomBytes`].
    pub fn make_id(&mut self) -> Result<(), Error> {
        if self.id.is_none() {
            self.id = Some(Id::random()?);
            self.has_made_id = true;
        }
        Ok(())
    }

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
        write_length(command, b"BLOCK", self.block);
    }
}

/// Refuses a length of 0, which no server accepts.
///
/// # Errors
///
/// [`Error::InvalidArgument`].
pub(crate) fn check_length(name: &str, length: Option<Duration>) -> Result<(), Error> {
    match length {
        Some(Duration::ZERO) => Err(Error::length_of_zero(name)),
        _ => Ok(()),
    }
}

fn write_length(command: &mut Command, word: &[u8], length: Option<Duration>) {
    if let Some(length) = length {
        command.arg(word).number(whole_ms(length));
    }
}

fn write_flag(command: &mut Command, word: &[u8], is_set: bool) {
    if is_set {
        command.arg(word);
    }
}

/// Writes the methods of a call or a clause that set these options.
macro_rules! option_methods {
    ($($option:ident),+) => { $(option_methods!(@$option);)+ };
    // A method that sets an option: a flag, or an option with a value.
    (@set $(#[$doc:meta])* $option:ident) => {
        option_methods!(@set $(#[$doc])* $option() = true);
    };
    (@set $(#[$doc:meta])* $option:ident($($given:ident: $type:ty)?) = $value:expr) => {
        $(#[$doc])*
        pub fn $option(mut self $(, $given: $type)?) -> Self {
            self.options().$option = $value;
            self
        }
    };
    (@leave) => { option_methods! { @set
        /// Leaves at least this much for others, such as for calls that are more important.
        #[doc = example!(limiter)]
        /// let window = Window::per("100/min")?;
        /// // A batch job leaves 50 for users.
        /// assert!(!limiter.take("api", &window).quantity(60).leave(50).await?.is_allowed());
        /// assert!(limiter.take("api", &window).quantity(60).await?.is_allowed());
        #[doc = example!(end)]
        leave(leave: u64) = leave
    } };
    (@at_most) => { option_methods! { @set
        /// Takes as much of the quantity as is available, which the reply's `granted` says. The call is denied only if that
        /// is nothing.
        #[doc = example!(limiter)]
        /// let tokens = Window::per("100/min")?;
        /// let reply = limiter.take("tokens", &tokens).quantity(120).at_most().await?;
        /// assert_eq!(reply.granted, Some(100));
        #[doc = example!(end)]
        at_most
    } };
    (@force) => { option_methods! { @set
        /// Counts the quantity even if there is not enough, for what was used and is known only afterwards. Later calls wait
        /// until it is repaid.
        #[doc = example!(limiter)]
        /// let tokens = Window::per("100/min")?;
        /// assert!(limiter.take("tokens", &tokens).quantity(120).force().await?.is_allowed());
        /// assert!(!limiter.take("tokens", &tokens).await?.is_allowed());
        #[doc = example!(end)]
        force
    } };
    (@ahead) => { option_methods! { @set
        /// Takes now what is available within this time. The reply's `wait` says after which time to go on.
        #[doc = example!(limiter)]
        /// let rate = Rate::per("1/min")?;
        /// limiter.take("crawl", &rate).await?;
        /// let turn = limiter.take("crawl", &rate).ahead(Duration::from_secs(300)).await?;
        /// assert!(turn.wait > Some(Duration::from_secs(30)));
        #[doc = example!(end)]
        ahead(longest: Duration) = Some(longest)
    } };
    (@block) => { option_methods! { @set
        /// Waits in line for up to this time, at most a year, instead of being denied. [`Duration::ZERO`] waits without
        /// limit.
        #[doc = example!(limiter)]
        /// let rate = Rate::per("20/s")?.capacity(1)?;
        /// limiter.take("mail", &rate).await?;
        /// // Waits for 50 ms.
        /// assert!(limiter.take("mail", &rate).block(Duration::from_secs(5)).await?.is_allowed());
        #[doc = example!(end)]
        block(longest: Duration) = Some(longest)
    } };
    (@count_denied) => { option_methods! { @set
        /// Counts the call even if it is denied, so that a client that does not pause stays out. Only for a window that is
        /// taken from.
        #[doc = example!(limiter)]
        /// let login = Window::per("1/min")?;
        /// limiter.take("login", &login).await?;
        /// assert!(!limiter.take("login", &login).count_denied().await?.is_allowed());
        /// let state = limiter.info("login").await?.map(|info| info.state);
        /// assert!(matches!(state, Some(KeyState::Window { denied: 1, .. })));
        #[doc = example!(end)]
        count_denied
    } };
    (@lease) => { option_methods! { @set
        /// Sets how long the reservation lasts if it is not renewed, from 1 ms to a year. The server's default is 20 s.
        lease(lease: Duration) = Some(lease)
    } };
    (@count_lapsed) => { option_methods! { @set
        /// Counts the reservation if its lease ends before it is settled.
        #[doc = example!(limiter)]
        /// let (tokens, lease) = (Window::per("100/min")?, Duration::from_millis(1));
        /// let call = limiter.acquire("tokens", &tokens).quantity(60).lease(lease).count_lapsed();
        /// let lapsing = call.renewed(false).await?;
        /// tokio::time::sleep(5 * lease).await;
        /// assert_eq!(limiter.look("tokens", &tokens).await?.remaining, 40);
        #[doc = example!(end)]
        count_lapsed
    } };
    (@id) => { option_methods! { @set
        /// Names the reservation, uniquely within its key. The limiter makes an id if none is given.
        id(id: impl Into<Id>) = Some(id.into())
    } };
    (@check) => { option_methods! { @set
        /// Requires that the limit allows the call, but takes nothing.
        #[doc = example!(limiter)]
        /// let stop = Semaphore::new(1);
        /// let check = || limiter.all([Clause::acquire("{u1}:stop", &stop).check()]);
        /// assert!(check().await?.is_allowed());
        /// // While someone holds the semaphore, calls are denied.
        /// let stopped = limiter.acquire("{u1}:stop", &stop).await?;
        /// assert!(!check().await?.is_allowed());
        #[doc = example!(end)]
        check
    } };
    (@shadow) => { option_methods! { @set
        /// Decides and reports the limit, but never denies the call because of it.
        #[doc = example!(limiter)]
        /// let on_trial = Clause::take("{u1}:tpm", &Window::per("100/min")?).quantity(800).shadow();
        /// let reply = limiter.all([on_trial, Clause::take("{u1}:rpm", &Window::per("60/min")?)]).await?;
        /// assert!(reply.is_allowed() && !reply.answers[0].is_allowed());
        #[doc = example!(end)]
        shadow
    } };
    (@renewed) => {
        /// Sets whether the leases are renewed while the [`Reservation`] lives, three times in the shortest; the default is
        /// true.
        pub fn renewed(mut self, is_renewed: bool) -> Self {
            self.is_renewed = is_renewed;
            self
        }
    };
}
pub(crate) use option_methods;
