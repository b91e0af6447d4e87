//! The replies to the commands.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use crate::clause::Options;
use crate::limit::AnyLimit;
use crate::transport::Value;
use crate::Error;

/// The decision about a call.
///
/// ```
/// # use redis_ratelimit_client::{Decision, Held, MemoryLimiter, Semaphore};
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = MemoryLimiter::new();
/// let jobs = Semaphore::new(1);
/// let permit = limiter.acquire("jobs", &jobs).await?;
/// // Others hold the only place, and may give it back.
/// assert_eq!(limiter.look("jobs", &jobs).await?.decision, Decision::Held);
/// // More than there will ever be.
/// assert_eq!(limiter.look("jobs", &jobs).quantity(2).await?.decision, Decision::Denied);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// It took what it asked for.
    Allowed,
    /// It took nothing.
    Denied,
    /// It took nothing, only because others hold the capacity, or wait for it, and may give it back: wait with `block`
    /// rather than coming back later. Only for reservations.
    Held,
}

/// The answer to a call that asks a limit.
///
/// ```
/// # use redis_ratelimit_client::{MemoryLimiter, Window};
/// # use std::time::Duration;
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = MemoryLimiter::new();
/// let window = Window::per("5/min")?;
/// let reply = limiter.take("user:1", &window).quantity(5).await?;
/// assert_eq!((reply.remaining, reply.limit), (0, 5));
/// let denied = limiter.take("user:1", &window).await?;
/// assert!(denied.retry_after > Some(Duration::from_secs(30)));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "the call may have been denied"]
pub struct Reply {
    /// The decision about the call.
    pub decision: Decision,
    /// The most that is available at once.
    pub limit: u64,
    /// The quantity that is left after this call.
    pub remaining: u64,
    /// The wait after which the same call is allowed, if no other takes anything. `None` if it was allowed, or never can be.
    pub retry_after: Option<Duration>,
    /// The wait until the bucket is full, or the window has no event and no reservation, and no ban runs.
    pub reset_after: Duration,
    /// The quantity that was taken, with `at_most`.
    pub granted: Option<u64>,
    /// The number of live reservations of the key, for a reservation with `at_most`.
    pub reservations: Option<u64>,
    /// The id of the reservation. `None` if nothing was reserved.
    pub id: Option<Id>,
    /// The wait after which the caller may go on, with `ahead`. `None` if it was denied.
    pub wait: Option<Duration>,
    /// False if no server answered, so that [`Unreachable`](crate::Unreachable) applied.
    pub reachable: bool,
    /// False if nobody decided: no server answered, and [`Unreachable`](crate::Unreachable) allows or denies every call.
    pub decided: bool,
}

impl Reply {
    /// Returns whether the call was allowed.
    pub fn is_allowed(&self) -> bool {
        self.decision == Decision::Allowed
    }

    /// Returns the answer in the place of an unreachable server.
    pub(crate) fn unreached(is_allowed: bool) -> Reply {
        Reply {
            decision: if is_allowed { Decision::Allowed } else { Decision::Denied },
            limit: 0,
            remaining: 0,
            retry_after: None,
            reset_after: Duration::ZERO,
            granted: None,
            reservations: None,
            id: None,
            wait: None,
            reachable: false,
            decided: false,
        }
    }

    /// Reads the five integers that all replies begin with.
    pub(crate) fn read(value: &Value) -> Result<Reply, Error> {
        let [limited, limit, remaining, retry_after, reset_after] = fields(value)?;
        Ok(Reply {
            decision: match integer(limited)? {
                0 => Decision::Allowed,
                2 => Decision::Held,
                _ => Decision::Denied,
            },
            limit: count(limit)?,
            remaining: count(remaining)?,
            retry_after: time(retry_after)?,
            reset_after: time(reset_after)?.unwrap_or_default(),
            reachable: true,
            decided: true,
            ..Reply::unreached(false)
        })
    }

    /// Reads the reply to a call with these options. Only the reply of RL.ACQUIRE has an id.
    pub(crate) fn read_with(
        value: &Value,
        has_id: bool,
        options: &Options,
    ) -> Result<Reply, Error> {
        let mut reply = Reply::read(value)?;
        if has_id {
            reply.id = read_id(element(value, 5)?)?;
        }
        if options.at_most {
            reply.granted = Some(count(element(value, if has_id { 6 } else { 5 })?)?);
            reply.reservations = has_id.then(|| count(element(value, 7)?)).transpose()?;
        } else if options.ahead.is_some() {
            reply.wait = time(element(value, 5)?)?;
        }
        Ok(reply)
    }
}

/// The answer to a call that asks several limits: that of the limit that decides, to which this dereferences, and each
/// limit's own.
///
/// ```
/// # use redis_ratelimit_client::{Clause, MemoryLimiter, Window};
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = MemoryLimiter::new();
/// let requests = Clause::take("{u1}:rpm", &Window::per("60/min")?);
/// let tokens = Clause::take("{u1}:tpm", &Window::per("1000/min")?).quantity(800);
/// let reply = limiter.all([requests, tokens]).await?;
/// assert_eq!(reply.paid, ["{u1}:rpm", "{u1}:tpm"]);
/// // The second has less left for calls of this kind, so it decides.
/// assert_eq!((reply.clause, reply.remaining, reply.answers[0].remaining), (2, 200, 59));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "the call may have been denied"]
pub struct AllReply {
    /// The answer of the call.
    pub reply: Reply,
    /// The number of the limit that decides, from 1; 0 if the server could not be reached.
    pub clause: usize,
    /// Each limit's own answer, in their order, those of a group one after the other: the first of a group that is allowed
    /// is the one that took. Empty if the server could not be reached.
    pub answers: Vec<Reply>,
    /// The names of the limits that took, in their order; of a group one at most. Empty if the call was denied, or the
    /// server could not be reached.
    pub paid: Vec<String>,
    /// The names of the limits that denied the call, in their order; of a group that denied, those of all its limits. Empty
    /// if the call was allowed. A policy that is in shadow on the server is named too, because the client cannot tell.
    pub denied: Vec<String>,
    /// The names of all limits, in the order of `answers`. Empty for a single limit.
    pub names: Vec<String>,
    /// The limits in the order of `answers`, each with the name that the caller gave it, for the headers of HTTP. Empty if
    /// they are not known.
    pub(crate) asked: Vec<(Option<String>, AnyLimit)>,
}

impl Deref for AllReply {
    type Target = Reply;

    fn deref(&self) -> &Reply {
        &self.reply
    }
}

impl AllReply {
    /// Creates a reply without names.
    pub(crate) fn new(reply: Reply, clause: usize, answers: Vec<Reply>) -> AllReply {
        let (paid, denied, names) = (Vec::new(), Vec::new(), Vec::new());
        AllReply { reply, clause, answers, paid, denied, names, asked: Vec::new() }
    }

    pub(crate) fn unreached(is_allowed: bool) -> AllReply {
        AllReply::new(Reply::unreached(is_allowed), 0, Vec::new())
    }

    /// Reads the reply of RL.ALL, which has no names.
    pub(crate) fn read(value: &Value) -> Result<AllReply, Error> {
        let clause = usize::try_from(integer(element(value, 5)?)?).unwrap_or(0);
        // Only the answer of ACQUIRE has a sixth element, its id.
        let read = |answer: &Value| match element(answer, 5) {
            Ok(id) => Ok(Reply { id: read_id(id)?, ..Reply::read(answer)? }),
            Err(_) => Reply::read(answer),
        };
        let answers = array(element(value, 6)?)?.iter().map(read).collect::<Result<_, _>>()?;
        Ok(AllReply::new(Reply::read(value)?, clause, answers))
    }
}

impl From<Reply> for AllReply {
    /// Creates the reply of a single limit, without names.
    fn from(reply: Reply) -> AllReply {
        AllReply::new(reply.clone(), 1, vec![reply])
    }
}

/// The id of a reservation, unique within its key.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(Box<[u8]>);

impl Id {
    /// A random id of 96 bits.
    pub(crate) fn random() -> Result<Id, Error> {
        const LETTERS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|_| Error::NoRandomBytes)?;
        let letter = |byte: u8| LETTERS.get(usize::from(byte & 63)).copied().unwrap_or(b'A');
        Ok(Id(Box::new(bytes.map(letter))))
    }
}

impl AsRef<[u8]> for Id {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl<T: AsRef<[u8]> + ?Sized> From<&T> for Id {
    fn from(id: &T) -> Id {
        Id(id.as_ref().into())
    }
}

impl From<String> for Id {
    fn from(id: String) -> Id {
        Id(id.into_bytes().into())
    }
}

impl PartialEq<str> for Id {
    fn eq(&self, other: &str) -> bool {
        *self.0 == *other.as_bytes()
    }
}

impl PartialEq<&str> for Id {
    fn eq(&self, other: &&str) -> bool {
        self == *other
    }
}

impl fmt::Display for Id {
    /// Bytes that are no UTF-8 are replaced.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Id({:?})", self.to_string())
    }
}

/// A live reservation, from [`Limiter::held`](crate::Limiter::held).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// Its id.
    pub id: Id,
    /// The units that it holds.
    pub quantity: u64,
    /// The time until its lease ends.
    pub left: Duration,
}

/// The state of a key, from [`Limiter::info`](crate::Limiter::info).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyInfo {
    /// The state of its limit, by the kind of limit.
    pub state: KeyState,
    /// The time until its ban ends; zero without a ban.
    pub ban: Duration,
    /// Calls that wait for the key.
    pub waiting: u64,
    /// The key's time to live.
    pub ttl: Duration,
}

/// The content of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyState {
    /// The bucket of a rate.
    #[non_exhaustive]
    Bucket {
        /// The time until it is full.
        full_in: Duration,
        /// The debt beyond an empty bucket, as a time, when it was last written.
        debt: Duration,
    },
    /// The events and the reservations of a window, or of a semaphore.
    #[non_exhaustive]
    Window {
        /// Events, including those that have ended but are still stored.
        events: u64,
        /// The number of events that are denied calls.
        denied: u64,
        /// Entries that keep the events.
        entries: u64,
        /// The age of the oldest event. `None` without events.
        oldest: Option<Duration>,
        /// The age of the newest event. `None` without events.
        newest: Option<Duration>,
        /// Units that reservations hold.
        held: u64,
        /// The number of reservations.
        reservations: u64,
    },
}

/// A key that was denied often, from [`Limiter::top`](crate::Limiter::top).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopKey {
    /// The key, of which the server keeps 256 bytes.
    pub key: Vec<u8>,
    /// Its database.
    pub db: u64,
    /// The number of denied calls: at most `over` too many, and never too few.
    pub denials: u64,
    /// See `denials`.
    pub over: u64,
}

/// A policy of the server, from [`Limiter::policies`](crate::Limiter::policies).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// Its name, without the `@`.
    pub name: String,
    /// Its kind and numbers, as in the server's setting.
    pub definition: String,
    /// The number of calls that it allowed.
    pub allowed: u64,
    /// The number of calls that it denied.
    pub denied: u64,
    /// The number of calls that it would have denied without SHADOW.
    pub shadow_denied: u64,
}

pub(crate) fn read_held(value: &Value) -> Result<Vec<Held>, Error> {
    let read = |each: &Value| {
        let [id, quantity, left] = fields(each)?;
        let left = time(left)?.unwrap_or_default();
        Ok(Held { id: Id(bytes(id)?.into()), quantity: count(quantity)?, left })
    };
    array(value)?.iter().map(read).collect()
}

pub(crate) fn read_info(value: &Value) -> Result<Option<KeyInfo>, Error> {
    let pairs = array(value)?;
    if pairs.is_empty() {
        return Ok(None);
    }
    let field = |name: &str| {
        let is_name =
            |pair: &&[Value]| matches!(pair, [Value::Bytes(found), _] if found == name.as_bytes());
        match pairs.chunks(2).find(is_name) {
            Some([_, value]) => Ok(value),
            _ => Err(Error::unexpected(name, value)),
        }
    };
    let count = |name: &str| count(field(name)?);
    let age = |name: &str| time(field(name)?);
    let length = |name: &str| Ok::<_, Error>(age(name)?.unwrap_or_default());
    let state = match bytes(field("kind")?)? {
        b"bucket" => KeyState::Bucket { full_in: length("full_in")?, debt: length("debt")? },
        b"window" => KeyState::Window {
            events: count("events")?,
            denied: count("denied")?,
            entries: count("entries")?,
            oldest: age("oldest")?,
            newest: age("newest")?,
            held: count("held")?,
            reservations: count("reservations")?,
        },
        _ => return Err(Error::unexpected("a kind", value)),
    };
    let (ban, ttl) = (length("ban")?, length("ttl")?);
    Ok(Some(KeyInfo { state, ban, waiting: count("waiting")?, ttl }))
}

pub(crate) fn read_top(value: &Value) -> Result<Vec<TopKey>, Error> {
    let read = |each: &Value| {
        let [key, db, denials, over] = fields(each)?;
        Ok(TopKey {
            key: bytes(key)?.to_vec(),
            db: count(db)?,
            denials: count(denials)?,
            over: count(over)?,
        })
    };
    array(value)?.iter().map(read).collect()
}

pub(crate) fn read_policies(value: &Value) -> Result<Vec<Policy>, Error> {
    let read = |each: &Value| {
        let [name, definition, allowed, denied, shadow_denied] = fields(each)?;
        Ok(Policy {
            name: text(name)?,
            definition: text(definition)?,
            allowed: count(allowed)?,
            denied: count(denied)?,
            shadow_denied: count(shadow_denied)?,
        })
    };
    array(value)?.iter().map(read).collect()
}

fn read_id(value: &Value) -> Result<Option<Id>, Error> {
    Ok(match value {
        Value::Nil => None,
        Value::Integer(id) => Some(Id::from(id.to_string())),
        _ => Some(Id(bytes(value)?.into())),
    })
}

pub(crate) fn array(value: &Value) -> Result<&[Value], Error> {
    match value {
        Value::Array(elements) => Ok(elements),
        _ => Err(Error::unexpected("an array", value)),
    }
}

pub(crate) fn fields<const N: usize>(value: &Value) -> Result<&[Value; N], Error> {
    let elements = array(value)?;
    let first = elements.get(..N).and_then(|first| first.try_into().ok());
    first.ok_or_else(|| Error::unexpected("more elements", value))
}

pub(crate) fn integer(value: &Value) -> Result<i64, Error> {
    match value {
        Value::Integer(number) => Ok(*number),
        _ => Err(Error::unexpected("an integer", value)),
    }
}

pub(crate) fn bytes(value: &Value) -> Result<&[u8], Error> {
    match value {
        Value::Bytes(bytes) => Ok(bytes),
        _ => Err(Error::unexpected("text", value)),
    }
}

pub(crate) fn text(value: &Value) -> Result<String, Error> {
    Ok(String::from_utf8_lossy(bytes(value)?).into_owned())
}

fn element(value: &Value, at: usize) -> Result<&Value, Error> {
    array(value)?.get(at).ok_or_else(|| Error::unexpected("more elements", value))
}

/// Reads a number that is never negative.
pub(crate) fn count(value: &Value) -> Result<u64, Error> {
    Ok(u64::try_from(integer(value)?).unwrap_or(0))
}

/// Reads milliseconds; -1 is none.
fn time(value: &Value) -> Result<Option<Duration>, Error> {
    Ok(u64::try_from(integer(value)?).ok().map(Duration::from_millis))
}
