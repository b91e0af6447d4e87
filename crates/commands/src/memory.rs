//! All commands over keys in memory, with the replies of a server.
//!
//! ```
//! use redis_ratelimit_commands::memory::{MemoryServer, Outcome, Value};
//!
//! let mut server = MemoryServer::new(|bytes| bytes.fill(7));
//! let now_us = 1_795_223_799_544_558;
//! let reply = server.call(&[b"RL.THROTTLE", b"user:1", b"15", b"30", b"60"], now_us);
//! let integers = [0, 16, 15, -1, 2].map(Value::Integer);
//! assert_eq!(reply, Outcome::Reply(Value::Array(integers.to_vec())));
//! ```

use engine::decimal::parse_i64;
use engine::decision::TimeUnit;
use engine::memory::Memory;
use engine::period::{Length, Period};
use engine::request::{Limit, Request};
use engine::reservation::Id;
use engine::throttle::Rate;

/// Names a call that waits. A later one is larger. Never 0.
pub type Ticket = u64;

/// A reply, as a server sends it over RESP2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nil.
    Nil,
    /// An integer.
    Integer(i64),
    /// A string.
    Bulk(Vec<u8>),
    /// An array. A map is an array of its names and values.
    Array(Vec<Value>),
    /// An error, which begins with its code.
    Error(String),
}

/// What a call is told at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its reply.
    Reply(Value),
    /// Nothing yet: it waits (BLOCK). [`MemoryServer::settled`] tells its reply.
    Waits(Ticket),
}

/// Fills bytes with random ones.
type FillRandom = dyn FnMut(&mut [u8]) + Send;

/// Keys in memory, and all that a server knows beside them: policies, settings, lines of calls that wait.
///
/// It has no clock: each call says the time, in Unix microseconds. Nothing happens between two calls.
pub struct MemoryServer {
    keys: Memory,
    random: Box<FillRandom>,
}

impl MemoryServer {
    /// A server without keys, with the default settings. `random` fills bytes with random ones, for the ids of
    /// reservations that callers do not name.
    pub fn new(random: impl FnMut(&mut [u8]) + Send + 'static) -> MemoryServer {
        MemoryServer { keys: Memory::default(), random: Box::new(random) }
    }

    /// Carries out a call: the command's name and its arguments. Beside the RL.* commands it knows `DEL key [key ...]`,
    /// `CONFIG GET name` and `CONFIG SET name value` for `ratelimit.*`.
    pub fn call(&mut self, argv: &[&[u8]], now_us: u64) -> Outcome {
        let reply = match argv {
            [b"RL.THROTTLE", key, burst, count, period] => {
                self.throttle(key, [burst, count, period], now_us)
            }
            [b"DEL", key] => Some(Value::Integer(i64::from(self.keys.reset(key)))),
            _ => None,
        };
        Outcome::Reply(reply.unwrap_or_else(|| Value::Error("ERR unknown command".into())))
    }

    fn throttle(&mut self, key: &[u8], rate: [&[u8]; 3], now_us: u64) -> Option<Value> {
        let [burst, count, period] = rate;
        let number = |word| u64::try_from(parse_i64(word)?).ok();
        let Length::Ms(period_ms) = Period::parse(period).ok()?.length() else { return None };
        let rate = Rate::new(number(burst)?, number(count)?, period_ms).ok()?;
        let random = &mut self.random;
        let new_id = || {
            let mut id = [0; 16];
            random(&mut id);
            Id::from(&id[..])
        };
        let request = Request::of(Limit::Bucket(rate));
        let decision = self.keys.attempt(key, &request, now_us, new_id).ok()?.decision;
        let seconds = |us| i64::try_from(TimeUnit::Seconds.round_up(us)).ok();
        let integers = [
            i64::try_from(decision.verdict.limited()).ok()?,
            i64::try_from(decision.limit).ok()?,
            i64::try_from(decision.remaining).ok()?,
            decision.verdict.retry_after_us().map_or(Some(-1), seconds)?,
            seconds(decision.reset_after_us)?,
        ];
        Some(Value::Array(integers.map(Value::Integer).to_vec()))
    }

    /// The calls that waited and are over at `now_us`: granted, or denied as their time is up. To be asked at
    /// [`MemoryServer::next_us`], and after each call while somebody waits.
    pub fn settled(&mut self, _now_us: u64) -> Vec<(Ticket, Value)> {
        Vec::new()
    }

    /// When [`MemoryServer::settled`] should be asked next, in Unix microseconds; `None` while nobody waits.
    pub fn next_us(&self) -> Option<u64> {
        None
    }

    /// Ends a wait without a reply: the caller is gone. What was granted meanwhile is given back.
    pub fn withdraw(&mut self, _ticket: Ticket, _now_us: u64) {}

    /// Changes a setting, with or without `ratelimit.` before its name: `policies`, `window-entries`, `lease`,
    /// `max-reservations`, `max-waiters`, `timezone`, `policies-only`, `top-keys`.
    ///
    /// # Errors
    ///
    /// Says what was wrong and what is allowed.
    pub fn set(&mut self, _name: &[u8], _value: &[u8]) -> Result<(), String> {
        Err("no such setting".into())
    }

    /// The value of a setting, as CONFIG GET shows it; `None` where there is none of this name.
    pub fn get(&self, _name: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

/// A server may be handed from thread to thread.
const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<MemoryServer>();
};
