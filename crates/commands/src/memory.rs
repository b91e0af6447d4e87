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

mod memory_call;
mod memory_waiting;
mod settings;
mod value;

pub use engine::line::Ticket;
pub use value::Value;

use crate::dispatch::run;
use crate::error::{CallError, EchoedWord, Error};
use crate::policies::PolicyTable;
use crate::reply::CallResult;
use crate::settings::{NumberSettings, SwitchSetting};
use crate::share::Share;
use crate::table::{CommandRow, COMMANDS};
use crate::waiting::WaitingKeyspace;
use engine::calendar::Zone;
use engine::line::Lines;
use engine::memory::{Fields, Memory};
use engine::top_keys::TopKeys;
use engine::DbKey;
use memory_call::MemoryCall;
use memory_waiting::{MemoryLineTypes, WaitClock};
use std::cell::RefCell;
use value::ValueBuilder;

/// The immediate result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Reply(Value),
    /// The ticket of the call, which waits (BLOCK). [`MemoryServer::take_ended`] returns its reply.
    Waits(Ticket),
}

type FillRandom = dyn FnMut(&mut [u8]) + Send;

/// Keys in memory, with policies, settings, and lines of waiting calls.
///
/// The server has no clock: each call passes the time, in Unix microseconds. Nothing happens between two calls. Keys expire
/// as in Redis, so the memory that the server takes depends only on the limits in use.
pub struct MemoryServer {
    keys: Memory,
    share: Share,
    numbers: NumberSettings,
    policies_only: SwitchSetting,
    timezone: Option<Zone>,
    policies: PolicyTable,
    most_denied: RefCell<TopKeys>,
    lines: RefCell<Lines<MemoryLineTypes>>,
    clock: WaitClock,
    /// The calls whose wait has ended and whose reply was not taken yet, in the order in which it ended.
    ended: RefCell<Vec<Ticket>>,
    random: RefCell<Box<FillRandom>>,
}

impl MemoryServer {
    /// Creates a server without keys, with the default settings. `random` fills a buffer with random bytes, for the ids of
    /// reservations whose callers name none.
    pub fn new(random: impl FnMut(&mut [u8]) + Send + 'static) -> MemoryServer {
        MemoryServer::with_share(Share::ALL, random)
    }

    /// Creates a server for a process that may use only a share of each limit.
    pub fn with_share(
        share: Share,
        random: impl FnMut(&mut [u8]) + Send + 'static,
    ) -> MemoryServer {
        let numbers = NumberSettings::new();
        MemoryServer {
            share,
            keys: Memory::default(),
            most_denied: RefCell::new(top_keys(&numbers)),
            numbers,
            policies_only: SwitchSetting::off(),
            timezone: None,
            policies: PolicyTable::default(),
            lines: RefCell::new(Lines::default()),
            clock: WaitClock::default(),
            ended: RefCell::default(),
            random: RefCell::new(Box::new(random)),
        }
    }

    /// Executes a call: the name of a command and its arguments. In addition to the RL.* commands and CL.THROTTLE it has
    /// `DEL key [key ...]`, `HSET key field value [field value ...]` and `HDEL key field [field ...]`, and `CONFIG GET` and
    /// `CONFIG SET` for `ratelimit.*`.
    pub fn call(&mut self, argv: &[&[u8]], now_us: u64) -> Outcome {
        self.set_time(now_us);
        self.keys.forget_expired(now_us);
        let name = argv.first().copied().unwrap_or_default();
        let row = COMMANDS.iter().find(|row| name.eq_ignore_ascii_case(row.name.to_bytes()));
        match row {
            Some(row) => self.run(row, argv),
            None => Outcome::Reply(self.run_other(name, argv)),
        }
    }

    fn run(&self, row: &CommandRow, argv: &[&[u8]]) -> Outcome {
        let builder = ValueBuilder::default();
        let call = MemoryCall::new(self, argv, &builder);
        let result = match fits_arity(row.arity(), argv.len()) {
            true => run(row, &call),
            false => Err(Error::Arity.into()),
        };
        let reply = match (result, call.ticket.get()) {
            (Ok(CallResult::Waits), Some(ticket)) => return Outcome::Waits(ticket),
            (Ok(_), _) => builder.take().unwrap_or(Value::Nil),
            (Err(CallError::Plain(Error::Arity)), _) => wrong_arity(row.name.to_bytes()),
            (Err(error), _) => Value::Error(error.to_string()),
        };
        Outcome::Reply(reply)
    }

    /// Executes a command that is not the module's.
    fn run_other(&mut self, name: &[u8], argv: &[&[u8]]) -> Value {
        let (lower, words) = (name.to_ascii_lowercase(), argv.get(1..).unwrap_or_default());
        match (lower.as_slice(), words) {
            (b"del", []) => wrong_arity(b"del"),
            (b"del", keys) => {
                let deleted = keys.iter().filter(|key| self.delete(key)).count();
                Value::Integer(i64::try_from(deleted).unwrap_or(i64::MAX))
            }
            (b"hset", [key, pairs @ ..]) if !pairs.is_empty() && pairs.len() % 2 == 0 => self
                .edit_hash(key, |fields| {
                    let pairs = pairs.chunks(2).filter_map(|pair| match pair {
                        [field, value] => Some((*field, *value)),
                        _ => None,
                    });
                    pairs
                        .filter(|(field, value)| {
                            fields.insert((*field).into(), (*value).into()).is_none()
                        })
                        .count()
                }),
            (b"hdel", [key, names @ ..]) if !names.is_empty() => self.edit_hash(key, |fields| {
                names.iter().filter(|name| fields.remove(**name).is_some()).count()
            }),
            (b"hset" | b"hdel", _) => wrong_arity(&lower),
            (b"config", [what, names @ ..]) if what.eq_ignore_ascii_case(b"get") => {
                let found = names.iter().filter_map(|name| Some((*name, self.get(name)?)));
                let pairs = found.flat_map(|(name, value)| [name.to_ascii_lowercase(), value]);
                Value::Array(pairs.map(Value::Bulk).collect())
            }
            (b"config", [what, pairs @ ..]) if what.eq_ignore_ascii_case(b"set") => {
                self.config_set(pairs)
            }
            _ => Value::Error(format!("ERR unknown command '{}'", EchoedWord::from(name))),
        }
    }

    /// Changes the fields of a hash, and returns the number of fields that `edit` counts.
    fn edit_hash(&mut self, name: &[u8], edit: impl FnOnce(&mut Fields) -> usize) -> Value {
        let reply = match self.keys.edit_hash(name, self.clock.wall_us, edit) {
            Ok(number) => Value::Integer(i64::try_from(number).unwrap_or(i64::MAX)),
            Err(_) => Value::Error(
                "WRONGTYPE Operation against a key holding the wrong kind of value".into(),
            ),
        };
        (&*self).wake(db_key(name), None);
        reply
    }

    /// Deletes a key. Returns whether it existed.
    fn delete(&mut self, name: &[u8]) -> bool {
        let live = self.keys.expires_at_ms(name, self.clock.wall_us).is_some();
        self.keys.delete(name);
        (&*self).wake(db_key(name), None);
        live
    }

    /// Changes all of these settings, or none.
    fn config_set(&mut self, pairs: &[&[u8]]) -> Value {
        if pairs.is_empty() || pairs.len() % 2 != 0 {
            return wrong_arity(b"config|set");
        }
        let mut before: Vec<(&[u8], Vec<u8>)> = Vec::new();
        for pair in pairs.chunks(2) {
            let [name, value] = pair else { continue };
            let old = self.get(name);
            if let Err(why) = self.set(name, value) {
                for (name, old) in before.into_iter().rev() {
                    // The old value was allowed before.
                    let _: Result<(), String> = self.set(name, &old);
                }
                let name = String::from_utf8_lossy(name);
                return Value::Error(match old {
                    None => {
                        format!(
                            "ERR Unknown option or number of arguments for CONFIG SET - '{name}'"
                        )
                    }
                    Some(_) => format!(
                        "ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"
                    ),
                });
            }
            before.extend(old.map(|old| (*name, old)));
        }
        Value::Bulk(b"OK".to_vec())
    }
}

/// Returns the key with this name, in the only database.
fn db_key(name: &[u8]) -> DbKey<'_> {
    DbKey { db: 0, name }
}

/// Creates an empty count of denials, of as many keys as the setting `top-keys` says.
fn top_keys(numbers: &NumberSettings) -> TopKeys {
    TopKeys::new(usize::try_from(numbers.top_keys.get()).unwrap_or(usize::MAX))
}

fn fits_arity(arity: i32, words: usize) -> bool {
    let min_words = usize::try_from(arity.unsigned_abs()).unwrap_or(usize::MAX);
    words == min_words || (arity < 0 && words > min_words)
}

fn wrong_arity(name: &[u8]) -> Value {
    let name = String::from_utf8_lossy(name);
    Value::Error(format!("ERR wrong number of arguments for '{name}' command"))
}

#[cfg(test)]
pub(crate) mod tests;
