//! The headers for the state of limits.

use std::borrow::Cow;
use std::time::Duration;

use crate::limit::{AnyLimit, Limit};
use crate::period::whole_ms;
use crate::{AllReply, Decision, Reply};

/// The longest wait for what others hold.
const HELD_WAIT: Duration = Duration::from_secs(1);

/// The largest integer of RFC 9651.
const MAX_INTEGER: u128 = 999_999_999_999_999;

/// A reply, and what else its headers say.
///
/// ```
/// # use redis_ratelimit_client::{MemoryLimiter, Window};
/// # use redis_ratelimit_client::http::{headers, ReplyWithOptions};
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limit = Window::per("5/min")?.unit("requests")?;
/// let reply = MemoryLimiter::new().take("user:1", &limit).await?;
/// let headers = headers(&[ReplyWithOptions::new(reply).limit(&limit).name("free")]);
/// assert_eq!(headers[0], ("ratelimit-policy", r#""free";q=5;qu="requests";w=60"#.to_owned()));
/// assert_eq!(headers[1], ("ratelimit", r#""free";r=4;t=60"#.to_owned()));
/// assert_eq!(headers[2], ("x-ratelimit-limit", "5".to_owned()));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "it says what to add to a response"]
pub struct ReplyWithOptions {
    reply: AllReply,
    limits: Vec<AnyLimit>,
    names: Vec<String>,
    keys: Vec<Vec<u8>>,
    standard: bool,
    x_ratelimit: bool,
}

impl ReplyWithOptions {
    /// Creates a reply without options, of one limit or of several.
    pub fn new(reply: impl Into<AllReply>) -> ReplyWithOptions {
        ReplyWithOptions {
            reply: reply.into(),
            limits: Vec::new(),
            names: Vec::new(),
            keys: Vec::new(),
            standard: true,
            x_ratelimit: true,
        }
    }

    /// Adds the limit that was asked, for the quota, the window and the unit in `RateLimit-Policy`. A policy is named after
    /// itself. For several limits, call this once for each, in their order. The reply to a call of several limits, or to a
    /// reservation, has them already.
    pub fn limit(mut self, limit: &impl Limit) -> Self {
        self.limits.push(limit.to_any());
        self
    }

    /// Adds the name of the limit in the headers. For several limits, call this once for each, in their order. The default
    /// is the name of the clause, or that of the policy, or `default`, or `limit-1` and so on. The second of a name becomes
    /// `name-2`. What is not printable ASCII is escaped, as in `\u{e4}`.
    pub fn name(mut self, name: &str) -> Self {
        self.names.push(name.to_owned());
        self
    }

    /// Adds the partition key: who or what the quota is for, such as a tenant. Clients see it. For several limits, call this
    /// once for all, or once for each.
    ///
    /// ```
    /// # use redis_ratelimit_client::{MemoryLimiter, Window};
    /// # use redis_ratelimit_client::http::{headers, ReplyWithOptions};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let reply = MemoryLimiter::new().take("user:1", &Window::per("5/min")?).await?;
    /// let headers = headers(&[ReplyWithOptions::new(reply).partition_key("acme")]);
    /// assert_eq!(headers[0], ("ratelimit-policy", r#""default";q=5;pk=:YWNtZQ==:"#.to_owned()));
    /// # Ok(()) }
    /// ```
    pub fn partition_key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.keys.push(key.into());
        self
    }

    /// Sets whether `RateLimit` and `RateLimit-Policy` are written; the default is true.
    pub fn standard(mut self, written: bool) -> Self {
        self.standard = written;
        self
    }

    /// Sets whether `X-RateLimit-*` are written; the default is true.
    pub fn x_ratelimit(mut self, written: bool) -> Self {
        self.x_ratelimit = written;
        self
    }

    /// Returns the reply; for several limits, that of the one that decides.
    pub fn reply(&self) -> &Reply {
        &self.reply
    }

    /// Returns whether the limit of an answer denied the call. Another one that is in shadow, or in a group whose other
    /// limit could have paid, may have a denial as its answer.
    fn has_denied(&self, at: usize, answer: &Reply) -> bool {
        match self.reply.names.get(at) {
            Some(name) => self.reply.denied.contains(name),
            None => !self.reply.is_allowed() && !answer.is_allowed(),
        }
    }

    /// Returns how long a denied client should wait, [`Duration::MAX`] if waiting does not help. That is at most a second if
    /// only others hold what is missing: they may give it back at any time.
    fn wait(&self) -> Duration {
        let wait = |reply: &Reply| match reply.decision {
            Decision::Held => reply.retry_after.map(|wait| wait.min(HELD_WAIT)),
            _ => reply.retry_after,
        };
        let longest = wait(&self.reply).unwrap_or(Duration::MAX);
        let answers = self.reply.answers.iter().enumerate();
        let denied = answers.filter(|(at, answer)| self.has_denied(*at, answer));
        // An answer without a wait may be that of a group whose other limit can be waited for.
        let waits = denied.map(|(_, answer)| wait(answer).unwrap_or(longest));
        waits.max().map_or(longest, |of_answers| longest.min(of_answers))
    }

    fn items(&self) -> impl Iterator<Item = Item<'_>> {
        let is_one = self.reply.answers.len() == 1;
        self.reply.answers.iter().enumerate().map(move |(at, reply)| {
            let asked = self.reply.asked.get(at);
            let limit = self.limits.get(at).or(asked.map(|(_, limit)| limit));
            let policy = limit.and_then(AnyLimit::policy_name);
            let clause = asked.and_then(|(name, _)| name.as_ref());
            let name = match (self.names.get(at).or(clause), policy) {
                (Some(name), _) => escaped(name),
                (_, Some(policy)) => Cow::Borrowed(policy),
                _ if is_one => Cow::Borrowed("default"),
                _ => Cow::Owned(format!("limit-{}", at.saturating_add(1))),
            };
            let key = match self.keys.as_slice() {
                [one] => Some(one.as_slice()),
                each => each.get(at).map(Vec::as_slice),
            };
            Item { name, limit, reply, key, has_denied: self.has_denied(at, reply) }
        })
    }
}

fn escaped(name: &str) -> Cow<'_, str> {
    match name.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        true => Cow::Borrowed(name),
        false => Cow::Owned(name.escape_default().to_string()),
    }
}

/// One limit in the headers, and its state.
pub(super) struct Item<'a> {
    pub name: Cow<'a, str>,
    limit: Option<&'a AnyLimit>,
    reply: &'a Reply,
    key: Option<&'a [u8]>,
    /// True if this limit denied the call.
    pub has_denied: bool,
}

impl Item<'_> {
    /// Returns the item of RateLimit-Policy.
    fn policy(&self) -> String {
        let (quota, window) = self.quota();
        let unit = self.unit().map(|unit| format!(";qu={}", quoted(unit)));
        let window = window.map(|seconds| format!(";w={}", seconds.min(MAX_INTEGER)));
        self.item('q', quota, unit, window)
    }

    /// Returns the item of RateLimit.
    fn standing(&self) -> String {
        let wait = Some(self.seconds_until_more()).filter(|seconds| *seconds > 0);
        let wait = wait.map(|seconds| format!(";t={}", seconds.min(MAX_INTEGER)));
        self.item('r', self.reply.remaining.into(), wait, None)
    }

    fn item(
        &self,
        letter: char,
        number: u128,
        first: Option<String>,
        second: Option<String>,
    ) -> String {
        let key = self.key.map(|key| format!(";pk=:{}:", base64(key)));
        let parameters: String = [first, second, key].into_iter().flatten().collect();
        format!("{};{letter}={}{parameters}", quoted(&self.name), number.min(MAX_INTEGER))
    }

    /// Returns what is counted, if it is not requests.
    fn unit(&self) -> Option<&str> {
        let limit = self.limit?;
        let is_semaphore = limit.is_semaphore() && !limit.is_policy();
        limit.unit.as_deref().or(is_semaphore.then_some("concurrent-requests"))
    }

    /// Returns how much a rate has at once, how much it gives out, and in how many milliseconds. None of them is 0.
    fn flow(&self) -> Option<(u128, u128, u128)> {
        let (max_burst, count, period) = self.limit?.rate_numbers()?;
        // The server refuses a rate without a period.
        let period_ms = period.as_duration().map(whole_ms).filter(|ms| *ms > 0)?;
        let capacity = u128::from(max_burst).saturating_add(1);
        Some((capacity, u128::from(count).max(1), period_ms.into()))
    }

    /// Returns the quota, and the seconds it is for, unless callers give it back, only the server knows, or they are no
    /// whole number, as of months. A client that divides the two never finds a rate below the true one.
    fn quota(&self) -> (u128, Option<u128>) {
        let most = u128::from(self.reply.limit);
        if let Some((capacity, count, ms)) = self.flow() {
            // The time in which the whole bucket fills. A bucket of 1 that gets 3 a second is full after a third of a
            // second: "1 in a second" would be too little.
            let window = capacity.saturating_mul(ms).div_ceil(count.saturating_mul(1000));
            let within = count.saturating_mul(window).saturating_mul(1000).div_ceil(ms);
            return (most.max(within), Some(window));
        }
        let numbers = self.limit.and_then(AnyLimit::window_numbers);
        let ms = numbers.and_then(|(_, period)| period.as_duration()).map_or(0, whole_ms);
        (most, (ms > 0 && ms % 1000 == 0).then_some((ms / 1000).into()))
    }

    /// Returns the wait until more is available in whole seconds, as far as the reply says; 0 if nothing more will be.
    fn seconds_until_more(&self) -> u128 {
        let Reply { limit, remaining, retry_after, reset_after, .. } = *self.reply;
        let denied = retry_after.map(seconds);
        // A ban is a long wait for everything.
        let is_banned = remaining == 0 && retry_after.is_some_and(|wait| wait >= reset_after);
        let Some((_, count, ms)) = self.flow().filter(|_| !is_banned) else {
            return denied.unwrap_or_else(|| seconds(reset_after));
        };
        let Some(others) = limit.saturating_sub(remaining).checked_sub(1) else { return 0 };
        // The bucket is full in reset_after. The next unit is there when all but the others that are missing have come. Both
        // times are rounded up, so one may be a millisecond behind the other.
        let others = u128::from(others).saturating_mul(ms);
        let left = reset_after.as_millis().saturating_mul(count).saturating_sub(others);
        let exact = left.div_ceil(count.saturating_mul(1000)).max(1);
        // What was denied may have been more than one.
        denied.map_or(exact, |denied| denied.min(exact))
    }
}

/// Returns whole seconds, rounded up, so that waiting for them is enough.
fn seconds(wait: Duration) -> u128 {
    wait.as_millis().div_ceil(1000)
}

/// Returns a String of RFC 9651.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

pub(super) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for (at, shift) in [18, 12, 6, 0].into_iter().enumerate() {
            let digit = DIGITS.get((bits >> shift & 63) as usize).filter(|_| at <= chunk.len());
            text.push(digit.map_or('=', |digit| char::from(*digit)));
        }
    }
    text
}

/// Returns the items of all answers that somebody decided, each with its reply. No two have the same name.
pub(super) fn named(replies: &[ReplyWithOptions]) -> Vec<(&ReplyWithOptions, Item<'_>)> {
    let mut found: Vec<(&ReplyWithOptions, Item<'_>)> = Vec::new();
    for each in replies.iter().filter(|each| each.reply.decided) {
        for mut item in each.items() {
            let base = item.name.clone();
            let mut number = 1;
            while found.iter().any(|(_, other)| other.name == item.name) {
                number = u64::saturating_add(number, 1);
                item.name = Cow::Owned(format!("{base}-{number}"));
            }
            found.push((each, item));
        }
    }
    found
}

/// Returns the reply that a client has to follow: the one that denies longest, or else the one with the least left.
pub(super) fn tightest<'a>(
    replies: impl Iterator<Item = &'a ReplyWithOptions>,
) -> Option<&'a ReplyWithOptions> {
    // The first of those that are alike.
    replies.reduce(|best, each| {
        let is_tighter = match (best.reply.is_allowed(), each.reply.is_allowed()) {
            (true, true) => each.reply.remaining < best.reply.remaining,
            (false, false) => each.wait() > best.wait(),
            (is_allowed, _) => is_allowed,
        };
        if is_tighter {
            each
        } else {
            best
        }
    })
}

/// Returns one set of headers for all limits of a request, such as those of a middleware and of a route: names in lower
/// case, with their values.
///
/// `RateLimit` and `RateLimit-Policy` have an item for each limit, no two with one name. `X-RateLimit-*` describe the
/// tightest limit: the one that denies longest, or else the one with the least left. `Retry-After` comes with a denial that
/// has an end: after this many seconds all limits that deny have room. A reply that nobody decided adds nothing.
///
/// ```
/// # use redis_ratelimit_client::{MemoryLimiter, Window};
/// # use redis_ratelimit_client::http::{headers, ReplyWithOptions};
/// # use std::time::Duration;
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = MemoryLimiter::new();
/// let site = limiter.take("site", &Window::per("100/min")?).await?;
/// let user = limiter.take("user:1", &Window::new(0, Duration::from_secs(60))).await?;
/// let headers = headers(&[
///     ReplyWithOptions::new(site).name("site"),
///     ReplyWithOptions::new(user).name("user"),
/// ]);
/// assert_eq!(headers[0], ("ratelimit-policy", r#""site";q=100, "user";q=0"#.to_owned()));
/// assert_eq!(headers[2], ("x-ratelimit-limit", "0".to_owned()));
/// # Ok(()) }
/// ```
pub fn headers(replies: &[ReplyWithOptions]) -> Vec<(&'static str, String)> {
    let mut found = Vec::with_capacity(6);
    let named = named(replies);
    let items = named.iter().filter(|(each, _)| each.standard);
    let (policies, standings): (Vec<_>, Vec<_>) =
        items.map(|(_, item)| (item.policy(), item.standing())).unzip();
    if !policies.is_empty() {
        found.push(("ratelimit-policy", policies.join(", ")));
        found.push(("ratelimit", standings.join(", ")));
    }
    let decided = || replies.iter().filter(|each| each.reply.decided);
    if let Some(ReplyWithOptions { reply, .. }) =
        tightest(decided().filter(|each| each.x_ratelimit))
    {
        found.push(("x-ratelimit-limit", reply.limit.to_string()));
        found.push(("x-ratelimit-remaining", reply.remaining.to_string()));
        found.push(("x-ratelimit-reset", seconds(reply.reset_after).to_string()));
    }
    let decides = tightest(decided()).filter(|each| !each.reply.is_allowed());
    if let Some(each) = decides.filter(|each| each.reply.retry_after.is_some()) {
        found.push(("retry-after", seconds(each.wait()).to_string()));
    }
    found
}
