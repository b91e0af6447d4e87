//! Connections of the crate fred. Each is a client that does not reconnect.

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use ::fred::clients::Client;
use ::fred::error::{Error as FredError, ErrorKind};
use ::fred::interfaces::{ClientLike, Resp3Frame};
use ::fred::types::config::{Config, ConnectionConfig, Server, ServerConfig};
use ::fred::types::{ConnectHandle, CustomCommand, Value as FredValue};
use tokio::net::TcpStream;

use super::{
    Address, BoxFuture, Command, Connection, ErrorReply, Failure, FailureKind, Servers, Transport,
    Value,
};
use crate::attempt::yield_turns;
use crate::Error;

/// Opens connections of the crate fred to one server.
struct FredTransport(Config);

impl FredTransport {
    /// Creates a transport to `server` with the settings of `config`.
    fn new(config: &Config, server: &Server) -> FredTransport {
        FredTransport(Config {
            server: ServerConfig::Centralized { server: server.clone() },
            fail_fast: true,
            ..config.clone()
        })
    }

    fn server(&self) -> Option<&Server> {
        match &self.0.server {
            ServerConfig::Centralized { server } => Some(server),
            _ => None,
        }
    }
}

impl Transport for FredTransport {
    fn connect(
        &self,
        address: Option<Address>,
    ) -> BoxFuture<'static, Result<Arc<dyn Connection>, Failure>> {
        let mut config = self.0.clone();
        if let Some(Address { host, port }) = address {
            config.server = ServerConfig::Centralized { server: Server::new(host, port) };
        }
        let address = match &config.server {
            ServerConfig::Centralized { server } => Some((server.host.to_string(), server.port)),
            _ => None,
        };
        let connection = ConnectionConfig {
            max_command_attempts: 1,
            max_redirections: 0,
            auto_client_setname: false,
            ..ConnectionConfig::default()
        };
        Box::pin(async move {
            // Without a policy the client does not reconnect.
            let client = Client::new(config, None, Some(connection), None);
            let driver = match client.init().await {
                Ok(driver) => driver,
                Err(error) => return Err(failed_to_connect(error, address).await),
            };
            let connection = FredConnection { client, driver, order: Mutex::new(()) };
            Ok(Arc::new(connection) as Arc<dyn Connection>)
        })
    }

    fn name(&self) -> String {
        self.server().map_or_else(|| format!("{:?}", self.0.server), ToString::to_string)
    }

    fn host(&self) -> String {
        self.server().map(|server| server.host.to_string()).unwrap_or_default()
    }
}

struct FredConnection {
    client: Client,
    /// The task that reads and writes the connection.
    driver: ConnectHandle,
    /// Held while commands that are sent together are passed to the task, so that no others come between them.
    order: Mutex<()>,
}

impl Drop for FredConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

type Reply<'a> = BoxFuture<'a, Result<Resp3Frame, FredError>>;

impl FredConnection {
    fn reply_to<'a>(&'a self, command: &Command) -> Reply<'a> {
        let mut words = command.words();
        let name = words.next().map(String::from_utf8_lossy).unwrap_or_default().into_owned();
        let arguments: Vec<FredValue> =
            words.map(|word| FredValue::Bytes(word.to_vec().into())).collect();
        Box::pin(self.client.custom_raw(CustomCommand::new(name, None, false), arguments))
    }
}

impl Connection for FredConnection {
    fn send<'a>(&'a self, commands: &'a [Command]) -> BoxFuture<'a, Result<Vec<Value>, Failure>> {
        Box::pin(async move {
            yield_turns().await;
            if self.driver.is_finished() || !self.client.is_connected() {
                let message = "the connection was closed".into();
                return Err(Failure { kind: FailureKind::NotSent, message });
            }
            let mut replies: Vec<_> = commands.iter().map(|each| self.reply_to(each)).collect();
            // The crate's futures pass their command to the task when they are first polled.
            let at_once: Vec<_> = poll_fn(|context| {
                let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
                Poll::Ready(replies.iter_mut().map(|reply| reply.as_mut().poll(context)).collect())
            })
            .await;
            // An immediate error means that the connection was already closed.
            let is_unsent = at_once.iter().all(|reply| matches!(reply, Poll::Ready(Err(_))));
            let mut values = Vec::with_capacity(commands.len());
            for (reply, at_once) in replies.into_iter().zip(at_once) {
                let reply = match at_once {
                    Poll::Ready(reply) => reply,
                    Poll::Pending => reply.await,
                };
                values.push(to_result(reply, is_unsent)?);
            }
            Ok(values)
        })
    }
}

/// Converts a reply. The crate returns error replies as errors; here they are values.
fn to_result(reply: Result<Resp3Frame, FredError>, is_unsent: bool) -> Result<Value, Failure> {
    let error = match reply {
        Ok(frame) => return Ok(to_value(frame)),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::IO | ErrorKind::Canceled | ErrorKind::Timeout | ErrorKind::Protocol => {
            let kind = if is_unsent { FailureKind::NotSent } else { FailureKind::Lost };
            Err(Failure { kind, message: error.details().into() })
        }
        _ => Ok(Value::Error(ErrorReply::new(error.details()))),
    }
}

fn to_value(frame: Resp3Frame) -> Value {
    match frame {
        Resp3Frame::Number { data, .. } => Value::Integer(data),
        Resp3Frame::Boolean { data, .. } => Value::Integer(i64::from(data)),
        Resp3Frame::BlobString { data, .. }
        | Resp3Frame::SimpleString { data, .. }
        | Resp3Frame::VerbatimString { data, .. } => Value::Bytes(data.to_vec()),
        Resp3Frame::SimpleError { data, .. } => Value::Error(ErrorReply::new(&data)),
        Resp3Frame::BlobError { data, .. } => {
            Value::Error(ErrorReply::new(&String::from_utf8_lossy(&data)))
        }
        Resp3Frame::Array { data, .. } => Value::Array(data.into_iter().map(to_value).collect()),
        Resp3Frame::Set { data, .. } => Value::Array(data.into_iter().map(to_value).collect()),
        Resp3Frame::Map { data, .. } => {
            let flat = data.into_iter().flat_map(|(name, value)| [name, value]);
            Value::Array(flat.map(to_value).collect())
        }
        _ => Value::Nil,
    }
}

/// Returns the reason why connecting failed. Only the text of the crate's error says that the connection was refused, so
/// another attempt finds out.
async fn failed_to_connect(error: FredError, address: Option<(String, u16)>) -> Failure {
    let kind = match (error.kind(), address) {
        (ErrorKind::Auth | ErrorKind::Config, _) => FailureKind::Login,
        (_, Some(address)) => match TcpStream::connect(address).await {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => FailureKind::Refused,
            _ => FailureKind::Lost,
        },
        _ => FailureKind::Lost,
    };
    Failure { kind, message: error.details().into() }
}

impl TryFrom<Config> for Servers {
    type Error = Error;

    /// Returns the servers in a configuration of the crate fred: one, the master that Sentinel names, or a cluster. Of the
    /// other settings, those for the login, the database and TLS are used.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if there are no hosts.
    #[doc = example!(bare)]
    /// # use fred::types::config::{Config, ServerConfig};
    /// let server = ServerConfig::new_centralized("127.0.0.1", 6379);
    /// let servers = Servers::try_from(Config { server, ..Config::default() })?;
    /// assert_eq!(format!("{servers:?}"), r#"Single("127.0.0.1:6379")"#);
    #[doc = example!(end)]
    fn try_from(config: Config) -> Result<Servers, Error> {
        let transport =
            |server: &Server| Arc::new(FredTransport::new(&config, server)) as Arc<dyn Transport>;
        match &config.server {
            ServerConfig::Clustered { hosts, .. } => {
                let mut nodes = hosts.iter().map(transport);
                let first = nodes.next().ok_or_else(|| Error::no_servers("node"))?;
                Ok(Servers::cluster(first, nodes))
            }
            ServerConfig::Sentinel { hosts, service_name, .. } => {
                let first = hosts.first().ok_or_else(|| Error::no_servers("sentinel"))?;
                let sentinel =
                    Config { username: None, password: None, database: None, ..config.clone() };
                let own =
                    |server| Arc::new(FredTransport::new(&sentinel, server)) as Arc<dyn Transport>;
                let sentinels: Vec<_> = hosts.iter().map(own).collect();
                let node = FredTransport::new(&config, first);
                Ok(Servers::sentinel(service_name.clone(), sentinels, node))
            }
            _ => Ok(Servers::single(FredTransport(config))),
        }
    }
}
