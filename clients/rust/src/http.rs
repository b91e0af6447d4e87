//! HTTP headers for the state of limits, and the problem details of a denial.
//!
//! [`client_address`] returns the address of a client for a key. [`headers`] writes `RateLimit` and `RateLimit-Policy` of draft-ietf-httpapi-ratelimit-headers-10, `X-RateLimit-Limit`,
//! `X-RateLimit-Remaining` and `X-RateLimit-Reset`, and `Retry-After`. [`Problem`] is the body of a denial, as RFC 9457
//! defines it.

use std::borrow::Cow;
use std::fmt::Write;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use crate::limit::{AnyLimit, Limit};
use crate::period::whole_ms;
use crate::{AllReply, Decision, Error, Reply};

/// The media type of a [`Problem`].
pub const PROBLEM_TYPE: &str = "application/problem+json";

/// The longest wait for what others hold.
const HELD_WAIT: Duration = Duration::from_secs(1);

/// The largest integer of RFC 9651.
const MAX_INTEGER: u128 = 999_999_999_999_999;

/// A reply, and what else its headers say.
#[doc = example!(bare)]
/// let limit = Window::per("5/min")?.unit("requests")?;
/// let reply = MemoryLimiter::new().take("user:1", &limit).await?;
/// let headers = headers(&[ReplyWithOptions::new(reply).limit(&limit).name("free")?]);
/// assert_eq!(headers[0], ("ratelimit-policy", r#""free";q=5;qu="requests";w=60"#.to_owned()));
/// assert_eq!(headers[1], ("ratelimit", r#""free";r=4;t=60"#.to_owned()));
/// assert_eq!(headers[2], ("x-ratelimit-limit", "5".to_owned()));
#[doc = example!(end)]
#[derive(Clone, Debug)]
pub struct ReplyWithOptions {
    reply: AllReply,
    limits: Vec<Arc<AnyLimit>>,
    names: Vec<Option<String>>,
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
    /// itself. For several limits, call this once for each, in their order.
    #[must_use]
    pub fn limit(self, limit: &impl Limit) -> Self {
        self.any_limit(Arc::new(limit.to_any()))
    }

    pub(crate) fn any_limit(mut self, limit: Arc<AnyLimit>) -> Self {
        self.limits.push(limit);
        self
    }

    /// Adds the name of a clause, with what is not printable ASCII escaped, or the place of a name if it has none.
    #[cfg(feature = "tower")]
    pub(crate) fn clause_name(mut self, name: Option<String>) -> Self {
        let escaped = |name: String| match is_name(&name) {
            true => name,
            false => name.escape_default().to_string(),
        };
        self.names.push(name.map(escaped));
        self
    }

    /// Adds the name of the limit in the headers. For several limits, call this once for each, in their order. The default
    /// is the name of the policy, or `default`, or `limit-1` and so on. The second of a name becomes `name-2`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a name that is not printable ASCII.
    pub fn name(mut self, name: impl Into<String>) -> Result<Self, Error> {
        self.names.push(Some(checked_name(name.into())?));
        Ok(self)
    }

    /// Adds the partition key: who or what the quota is for, such as a tenant. Clients see it. For several limits, call this
    /// once for all, or once for each.
    #[doc = example!(bare)]
    /// let reply = MemoryLimiter::new().take("user:1", &Window::per("5/min")?).await?;
    /// let headers = headers(&[ReplyWithOptions::new(reply).partition_key("acme")]);
    /// assert_eq!(headers[0], ("ratelimit-policy", r#""default";q=5;pk=:YWNtZQ==:"#.to_owned()));
    #[doc = example!(end)]
    #[must_use]
    pub fn partition_key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.keys.push(key.into());
        self
    }

    /// Sets whether `RateLimit` and `RateLimit-Policy` are written; the default is true.
    #[must_use]
    pub fn standard(mut self, written: bool) -> Self {
        self.standard = written;
        self
    }

    /// Sets whether `X-RateLimit-*` are written; the default is true.
    #[must_use]
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
            let limit = self.limits.get(at).map(AsRef::as_ref);
            let policy = limit.and_then(AnyLimit::policy_name);
            let name = match (self.names.get(at), policy) {
                (Some(Some(name)), _) => Cow::Borrowed(name.as_str()),
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

/// Returns whether a name is valid in HTTP headers.
fn is_name(name: &str) -> bool {
    name.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

pub(crate) fn checked_name(name: String) -> Result<String, Error> {
    if is_name(&name) {
        Ok(name)
    } else {
        Err(Error::header_name(&name))
    }
}

/// One limit in the headers, and its state.
struct Item<'a> {
    name: Cow<'a, str>,
    limit: Option<&'a AnyLimit>,
    reply: &'a Reply,
    key: Option<&'a [u8]>,
    /// True if this limit denied the call.
    has_denied: bool,
}

impl Item<'_> {
    /// Writes the item of RateLimit-Policy.
    fn write_policy(&self, text: &mut String) {
        let (quota, window) = self.quota();
        write_string(text, &self.name);
        let _ = write!(text, ";q={}", quota.min(MAX_INTEGER));
        if let Some(unit) = self.unit() {
            text.push_str(";qu=");
            write_string(text, unit);
        }
        if let Some(window) = window {
            let _ = write!(text, ";w={}", window.min(MAX_INTEGER));
        }
        self.write_key(text);
    }

    /// Writes the item of RateLimit.
    fn write_standing(&self, text: &mut String) {
        write_string(text, &self.name);
        let _ = write!(text, ";r={}", u128::from(self.reply.remaining).min(MAX_INTEGER));
        let wait = self.seconds_until_more();
        if wait > 0 {
            let _ = write!(text, ";t={}", wait.min(MAX_INTEGER));
        }
        self.write_key(text);
    }

    fn write_key(&self, text: &mut String) {
        if let Some(key) = self.key {
            text.push_str(";pk=:");
            write_base64(text, key);
            text.push(':');
        }
    }

    /// Returns what is counted, if it is not requests.
    fn unit(&self) -> Option<&str> {
        match self.limit? {
            AnyLimit::Window(window) => window.counted_unit(),
            limit => (limit.is_semaphore() && !limit.is_policy()).then_some("concurrent-requests"),
        }
    }

    /// Returns how much a rate gives out, and in how many milliseconds. Neither is 0.
    fn flow(&self) -> Option<(u128, u128)> {
        let Some(AnyLimit::Rate(rate)) = self.limit else { return None };
        let (_, count, period) = rate.numbers()?;
        // The server refuses a rate without a period.
        let period_ms = period.as_duration().map(whole_ms).filter(|ms| *ms > 0)?;
        Some((u128::from(count).max(1), period_ms.into()))
    }

    /// Returns the quota, and the seconds it is for, unless callers give it back, only the server knows, or they are no
    /// whole number, as of months. A client that divides the two never finds a rate below the true one.
    fn quota(&self) -> (u128, Option<u128>) {
        let most = u128::from(self.reply.limit);
        match (self.limit, self.flow()) {
            (Some(AnyLimit::Rate(rate)), Some((count, ms))) => {
                // The time in which the whole bucket fills. A bucket of 1 that gets 3 a second is full after a third of a
                // second: "1 in a second" would be too little.
                let burst = rate.numbers().map_or(0, |(max_burst, ..)| max_burst);
                let capacity = u128::from(burst).saturating_add(1);
                let window = capacity.saturating_mul(ms).div_ceil(count.saturating_mul(1000));
                let within = count.saturating_mul(window).saturating_mul(1000).div_ceil(ms);
                (most.max(within), Some(window))
            }
            (Some(AnyLimit::Window(window)), _) => {
                let length = window.numbers().and_then(|(_, period)| period.as_duration());
                let ms = length.map_or(0, whole_ms);
                (most, (ms > 0 && ms % 1000 == 0).then_some((ms / 1000).into()))
            }
            _ => (most, None),
        }
    }

    /// Returns the wait until more is available in whole seconds, as far as the reply says; 0 if nothing more will be.
    fn seconds_until_more(&self) -> u128 {
        let Reply { limit, remaining, retry_after, reset_after, .. } = *self.reply;
        let denied = retry_after.map(seconds);
        // A ban is a long wait for everything.
        let is_banned = remaining == 0 && retry_after.is_some_and(|wait| wait >= reset_after);
        let Some((count, ms)) = self.flow().filter(|_| !is_banned) else {
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

/// Writes a String of RFC 9651.
fn write_string(text: &mut String, value: &str) {
    text.push('"');
    for letter in value.chars() {
        if matches!(letter, '"' | '\\') {
            text.push('\\');
        }
        text.push(letter);
    }
    text.push('"');
}

fn write_base64(text: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for (at, shift) in [18, 12, 6, 0].into_iter().enumerate() {
            let digit = DIGITS.get((bits >> shift & 63) as usize).filter(|_| at <= chunk.len());
            text.push(digit.map_or('=', |digit| char::from(*digit)));
        }
    }
}

/// Returns the items of all answers of a server, each with its reply. No two have the same name.
fn named(replies: &[ReplyWithOptions]) -> Vec<(&ReplyWithOptions, Item<'_>)> {
    let mut found: Vec<(&ReplyWithOptions, Item<'_>)> = Vec::new();
    for each in replies.iter().filter(|each| each.reply.reachable) {
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
pub(crate) fn tightest<'a>(
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
/// has an end: after this many seconds all limits that deny have room. A reply from when Redis could not be reached adds
/// nothing.
#[doc = example!(limiter)]
/// let site = limiter.take("site", &Window::per("100/min")?).await?;
/// let user = limiter.take("user:1", &Window::new(0, Duration::from_secs(60))).await?;
/// let headers = headers(&[
///     ReplyWithOptions::new(site).name("site")?,
///     ReplyWithOptions::new(user).name("user")?,
/// ]);
/// assert_eq!(headers[0], ("ratelimit-policy", r#""site";q=100, "user";q=0"#.to_owned()));
/// assert_eq!(headers[2], ("x-ratelimit-limit", "0".to_owned()));
#[doc = example!(end)]
pub fn headers(replies: &[ReplyWithOptions]) -> Vec<(&'static str, String)> {
    let mut found = Vec::with_capacity(6);
    let (mut policies, mut standings) = (String::new(), String::new());
    for (_, item) in named(replies).iter().filter(|(each, _)| each.standard) {
        if !policies.is_empty() {
            policies.push_str(", ");
            standings.push_str(", ");
        }
        item.write_policy(&mut policies);
        item.write_standing(&mut standings);
    }
    if !policies.is_empty() {
        found.push(("ratelimit-policy", policies));
        found.push(("ratelimit", standings));
    }
    let reached = || replies.iter().filter(|each| each.reply.reachable);
    if let Some(ReplyWithOptions { reply, .. }) =
        tightest(reached().filter(|each| each.x_ratelimit))
    {
        found.push(("x-ratelimit-limit", reply.limit.to_string()));
        found.push(("x-ratelimit-remaining", reply.remaining.to_string()));
        found.push(("x-ratelimit-reset", seconds(reply.reset_after).to_string()));
    }
    let decides = tightest(reached()).filter(|each| !each.reply.is_allowed());
    if let Some(each) = decides.filter(|each| each.reply.retry_after.is_some()) {
        found.push(("retry-after", seconds(each.wait()).to_string()));
    }
    found
}

/// Returns the address of a client as a part of a key; of an IPv6 address only the network, such as `2001:db8:1:2::/64`.
///
/// A client of IPv6 usually has a whole /64, and could send each request from another address of it. `ipv6_prefix` is the
/// length of the network: 64, 128 for the address, or 56 or 48 for the networks that some providers assign. An IPv4 address
/// that is mapped to IPv6 is returned as IPv4.
///
/// `peer` is the address that the connection comes from, `None` if it has none, as on a Unix socket. `forwarded_for` are the
/// values of `X-Forwarded-For`. `proxies` is the number of proxies in front of the program, each of which adds to the header
/// where its request came from. What stands before that in the header is whatever the client wrote, and is ignored. If the
/// header has no address in that place, the nearest proxy that has one counts as the client. Without any address the result
/// is empty, so that all such clients share a key.
#[doc = example!(bare)]
/// use std::net::{IpAddr, Ipv6Addr};
///
/// let proxy = IpAddr::V6(Ipv6Addr::LOCALHOST);
/// let sent = ["192.0.2.66", "192.0.2.67, 2001:db8:1:2::7"];
/// assert_eq!(client_address(Some(proxy), sent, 1, 64), "2001:db8:1:2::/64");
/// assert_eq!(client_address(Some(proxy), sent, 0, 128), "::1");
#[doc = example!(end)]
pub fn client_address<'a>(
    peer: Option<IpAddr>,
    forwarded_for: impl IntoIterator<Item = &'a str>,
    proxies: usize,
    ipv6_prefix: u8,
) -> String {
    let values = forwarded_for.into_iter().flat_map(|value| value.split(',')).map(str::trim);
    let hops: Vec<_> = values.filter(|hop| !hop.is_empty()).collect();
    let trusted = hops.get(hops.len().saturating_sub(proxies)..).unwrap_or_default();
    let found = trusted.iter().find_map(|hop| parse_hop(hop)).or(peer);
    match found.map(|address| address.to_canonical()) {
        None => String::new(),
        Some(IpAddr::V6(address)) if ipv6_prefix < 128 => {
            let mask = !u128::MAX.checked_shr(ipv6_prefix.into()).unwrap_or_default();
            format!("{}/{ipv6_prefix}", Ipv6Addr::from(u128::from(address) & mask))
        }
        Some(address) => address.to_string(),
    }
}

/// Reads an address as proxies write it: perhaps with a port, in brackets, or with the zone of a link-local address.
fn parse_hop(hop: &str) -> Option<IpAddr> {
    let parse_v6 = |text: &str| {
        let (address, _zone) = text.split_once('%').unwrap_or((text, ""));
        address.parse().ok().map(IpAddr::V6)
    };
    let is_port = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if let Some((address, rest)) = hop.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let is_whole = rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port);
        return parse_v6(address).filter(|_| is_whole);
    }
    let address = match hop.split_once(':') {
        Some((address, port)) if is_port(port) => address,
        _ => hop,
    };
    address.parse().ok().map(IpAddr::V4).or_else(|| parse_v6(hop))
}

/// The body of the response to a request that was denied, and its status. Its `Display` is JSON, to be sent as
/// [`PROBLEM_TYPE`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    kind: ProblemKind,
    /// The names of the limits that denied.
    violated: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProblemKind {
    Quota,
    Capacity,
    Internal,
}

impl Problem {
    /// Returns the problem of a request that these replies deny; `None` if they allow it.
    ///
    /// A denial by a limit is `quota-exceeded` with status 429, and names the limits that deny. If one was denied because
    /// Redis could not be reached, it is [`Problem::reduced_capacity`].
    #[doc = example!(limiter)]
    /// let window = Window::per("1/min")?;
    /// let allowed = ReplyWithOptions::new(limiter.take("user:1", &window).await?);
    /// assert_eq!(Problem::of(&[allowed]), None);
    /// let denied = ReplyWithOptions::new(limiter.take("user:1", &window).await?);
    /// assert!(Problem::of(&[denied]).is_some_and(|problem| problem.status() == 429));
    #[doc = example!(end)]
    pub fn of(replies: &[ReplyWithOptions]) -> Option<Problem> {
        let mut denied = replies.iter().filter(|each| !each.reply.is_allowed()).peekable();
        denied.peek()?;
        if denied.any(|each| !each.reply.reachable) {
            return Some(Problem::reduced_capacity());
        }
        let violated = named(replies).into_iter().filter(|(_, item)| item.has_denied);
        let violated = violated.map(|(_, item)| item.name.into_owned()).collect();
        Some(Problem { kind: ProblemKind::Quota, violated })
    }

    /// Creates the problem of a request that no server could decide, because Redis could not be reached or had no time for
    /// it ([`Error::Busy`]): `temporary-reduced-capacity` with status 503.
    pub fn reduced_capacity() -> Problem {
        Problem { kind: ProblemKind::Capacity, violated: Vec::new() }
    }

    /// Creates the problem of a request that could not be decided because the program or the setup is wrong: status 500.
    pub fn internal() -> Problem {
        Problem { kind: ProblemKind::Internal, violated: Vec::new() }
    }

    /// Returns the status of the response: 429, 503, or 500 if the program or the setup is wrong.
    pub fn status(&self) -> u16 {
        match self.kind {
            ProblemKind::Quota => 429,
            ProblemKind::Capacity => 503,
            ProblemKind::Internal => 500,
        }
    }

    /// Returns the names of the limits that denied.
    pub fn violated_policies(&self) -> &[String] {
        &self.violated
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const TYPES: &str = "https://iana.org/assignments/http-problem-types";
        let title = match self.kind {
            ProblemKind::Quota => "Request cannot be satisfied as assigned quota has been exceeded",
            ProblemKind::Capacity => {
                "Request cannot be satisfied due to temporary server capacity constraints"
            }
            ProblemKind::Internal => {
                let title = "Internal Server Error";
                return write!(f, r#"{{"type":"about:blank","title":"{title}","status":500}}"#);
            }
        };
        let name = match self.kind {
            ProblemKind::Quota => "quota-exceeded",
            _ => "temporary-reduced-capacity",
        };
        let mut violated = String::new();
        for name in &self.violated {
            if !violated.is_empty() {
                violated.push(',');
            }
            // In JSON a string of printable ASCII is written as in RFC 9651.
            write_string(&mut violated, name);
        }
        let status = self.status();
        write!(
            f,
            "{{\"type\":\"{TYPES}#{name}\",\"title\":\"{title}\",\"status\":{status},\"violated-policies\":[{violated}]}}"
        )
    }
}

#[cfg(test)]
mod tests;
