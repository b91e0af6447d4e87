//! Connections of the crate redis. Each is a multiplexed connection that does not reconnect.

use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::pin::{pin, Pin};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use ::redis::aio::{ConnectionLike, MultiplexedConnection};
use ::redis::io::tcp::TcpSettings;
use ::redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind,
    IntoConnectionInfo, Pipeline, RedisConnectionInfo, RedisError, Value as RedisValue,
};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::task::AbortHandle;

use super::{
    Address, BoxFuture, Command, Connection, ErrorReply, Failure, FailureKind, Servers, Transport,
    Value,
};
use crate::attempt::{poll_once, yield_turns};
use crate::Error;

/// The maximum number of calls that wait to be written to a connection.
const BUFFERED_CALLS: usize = 256;
/// A connection is assumed to be open for this long after a read, without checking. A check would gain little: the server
/// can still close the connection before the command arrives.
const FRESH: Duration = Duration::from_micros(100);

/// Opens connections of the crate redis.
struct RedisTransport(ConnectionInfo);

impl Transport for RedisTransport {
    fn connect(
        &self,
        address: Option<Address>,
    ) -> BoxFuture<'static, Result<Arc<dyn Connection>, Failure>> {
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
        Box::pin(async move { Ok(Arc::new(connect(info).await?) as Arc<dyn Connection>) })
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

async fn connect(info: ConnectionInfo) -> Result<RedisConnection, Failure> {
    // The limiter has its own deadline, and checks connections itself.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(BUFFERED_CALLS);
    let settings = info.redis_settings();
    match info.addr() {
        ConnectionAddr::Tcp(host, port) => {
            let stream = connect_tcp(host, *port, info.tcp_settings()).await;
            connect_on(stream, settings, config).await
        }
        #[cfg(unix)]
        ConnectionAddr::Unix(path) => {
            connect_on(UnixStream::connect(path).await, settings, config).await
        }
        // The crate creates the stream itself for TLS.
        _ => {
            let client = Client::open(info).map_err(failure)?;
            let connection = client.get_multiplexed_async_connection_with_config(&config).await;
            Ok(RedisConnection { connection: connection.map_err(failure)?, watched: None })
        }
    }
}

async fn connect_on<S>(
    stream: io::Result<S>,
    settings: &RedisConnectionInfo,
    config: AsyncConnectionConfig,
) -> Result<RedisConnection, Failure>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    for<'a> SockRef<'a>: From<&'a S>,
{
    let stream = stream.map_err(|error| failure(error.into()))?;
    let written = Arc::new(AtomicU64::new(0));
    let stream = WatchedStream { stream, written: Arc::clone(&written), read_at: Instant::now() };
    let made = MultiplexedConnection::new_with_config(settings, stream, config).await;
    let (connection, driver) = made.map_err(failure)?;
    let driver = tokio::spawn(driver).abort_handle();
    Ok(RedisConnection { connection, watched: Some(Watched { written, driver }) })
}

async fn connect_tcp(host: &str, port: u16, settings: &TcpSettings) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    // Send each call immediately, even if others are in flight.
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    if let Some(keepalive) = settings.keepalive() {
        socket.set_tcp_keepalive(keepalive)?;
    }
    #[cfg(any(target_os = "android", target_os = "linux"))]
    socket.set_tcp_user_timeout(settings.user_timeout())?;
    Ok(stream)
}

struct RedisConnection {
    connection: MultiplexedConnection,
    /// `None` for TLS.
    watched: Option<Watched>,
}

/// A connection on a [`WatchedStream`].
struct Watched {
    /// The number of bytes that were written.
    written: Arc<AtomicU64>,
    /// The task that reads and writes the stream.
    driver: AbortHandle,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection for RedisConnection {
    fn send<'a>(&'a self, commands: &'a [Command]) -> BoxFuture<'a, Result<Vec<Value>, Failure>> {
        let mut connection = self.connection.clone();
        Box::pin(async move {
            match commands {
                [command] => {
                    let command = to_cmd(command);
                    let reply = self.sent(connection.send_packed_command(&command)).await?;
                    Ok(vec![to_value(reply)])
                }
                _ => {
                    let mut pipeline = Pipeline::with_capacity(commands.len());
                    for command in commands {
                        pipeline.add_command(to_cmd(command));
                    }
                    let count = commands.len();
                    let sending = connection.req_packed_commands(&pipeline, 0, count);
                    let replies = self.sent(sending).await?;
                    Ok(replies.into_iter().map(to_value).collect())
                }
            }
        })
    }
}

impl RedisConnection {
    /// Waits for the replies. If nothing was written meanwhile, an error is [`FailureKind::NotSent`].
    ///
    /// With TLS this relies on the crate, which returns an error immediately if it has noticed that the connection was
    /// closed. Yielding to the runtime first gives it the chance to notice.
    async fn sent<T>(
        &self,
        sending: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, Failure> {
        let unsent = |error| {
            let failure = failure(error);
            match failure.kind {
                FailureKind::Lost => Failure { kind: FailureKind::NotSent, ..failure },
                _ => failure,
            }
        };
        if let Some(Watched { written, .. }) = &self.watched {
            let before = written.load(Acquire);
            return sending.await.map_err(|error| match written.load(Acquire) {
                after if after == before => unsent(error),
                _ => failure(error),
            });
        }
        yield_turns().await;
        let mut sending = pin!(sending);
        match poll_once(sending.as_mut()).await {
            Some(result) => result.map_err(unsent),
            None => sending.await.map_err(failure),
        }
    }
}

/// A stream that returns an error instead of writing if the server has closed it, even if the runtime has not noticed yet.
struct WatchedStream<S> {
    stream: S,
    /// The number of bytes that were written.
    written: Arc<AtomicU64>,
    /// The time of the last read.
    read_at: Instant,
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if polled.is_ready() {
            self.read_at = Instant::now();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedStream<S>
where
    for<'a> SockRef<'a>: From<&'a S>,
{
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.read_at.elapsed() > FRESH {
            match SockRef::from(&self.stream).peek(&mut [MaybeUninit::uninit()]) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    return Poll::Ready(Err(error));
                }
                _ => {}
            }
        }
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(size)) = polled {
            self.written.fetch_add(u64::try_from(size).unwrap_or(1), Release);
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

fn to_cmd(command: &Command) -> Cmd {
    let words = command.words();
    let mut cmd = Cmd::with_capacity(words.len(), command.size());
    for word in words {
        cmd.arg(word);
    }
    cmd
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
    /// Creates `Servers` with a single server, from a URL such as `redis://127.0.0.1/` or anything else that the crate redis
    /// connects to.
    ///
    /// `rediss://` needs a feature of that crate: `tokio-rustls-comp` or `tokio-native-tls-comp`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the URL cannot be parsed.
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    pub fn open(server: impl IntoConnectionInfo) -> Result<Servers, Error> {
        Ok(Servers::single(transport(server)?))
    }

    /// Creates `Servers` with the master of `service`. The sentinels know its address; `node` has its password, its database
    /// and whether TLS is used, and the host and port of `node` are ignored.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if there are no sentinels, or a URL cannot be parsed.
    #[doc = example!(bare)]
    /// let sentinels = ["redis://10.0.0.1:26379", "redis://10.0.0.2:26379"];
    /// let servers = Servers::open_sentinel("mymaster", sentinels, "redis://:secret@master")?;
    /// let shown = r#"Sentinel("mymaster", ["10.0.0.1:26379", "10.0.0.2:26379"])"#;
    /// assert_eq!(format!("{servers:?}"), shown);
    #[doc = example!(end)]
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

    /// Creates `Servers` with a cluster, of which some nodes are given. The settings of the first apply to all.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if there are no nodes, or a URL cannot be parsed.
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
