//! Connections by the crate redis, which are copies of the application's client: without timeouts, because a call has its
//! deadline, and without retries, because no call may be sent twice.

use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo,
    Pipeline, ProtocolVersion, RedisError, TlsMode, Value as RedisValue,
};
use tokio::time::timeout;

use crate::transport::{Command, Connection, ErrorReply, Value};
use crate::Error;

/// The maximum number of calls that wait to be written to a connection.
const BUFFERED_CALLS: usize = 256;

/// The servers that a limiter asks: one, the master that Sentinel names, or a cluster.
///
/// Connections are opened when they are first needed. They speak RESP3, by which a connection that the server has closed is
/// noticed before a call is sent on it.
///
/// ```
/// # use redis_ratelimit_client::Limiter;
/// # use redis_ratelimit_client::transport::Servers;
/// let single = Servers::open("redis://127.0.0.1/")?;
/// assert_eq!(format!("{single:?}"), "Servers(127.0.0.1:6379)");
/// let cluster = Servers::open_cluster(["redis://10.0.0.1", "redis://10.0.0.2"])?;
/// let limiter = Limiter::new(cluster); // connects when it is called
/// # Ok::<(), redis_ratelimit_client::Error>(())
/// ```
#[derive(Clone)]
pub struct Servers(pub(crate) Kind);

#[derive(Clone)]
pub(crate) enum Kind {
    One(Source),
    /// Some nodes of a cluster. The settings of the first apply to all.
    Cluster {
        first: Box<Client>,
        others: Vec<Source>,
    },
}

/// The way to connect to a server.
#[derive(Clone)]
pub(crate) enum Source {
    Client(Box<Client>),
    Sentinel(Arc<Sentinel>),
    Other(Arc<dyn Connection>),
}

/// The sentinels of a service, and the address of the master that they last named.
pub(crate) struct Sentinel {
    client: tokio::sync::Mutex<SentinelClient>,
    master: Mutex<Option<ConnectionAddr>>,
}

fn client(server: impl IntoConnectionInfo) -> Result<Client, Error> {
    Client::open(server).map_err(|error| Error::address(&error))
}

impl Servers {
    /// Creates `Servers` with a single server, from a URL such as `redis://127.0.0.1/` or anything else that the crate redis
    /// connects to. [`Servers::from`] accepts its `Client`.
    ///
    /// `rediss://` needs a feature of that crate: `tokio-rustls-comp` or `tokio-native-tls-comp`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the URL cannot be parsed.
    pub fn open(server: impl IntoConnectionInfo) -> Result<Servers, Error> {
        Ok(Servers::from(client(server)?))
    }

    /// Creates `Servers` with the master of `service`. The sentinels know its address; `node` has its password, its database
    /// and whether TLS is used, and the host and port of `node` are ignored. [`Servers::from`] accepts a `SentinelClient` of
    /// the crate redis, for certificates.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if there are no sentinels, or a URL cannot be parsed.
    ///
    /// ```
    /// # use redis_ratelimit_client::transport::Servers;
    /// let sentinels = ["redis://10.0.0.1:26379", "redis://10.0.0.2:26379"];
    /// let servers = Servers::open_sentinel("mymaster", sentinels, "redis://:secret@master")?;
    /// # Ok::<(), redis_ratelimit_client::Error>(())
    /// ```
    pub fn open_sentinel<T: IntoConnectionInfo>(
        service: impl Into<String>,
        sentinels: impl IntoIterator<Item = T>,
        node: impl IntoConnectionInfo,
    ) -> Result<Servers, Error> {
        let node = client(node)?;
        let info = node.get_connection_info();
        let mut settings = SentinelNodeConnectionInfo::default()
            .set_redis_connection_info(info.redis_settings().clone())
            .set_tcp_settings(info.tcp_settings().clone());
        if let ConnectionAddr::TcpTls { insecure, .. } = info.addr() {
            settings = settings.set_tls_mode(match insecure {
                true => TlsMode::Insecure,
                false => TlsMode::Secure,
            });
        }
        let (sentinels, master) = (sentinels.into_iter().collect(), SentinelServerType::Master);
        SentinelClient::build(sentinels, service.into(), Some(settings), master)
            .map(Servers::from)
            .map_err(|error| Error::address(&error))
    }

    /// Creates `Servers` with a cluster, of which some nodes are given. The settings of the first apply to all.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if there are no nodes, or a URL cannot be parsed.
    pub fn open_cluster<T: IntoConnectionInfo>(
        nodes: impl IntoIterator<Item = T>,
    ) -> Result<Servers, Error> {
        let mut nodes = nodes.into_iter().map(client);
        let first = nodes.next().unwrap_or_else(|| Err(Error::no_nodes()))?;
        let others = nodes.map(|node| {
            let node = Source::Client(Box::new(node?));
            match node.address() {
                Some((host, port)) => Source::node(&first, host.to_owned(), port),
                None => Ok(node),
            }
        });
        let others = others.collect::<Result<_, _>>()?;
        Ok(Servers(Kind::Cluster { first: Box::new(first), others }))
    }

    /// Creates `Servers` that another client library connects to.
    pub fn by(connection: impl Connection) -> Servers {
        Servers(Kind::One(Source::Other(Arc::new(connection))))
    }
}

impl From<Client> for Servers {
    fn from(client: Client) -> Servers {
        Servers(Kind::One(Source::Client(Box::new(client))))
    }
}

impl From<SentinelClient> for Servers {
    fn from(client: SentinelClient) -> Servers {
        let (client, master) = (tokio::sync::Mutex::new(client), Mutex::default());
        Servers(Kind::One(Source::Sentinel(Arc::new(Sentinel { client, master }))))
    }
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::One(source) => write!(f, "Servers({source})"),
            Kind::Cluster { first, .. } => {
                write!(f, "Servers(the cluster of {})", first.get_connection_info().addr())
            }
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Client(client) => write!(f, "{}", client.get_connection_info().addr()),
            Source::Sentinel(sentinel) => {
                let master = sentinel.master.lock().unwrap_or_else(PoisonError::into_inner);
                f.write_str("the master of Sentinel")?;
                master.as_ref().map_or(Ok(()), |address| write!(f, " at {address}"))
            }
            Source::Other(_) => f.write_str("the server"),
        }
    }
}

/// The reason why commands got no replies.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The server rejected the login.
    Login(String),
    /// The server has reached its maximum number of clients.
    Full,
    /// There is no connection, or it was lost. The server may have executed commands that were sent.
    NoReply(String),
    /// Nothing was sent, because earlier calls failed.
    BreakerIsOpen,
}

impl From<RedisError> for Failure {
    /// Returns the reason why a connection could not be opened.
    fn from(error: RedisError) -> Failure {
        let text = error.to_string();
        match error.kind() {
            // There is no error code for it.
            _ if text.contains("max number of clients reached") => Failure::Full,
            ErrorKind::Io | ErrorKind::Parse | ErrorKind::MasterNameNotFoundBySentinel => {
                Failure::NoReply(text)
            }
            _ => Failure::Login(text),
        }
    }
}

impl Source {
    /// Connects to another node with the same settings.
    pub fn node(first: &Client, host: String, port: u16) -> Result<Source, Error> {
        let info = first.get_connection_info().clone();
        let addr = match info.addr().clone() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure, tls_params }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        Ok(Source::Client(Box::new(client(info.set_addr(addr))?)))
    }

    /// Returns the host and the port; `None` if it is no server that is reached by TCP.
    pub fn address(&self) -> Option<(&str, u16)> {
        let Source::Client(client) = self else { return None };
        match client.get_connection_info().addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Some((host, *port))
            }
            _ => None,
        }
    }

    /// Opens a connection.
    pub async fn connect(&self, within: Duration) -> Result<Link, Failure> {
        let connecting = async {
            match self {
                Source::Client(client) => Ok(connect(client.get_connection_info()).await?),
                Source::Sentinel(sentinel) => {
                    // The master may be another one than the last time.
                    let client = sentinel.client.lock().await.async_get_client().await?;
                    let info = client.get_connection_info();
                    *sentinel.master.lock().unwrap_or_else(PoisonError::into_inner) =
                        Some(info.addr().clone());
                    Ok(connect(info).await?)
                }
                Source::Other(connection) => Ok(Link::Other(Arc::clone(connection))),
            }
        };
        let in_time = timeout(within, connecting).await;
        in_time.unwrap_or_else(|_| Err(Failure::NoReply("could not connect in time".into())))
    }
}

async fn connect(info: &ConnectionInfo) -> Result<Link, RedisError> {
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    // Of several commands that log in, the crate reports no error if the server answers the first and closes the connection,
    // as it does if it has reached its maximum number of clients.
    let (db, settings) = (settings.db(), settings.set_skip_set_lib_name().set_db(0));
    let client = Client::open(info.clone().set_redis_settings(settings))?;
    // Only the task that reads the connection keeps what it sends pushes to, so it is gone when the connection is closed.
    let sender = Arc::new(());
    let open = Arc::downgrade(&sender);
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(BUFFERED_CALLS)
        .set_push_sender(move |_| {
            let _ = &sender;
            Ok::<_, Infallible>(())
        });
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    if db != 0 {
        redis::cmd("SELECT").arg(db).exec_async(&mut connection).await?;
    }
    Ok(Link::Redis { connection, open })
}

/// An open connection. Several calls may be in flight on it. It is closed when its last clone is dropped.
#[derive(Clone)]
pub(crate) enum Link {
    Redis { connection: MultiplexedConnection, open: Weak<()> },
    Other(Arc<dyn Connection>),
}

impl Link {
    /// Returns false if the server has closed the connection, or the runtime that it was opened in was shut down.
    pub fn is_open(&self) -> bool {
        match self {
            Link::Redis { open, .. } => open.strong_count() > 0,
            Link::Other(_) => true,
        }
    }

    /// Sends commands, and returns one reply for each. An error says why there are none.
    pub async fn send(self, commands: &[Command]) -> Result<Vec<Value>, String> {
        let mut connection = match self {
            Link::Redis { connection, .. } => connection,
            Link::Other(connection) => return connection.send(commands).await,
        };
        let replies = match commands {
            [Command(command)] => {
                connection.send_packed_command(command).await.map(|reply| vec![to_value(reply)])
            }
            _ => {
                let mut pipeline = Pipeline::with_capacity(commands.len());
                for Command(command) in commands {
                    pipeline.add_command(command.clone());
                }
                let replies = connection.send_packed_commands(&pipeline, 0, commands.len()).await;
                replies.map(|replies| replies.into_iter().map(to_value).collect())
            }
        };
        replies.map_err(|error| error.to_string())
    }
}

fn to_value(value: RedisValue) -> Value {
    match value {
        RedisValue::Int(number) => Value::Integer(number),
        RedisValue::BulkString(bytes) => Value::Bytes(bytes),
        RedisValue::SimpleString(text) => Value::Bytes(text.into_bytes()),
        RedisValue::VerbatimString { text, .. } => Value::Bytes(text.into_bytes()),
        RedisValue::Okay => Value::Bytes(b"OK".to_vec()),
        RedisValue::Boolean(is_true) => Value::Integer(i64::from(is_true)),
        RedisValue::Array(values) | RedisValue::Set(values) => {
            Value::Array(values.into_iter().map(to_value).collect())
        }
        RedisValue::Map(pairs) => {
            let flat = pairs.into_iter().flat_map(|(name, value)| [name, value]);
            Value::Array(flat.map(to_value).collect())
        }
        RedisValue::Attribute { data, .. } => to_value(*data),
        RedisValue::ServerError(error) => {
            let (code, message) = (error.code(), error.details().unwrap_or_default());
            Value::Error(ErrorReply { code: code.into(), message: message.into() })
        }
        _ => Value::Nil,
    }
}
