//! The servers that a limiter asks, the commands that it sends, and their replies.
//!
//! Create [`Servers`] from URLs or clients of the crate [redis](https://docs.rs/redis). For another client library, implement
//! [`Connection`].

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use redis::{Arg, Cmd, RedisWrite, ToRedisArgs};

pub use crate::library::Servers;

/// A future that a trait object returns.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Sends commands by another client library than the crate redis, see [`Servers::by`].
///
/// ```
/// # use redis_ratelimit_client::{Limiter, Rate};
/// # use redis_ratelimit_client::transport::{BoxFuture, Command, Connection, Servers, Value};
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// /// Allows everything.
/// struct Always;
///
/// impl Connection for Always {
///     fn send<'a>(&'a self, commands: &'a [Command]) -> BoxFuture<'a, Result<Vec<Value>, String>> {
///         let reply = [0, 1, 1, -1, 0].map(Value::Integer);
///         let replies = commands.iter().map(|_| Value::Array(reply.to_vec())).collect();
///         Box::pin(async { Ok(replies) })
///     }
/// }
///
/// let limiter = Limiter::new(Servers::by(Always));
/// assert!(limiter.take("k", &Rate::per("1/d")?).await?.is_allowed());
/// # Ok(()) }
/// ```
pub trait Connection: Send + Sync + 'static {
    /// Sends commands on one connection, with no others between them, and returns one reply for each. An error reply is a
    /// [`Value::Error`]. An error says why there are no replies.
    ///
    /// No command may be sent twice, because the server may have executed it although its reply was lost. The future is
    /// dropped if the call is given up. If a command has BLOCK, its connection must be closed then, so that the call leaves
    /// its line.
    fn send<'a>(&'a self, commands: &'a [Command]) -> BoxFuture<'a, Result<Vec<Value>, String>>;
}

/// A command: its name and its arguments.
///
/// ```
/// # use redis_ratelimit_client::transport::Command;
/// let mut command = Command::new("RL.HELD");
/// command.arg(b"jobs");
/// assert_eq!(command.to_string(), "RL.HELD jobs");
/// assert_eq!(command.words().len(), 2);
/// assert_eq!(command.word(1), Some(&b"jobs"[..]));
/// ```
#[derive(Clone)]
pub struct Command(pub(crate) Cmd);

impl Command {
    /// Creates a command without arguments.
    pub fn new(name: &str) -> Command {
        let mut cmd = Cmd::with_capacity(16, 128);
        cmd.arg(name);
        Command(cmd)
    }

    /// Creates a command on a key.
    pub(crate) fn on(name: &str, key: &[u8]) -> Command {
        let mut command = Command::new(name);
        command.arg(key);
        command
    }

    /// Adds an argument.
    pub fn arg(&mut self, argument: &[u8]) -> &mut Command {
        self.0.arg(argument);
        self
    }

    /// Adds a decimal number.
    pub(crate) fn number(&mut self, number: impl ToRedisArgs) -> &mut Command {
        self.0.arg(number);
        self
    }

    /// Adds what is displayed as a word.
    pub(crate) fn displayed(&mut self, word: impl fmt::Display) -> &mut Command {
        self.0.write_arg_fmt(word);
        self
    }

    /// Returns the name and the arguments.
    pub fn words(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.0.args_iter().map(|word| match word {
            Arg::Simple(word) => word,
            _ => b"",
        })
    }

    /// Returns the name (0) or an argument.
    pub fn word(&self, at: usize) -> Option<&[u8]> {
        self.words().nth(at)
    }
}

impl fmt::Display for Command {
    /// Writes the words, separated by spaces.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, word) in self.words().enumerate() {
            let blank = if at == 0 { "" } else { " " };
            write!(f, "{blank}{}", String::from_utf8_lossy(word))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Command({:?})", self.to_string())
    }
}

/// A reply of a server. Maps are arrays of names and values, as in RESP2.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// No value.
    Nil,
    /// An integer.
    Integer(i64),
    /// Text or bytes.
    Bytes(Vec<u8>),
    /// Several values.
    Array(Vec<Value>),
    /// An error reply.
    Error(ErrorReply),
}

/// An error reply. It begins with a code that says what kind of error it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ErrorReply {
    /// The first word: `ERR`, `WRONGTYPE`.
    pub code: String,
    /// The text after the code.
    pub message: String,
}

impl ErrorReply {
    /// Parses a whole line, such as `WRONGTYPE the key holds another type`.
    pub fn new(line: &str) -> ErrorReply {
        let (code, message) = line.split_once(' ').unwrap_or((line, ""));
        ErrorReply { code: code.into(), message: message.into() }
    }
}

impl fmt::Display for ErrorReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.message)
    }
}
