//! Connections of the crate redis: a multiplexed connection each, which is not opened again when it breaks.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use ::redis::aio::{ConnectionLike, MultiplexedConnection};
use ::redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind,
    IntoConnectionInfo, Pipeline, RedisError, Value as RedisValue,
};

use super::{
    Address, BoxFuture, Command, Connection, ErrorReply, Failure, FailureKind, Servers, Transport,
    Value,
};
use crate::Error;

/// How many calls may wait to be written to a connection.
const BUFFERED_CALLS: usize = 256;

/// Opens connections of the crate redis.
struct RedisTransport(ConnectionInfo);

impl Transport for RedisTransport {
    fn connect(
        &self,
        address: Option<Address>,
    ) -> BoxFuture<'static, Result<Arc<dyn Connection>, Failure>> {
        // The limiter has its own deadline, and asks the server by itself whether it is there.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(BUFFERED_CALLS);
        let redis_settings = self.0.redis_settings().clone().set_skip_set_lib_name();
        let mut info = self.0.clone().set_redis_settings(redis_settings);
        if let Some(Address { host, port }) = address {
            let addr = match info.addr().clone() {
                ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                    ConnectionAddr::TcpTls { host, port, insecure, tls_params }
                }
                _ => ConnectionAddr::Tcp(host, port),
            };
            info = info.set_addr(addr);
        }
        Box::pin(async move {
            let client = Client::open(info).map_err(failure)?;
            let connection = client.get_multiplexed_async_connection_with_config(&config).await;
            Ok(Arc::new(RedisConnection(connection.map_err(failure)?)) as Arc<dyn Connection>)
        })
    }

    fn name(&self) -> String {
        self.0.addr().to_string()
    }

    fn host(&self) -> String {
        match self.0.addr() {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
            _ => String::new(),
        }
    }
}

struct RedisConnection(MultiplexedConnection);

impl Connection for RedisConnection {
    fn send<'a>(&'a self, commands: &'a [Command]) -> BoxFuture<'a, Result<Vec<Value>, Failure>> {
        let mut connection = self.0.clone();
        Box::pin(async move {
            match commands {
                [command] => {
                    let command = cmd_of(command);
                    let reply = noting_unsent(connection.send_packed_command(&command)).await?;
                    Ok(vec![value_of(reply)])
                }
                _ => {
                    let mut pipeline = Pipeline::with_capacity(commands.len());
                    for command in commands {
                        pipeline.add_command(cmd_of(command));
                    }
                    let count = commands.len();
                    let sending = connection.req_packed_commands(&pipeline, 0, count);
                    let replies = noting_unsent(sending).await?;
                    Ok(replies.into_iter().map(value_of).collect())
                }
            }
        })
    }
}

/// What becomes of sending. The crate gives an error at once if the connection was closed before the command was handed to
/// it, and only then: whatever was handed to it is waited for.
async fn noting_unsent<T>(
    sending: impl std::future::Future<Output = Result<T, RedisError>>,
) -> Result<T, Failure> {
    let mut sending = pin!(sending);
    let first = poll_fn(|context| Poll::Ready(sending.as_mut().poll(context))).await;
    match first {
        Poll::Ready(Err(error)) => {
            let failure = failure(error);
            let is_lost = failure.kind == FailureKind::Lost;
            Err(if is_lost { Failure { kind: FailureKind::NotSent, ..failure } } else { failure })
        }
        Poll::Ready(Ok(reply)) => Ok(reply),
        Poll::Pending => sending.await.map_err(failure),
    }
}

fn cmd_of(command: &Command) -> Cmd {
    let words = command.words();
    let mut cmd = Cmd::with_capacity(words.len(), command.size());
    for word in words {
        cmd.arg(word);
    }
    cmd
}

fn value_of(value: RedisValue) -> Value {
    match value {
        RedisValue::Int(number) => Value::Integer(number),
        RedisValue::BulkString(bytes) => Value::Bytes(bytes),
        RedisValue::SimpleString(text) => Value::Bytes(text.into_bytes()),
        RedisValue::VerbatimString { text, .. } => Value::Bytes(text.into_bytes()),
        RedisValue::Okay => Value::Bytes(b"OK".to_vec()),
        RedisValue::Boolean(is_true) => Value::Integer(i64::from(is_true)),
        RedisValue::Array(values) | RedisValue::Set(values) => {
            Value::Array(values.into_iter().map(value_of).collect())
        }
        RedisValue::Map(pairs) => {
            let flat = pairs.into_iter().flat_map(|(name, value)| [name, value]);
            Value::Array(flat.map(value_of).collect())
        }
        RedisValue::Attribute { data, .. } => value_of(*data),
        RedisValue::ServerError(error) => {
            let (code, message) = (error.code(), error.details().unwrap_or_default());
            Value::Error(ErrorReply { code: code.into(), message: message.into() })
        }
        _ => Value::Nil,
    }
}

fn failure(error: RedisError) -> Failure {
    let kind = match error.kind() {
        _ if error.is_connection_refusal() => FailureKind::Refused,
        ErrorKind::Io | ErrorKind::Parse => FailureKind::Lost,
        _ => FailureKind::Login,
    };
    Failure { kind, message: error.to_string() }
}

fn transports<T: IntoConnectionInfo>(
    nodes: impl IntoIterator<Item = T>,
) -> Result<Vec<Arc<dyn Transport>>, Error> {
    let transport = |node: T| Ok(Arc::new(transport(node)?) as Arc<dyn Transport>);
    nodes.into_iter().map(transport).collect()
}

fn transport(node: impl IntoConnectionInfo) -> Result<RedisTransport, Error> {
    let info = node.into_connection_info().map_err(|error| Error::address(&error))?;
    Ok(RedisTransport(info))
}

impl Servers {
    /// One server, by a URL such as `redis://127.0.0.1/` or by what else the crate redis makes connections of.
    ///
    /// `rediss://` needs a feature of that crate: `tokio-rustls-comp` or `tokio-native-tls-comp`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the URL cannot be parsed.
    ///
    /// ```
    /// use redis_ratelimit_client::transport::Servers;
    ///
    /// let servers = Servers::open("redis://:secret@127.0.0.1:6379/2")?;
    /// # Ok::<(), redis_ratelimit_client::Error>(())
    /// ```
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    pub fn open(server: impl IntoConnectionInfo) -> Result<Servers, Error> {
        Ok(Servers::single(transport(server)?))
    }

    /// The master of `service`. `node` has its password, database and whether TLS is used; its host and port do not matter.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if there are no sentinels, or a URL cannot be parsed.
    ///
    /// ```
    /// use redis_ratelimit_client::transport::Servers;
    ///
    /// let sentinels = ["redis://10.0.0.1:26379", "redis://10.0.0.2:26379"];
    /// let servers = Servers::open_sentinel("mymaster", sentinels, "redis://:secret@master")?;
    /// # Ok::<(), redis_ratelimit_client::Error>(())
    /// ```
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    pub fn open_sentinel<T: IntoConnectionInfo>(
        service: impl Into<String>,
        sentinels: impl IntoIterator<Item = T>,
        node: impl IntoConnectionInfo,
    ) -> Result<Servers, Error> {
        let sentinels = transports(sentinels)?;
        if sentinels.is_empty() {
            return Err(Error::no_servers("sentinel"));
        }
        Ok(Servers::sentinel(service, sentinels, transport(node)?))
    }

    /// A cluster, of which some nodes are given. The first has the settings of all.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if there are no nodes, or a URL cannot be parsed.
    ///
    /// ```
    /// use redis_ratelimit_client::transport::Servers;
    ///
    /// let servers = Servers::open_cluster(["redis://10.0.0.1", "redis://10.0.0.2"])?;
    /// # Ok::<(), redis_ratelimit_client::Error>(())
    /// ```
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    pub fn open_cluster<T: IntoConnectionInfo>(
        nodes: impl IntoIterator<Item = T>,
    ) -> Result<Servers, Error> {
        let mut nodes = transports(nodes)?.into_iter();
        let first = nodes.next().ok_or_else(|| Error::no_servers("node"))?;
        Ok(Servers::cluster(first, nodes))
    }
}

impl From<Client> for Servers {
    fn from(client: Client) -> Servers {
        Servers::from(client.get_connection_info().clone())
    }
}

impl From<ConnectionInfo> for Servers {
    fn from(info: ConnectionInfo) -> Servers {
        Servers::single(RedisTransport(info))
    }
}
