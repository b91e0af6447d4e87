//! Connections to servers. The rest of this crate sends its commands through the two traits in this module.
//!
//! [`Servers`] are the servers that a limiter asks. With the feature `redis`, which is on by default, create them from URLs
//! or connection settings of the crate [redis](https://docs.rs/redis). For another client library, implement [`Transport`]
//! and [`Connection`].

use std::fmt;
use std::future::Future;
use std::io::Write;
use std::pin::Pin;
use std::sync::Arc;

#[cfg(feature = "redis")]
mod redis;

/// A future that a trait object returns.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The host and the port of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// A name or an IP address.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Opens connections to a server. It contains the settings, such as the password.
#[doc = example!(bare)]
/// /// Allows everything.
/// struct Always;
///
/// impl Transport for Always {
///     fn connect(&self, _: Option<Address>) -> BoxFuture<'static, Result<Arc<dyn Connection>, Failure>> {
///         Box::pin(async { Ok(Arc::new(Always) as Arc<dyn Connection>) })
///     }
///
///     fn name(&self) -> String {
///         "always".into()
///     }
///
///     fn host(&self) -> String {
///         "always".into()
///     }
/// }
///
/// impl Connection for Always {
///     fn send<'a>(&'a self, commands: &'a [Command]) -> BoxFuture<'a, Result<Vec<Value>, Failure>> {
///         let reply = [0, 1, 1, -1, 0].map(Value::Integer);
///         let replies = commands.iter().map(|_| Value::Array(reply.to_vec())).collect();
///         Box::pin(async { Ok(replies) })
///     }
/// }
///
/// let limiter = Limiter::new(Servers::single(Always));
/// assert!(limiter.take("k", &Rate::per("1/d")?).await?.is_allowed());
#[doc = example!(end)]
pub trait Transport: Send + Sync + 'static {
    /// Opens a connection, logs in and selects the database. `address` replaces the host and the port in the settings, for
    /// the nodes of a cluster and the master that Sentinel names.
    ///
    /// The future is dropped if it takes too long. Neither the future nor the connection may try to connect again.
    fn connect(
        &self,
        address: Option<Address>,
    ) -> BoxFuture<'static, Result<Arc<dyn Connection>, Failure>>;

    /// Returns the name of the server for error messages: host and port, or a path.
    fn name(&self) -> String;

    /// Returns the host in the settings. It is used for cluster nodes that do not know their own host.
    fn host(&self) -> String;
}

/// An open connection. Several calls may be in flight on it. Dropping it closes it.
pub trait Connection: Send + Sync + 'static {
    /// Sends commands, with no others between them, and returns one reply for each. An error reply is a [`Value::Error`].
    ///
    /// If the future is dropped, the replies are ignored when they arrive, and the connection stays usable.
    fn send<'a>(&'a self, commands: &'a [Command]) -> BoxFuture<'a, Result<Vec<Value>, Failure>>;
}

/// The reason why a connection could not be opened, or why commands got no reply.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The kind of failure.
    pub kind: FailureKind,
    /// A description for people.
    pub message: String,
}

/// The kind of a [`Failure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// No server listens at the address.
    Refused,
    /// The server rejected the login, because the password or other settings are wrong.
    Login,
    /// The connection was closed before anything was sent.
    NotSent,
    /// The connection was lost. The server may have executed what was sent.
    Lost,
}

/// A command: its name and its arguments.
#[doc = example!(bare)]
/// let mut command = Command::new("RL.HELD");
/// command.arg(b"jobs");
/// assert_eq!(command.to_string(), "RL.HELD jobs");
/// assert_eq!(command.words().len(), 2);
/// assert_eq!(command.word(1), Some(&b"jobs"[..]));
/// assert_eq!(command.size(), 11);
#[doc = example!(end)]
#[derive(Clone, PartialEq, Eq)]
pub struct Command {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Command {
    /// Creates a command without arguments.
    pub fn new(name: &str) -> Command {
        let mut command = Command { bytes: Vec::with_capacity(128), ends: Vec::with_capacity(16) };
        command.arg(name.as_bytes());
        command
    }

    /// Creates a command on a key.
    pub(crate) fn on(name: &str, key: &[u8]) -> Command {
        let mut command = Command::new(name);
        command.arg(key);
        command
    }

    /// Adds an argument.
    pub fn arg(&mut self, argument: &[u8]) -> &mut Command {
        self.arg_parts(&[argument])
    }

    /// Adds an argument that consists of several parts.
    pub(crate) fn arg_parts(&mut self, parts: &[&[u8]]) -> &mut Command {
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        // No server accepts a command of 4 GiB.
        self.ends.push(u32::try_from(self.bytes.len()).unwrap_or(u32::MAX));
        self
    }

    /// Adds a decimal number.
    pub(crate) fn number(&mut self, number: impl Into<i128>) -> &mut Command {
        self.displayed(number.into())
    }

    /// Adds what is displayed as a word.
    pub(crate) fn displayed(&mut self, word: impl fmt::Display) -> &mut Command {
        // Writing to memory does not fail.
        let _ = write!(self.bytes, "{word}");
        self.arg(b"")
    }

    /// Returns the name and the arguments.
    pub fn words(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.ends.len()).map(|at| self.word(at).unwrap_or_default())
    }

    /// Returns the name (0) or an argument.
    pub fn word(&self, at: usize) -> Option<&[u8]> {
        let end = *self.ends.get(at)? as usize;
        let begin = at
            .checked_sub(1)
            .and_then(|before| self.ends.get(before))
            .map_or(0, |end| *end as usize);
        self.bytes.get(begin..end)
    }

    /// Returns the total number of bytes of all words.
    pub fn size(&self) -> usize {
        self.bytes.len()
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

/// The servers that a limiter asks: one, the master that Sentinel names, or a cluster.
///
/// Connections are opened when they are first needed.
#[doc = example!(bare)]
/// let single = Servers::open("redis://127.0.0.1/")?;
/// assert_eq!(format!("{single:?}"), r#"Single("127.0.0.1:6379")"#);
/// let cluster = Servers::open_cluster(["redis://10.0.0.1", "redis://10.0.0.2"])?;
/// let limiter = Limiter::new(cluster); // connects when it is called
#[doc = example!(end)]
#[derive(Clone)]
pub struct Servers(pub(crate) Kind);

#[derive(Clone)]
pub(crate) enum Kind {
    Single(Arc<dyn Transport>),
    Sentinel { service: String, sentinels: Vec<Arc<dyn Transport>>, node: Arc<dyn Transport> },
    Cluster { first: Arc<dyn Transport>, others: Vec<Arc<dyn Transport>> },
}

impl Servers {
    /// Creates `Servers` with a single server.
    pub fn single(transport: impl Transport) -> Servers {
        Servers(Kind::Single(Arc::new(transport)))
    }

    /// Creates `Servers` with the master of `service`. `sentinels` know its address; `node` connects to it, with that
    /// address in place of its own.
    pub fn sentinel(
        service: impl Into<String>,
        sentinels: impl IntoIterator<Item = Arc<dyn Transport>>,
        node: impl Transport,
    ) -> Servers {
        let sentinels = sentinels.into_iter().collect();
        Servers(Kind::Sentinel { service: service.into(), sentinels, node: Arc::new(node) })
    }

    /// Creates `Servers` with a cluster, of which some nodes are given. The settings of the first apply to all.
    pub fn cluster(
        first: Arc<dyn Transport>,
        others: impl IntoIterator<Item = Arc<dyn Transport>>,
    ) -> Servers {
        Servers(Kind::Cluster { first, others: others.into_iter().collect() })
    }
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |all: &[Arc<dyn Transport>]| -> Vec<String> {
            all.iter().map(|each| each.name()).collect()
        };
        match &self.0 {
            Kind::Single(one) => f.debug_tuple("Single").field(&one.name()).finish(),
            Kind::Sentinel { service, sentinels, .. } => {
                f.debug_tuple("Sentinel").field(service).field(&names(sentinels)).finish()
            }
            Kind::Cluster { first, others } => {
                f.debug_tuple("Cluster").field(&first.name()).field(&names(others)).finish()
            }
        }
    }
}
