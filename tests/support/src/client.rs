use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use redis_client::{pack_command, Parser, Value};

use super::wait::slowness;

/// No reply takes longer: a server that hangs fails the test instead of hanging it too.
const PATIENCE: Duration = Duration::from_secs(30);

/// A command: a line that is split on blanks, or the arguments themselves.
pub trait CommandWords {
    /// The arguments, the command's name first.
    fn words(&self) -> Vec<Vec<u8>>;
}

impl CommandWords for str {
    fn words(&self) -> Vec<Vec<u8>> {
        self.split_ascii_whitespace().map(|word| word.as_bytes().to_vec()).collect()
    }
}

impl CommandWords for String {
    fn words(&self) -> Vec<Vec<u8>> {
        self.as_str().words()
    }
}

impl<T: AsRef<[u8]>> CommandWords for [T] {
    fn words(&self) -> Vec<Vec<u8>> {
        self.iter().map(|word| word.as_ref().to_vec()).collect()
    }
}

impl<T: AsRef<[u8]>, const N: usize> CommandWords for [T; N] {
    fn words(&self) -> Vec<Vec<u8>> {
        self.as_slice().words()
    }
}

impl<T: AsRef<[u8]>> CommandWords for Vec<T> {
    fn words(&self) -> Vec<Vec<u8>> {
        self.as_slice().words()
    }
}

impl<W: CommandWords + ?Sized> CommandWords for &W {
    fn words(&self) -> Vec<Vec<u8>> {
        (**self).words()
    }
}

/// A connection. An error of the server is a reply like others; a failure of the connection is a panic.
pub struct Conn {
    reader: BufReader<TcpStream>,
    parser: Parser,
}

impl Conn {
    /// Connects to `port` on this host, which may be closed.
    pub fn open(port: u16) -> io::Result<Conn> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE * slowness()))?;
        Ok(Conn { reader: BufReader::new(stream), parser: Parser::new() })
    }

    /// Sends a command and returns its reply.
    #[track_caller]
    pub fn cmd(&mut self, words: impl CommandWords) -> Value {
        let words = words.words();
        match self.try_cmd(&words) {
            Ok(reply) => reply,
            Err(error) => panic!("{}: {error}", as_line(&words)),
        }
    }

    /// Does what `cmd` does, and returns a failure of the connection.
    pub fn try_cmd(&mut self, words: impl CommandWords) -> io::Result<Value> {
        self.socket().write_all(&pack_command(&words.words()))?;
        self.try_recv()
    }

    /// Sends a command whose reply is an array of integers.
    #[track_caller]
    pub fn ints(&mut self, words: impl CommandWords) -> Vec<i64> {
        ints(&self.cmd(words))
    }

    /// Sends a command whose reply is an integer.
    #[track_caller]
    pub fn int(&mut self, words: impl CommandWords) -> i64 {
        match self.cmd(words) {
            Value::Int(number) => number,
            other => panic!("not an integer: {other:?}"),
        }
    }

    /// Sends a command whose reply is a string.
    #[track_caller]
    pub fn text(&mut self, words: impl CommandWords) -> String {
        text(&self.cmd(words))
    }

    /// Sends a command whose reply is an error, and returns it with its code: `WRONGTYPE Operation against ...`.
    #[track_caller]
    pub fn err(&mut self, words: impl CommandWords) -> String {
        error_line(&self.cmd(words))
    }

    /// Sends a command and asserts that the reply is an error that begins with `error`, which includes the code.
    #[track_caller]
    pub fn refuses(&mut self, words: impl CommandWords, begin: &str) {
        let words = words.words();
        assert_refused(&self.cmd(&words), begin, &as_line(&words));
    }

    /// Sends all commands at once and returns their replies.
    #[track_caller]
    pub fn pipeline<W: CommandWords>(
        &mut self,
        commands: impl IntoIterator<Item = W>,
    ) -> Vec<Value> {
        let packed: Vec<_> =
            commands.into_iter().map(|words| pack_command(&words.words())).collect();
        self.socket().write_all(&packed.concat()).expect("send a pipeline");
        packed.iter().map(|_| self.recv()).collect()
    }

    /// The replies to commands in a transaction.
    #[track_caller]
    pub fn transaction<W: CommandWords>(
        &mut self,
        commands: impl IntoIterator<Item = W>,
    ) -> Vec<Value> {
        self.cmd("MULTI");
        self.pipeline(commands);
        self.array("EXEC")
    }

    /// Sends a command whose reply is an array.
    #[track_caller]
    pub fn array(&mut self, words: impl CommandWords) -> Vec<Value> {
        elements(&self.cmd(words)).to_vec()
    }

    /// The value of a setting, by CONFIG GET.
    #[track_caller]
    pub fn setting(&mut self, name: &str) -> String {
        let pair = self.array(["CONFIG", "GET", name]);
        text(pair.get(1).unwrap_or_else(|| panic!("there is no setting {name}")))
    }

    /// The value and the expiry of a key, to assert that nothing changes them.
    pub fn dumped(&mut self, key: &str) -> (Value, Value) {
        (self.cmd(["DUMP", key]), self.cmd(["PTTL", key]))
    }

    /// A field of RL.INFO; 0 where there is no key.
    #[track_caller]
    pub fn info_field(&mut self, key: &str, name: &str) -> i64 {
        let fields = flat(&self.cmd(["RL.INFO", key]));
        let field = fields.chunks(2).find(|pair| pair[0] == name);
        field.map_or(0, |pair| pair[1].parse().expect("a number"))
    }

    /// The entry of a command in COMMAND INFO.
    #[track_caller]
    pub fn command_info(&mut self, name: &str) -> Vec<Value> {
        elements(&self.array(["COMMAND", "INFO", name])[0]).to_vec()
    }

    /// Sends a command without waiting for its reply.
    #[track_caller]
    pub fn send(&mut self, words: impl CommandWords) {
        self.socket().write_all(&pack_command(&words.words())).expect("send a command");
    }

    /// The next reply.
    #[track_caller]
    pub fn recv(&mut self) -> Value {
        self.try_recv().expect("receive a reply")
    }

    /// Does what `recv` does, and returns a failure of the connection.
    pub fn try_recv(&mut self) -> io::Result<Value> {
        self.parser.parse_value(Bytewise(&mut self.reader)).map_err(io::Error::other)
    }

    /// Waits for `time` and returns false if a byte of a reply comes meanwhile.
    pub fn silent_for(&mut self, time: Duration) -> bool {
        self.socket().set_read_timeout(Some(time)).unwrap();
        let silent = loop {
            match self.reader.fill_buf() {
                // A process that was stopped and goes on.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    break matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
                }
                Ok(_) => break false,
            }
        };
        self.socket().set_read_timeout(Some(PATIENCE * slowness())).unwrap();
        silent
    }

    /// Waits until the server closes the connection; panics when it sends something instead.
    #[track_caller]
    pub fn expect_closed(&mut self) {
        match self.reader.fill_buf() {
            Ok(rest) => assert!(rest.is_empty(), "not closed: {}", rest.escape_ascii()),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }

    /// The connection's number, as in CLIENT KILL ID and CLIENT UNBLOCK.
    #[track_caller]
    pub fn id(&mut self) -> i64 {
        self.int("CLIENT ID")
    }

    /// The socket, to send bytes that are no command.
    pub fn socket(&mut self) -> &mut TcpStream {
        self.reader.get_mut()
    }
}

/// The elements of an array.
#[track_caller]
pub fn elements(reply: &Value) -> &[Value] {
    match reply {
        Value::Array(values) => values,
        Value::ServerError(_) => panic!("an error: {}", error_line(reply)),
        other => panic!("not an array: {other:?}"),
    }
}

/// The integers of an array.
#[track_caller]
pub fn ints(reply: &Value) -> Vec<i64> {
    ints_of(elements(reply))
}

/// These elements, which must be integers.
#[track_caller]
pub fn ints_of(values: &[Value]) -> Vec<i64> {
    let int = |value: &Value| match value {
        Value::Int(number) => *number,
        _ => panic!("not an array of integers: {values:?}"),
    };
    values.iter().map(int).collect()
}

/// The text of a string of any kind.
#[track_caller]
pub fn text(reply: &Value) -> String {
    match reply {
        Value::Okay => "OK".into(),
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.clone(),
        other => panic!("not a string: {other:?}"),
    }
}

/// All texts and numbers in a reply, from left to right.
pub fn flat(reply: &Value) -> Vec<String> {
    match reply {
        Value::Array(values) | Value::Set(values) => values.iter().flat_map(flat).collect(),
        Value::Map(pairs) => pairs.iter().flat_map(|(k, v)| [flat(k), flat(v)].concat()).collect(),
        Value::Int(number) => vec![number.to_string()],
        Value::Nil => vec![],
        other => vec![text(other)],
    }
}

/// The line of an error, with its code.
#[track_caller]
pub fn error_line(reply: &Value) -> String {
    match reply {
        Value::ServerError(error) => match error.details() {
            Some(details) => format!("{} {details}", error.code()),
            None => error.code().into(),
        },
        other => panic!("not an error: {other:?}"),
    }
}

/// The beginning of the error of a refused MODULE LOAD. It is the server's own; the log says the reason.
pub const LOAD_FAILED: &str = "ERR Error loading the extension";

/// Asserts that a reply is an error that begins with `error`, which includes the code. `call` is for the message.
#[track_caller]
pub fn assert_refused(reply: &Value, begin: &str, call: &str) {
    assert_ne!(begin.trim_end(), "ERR", "{call}: nearly all errors begin so: say which one it is");
    let error = error_line(reply);
    assert!(error.starts_with(begin), "{call}: {error:?} does not begin with {begin:?}");
}

/// A command as text, for messages.
pub(super) fn as_line(words: &[Vec<u8>]) -> String {
    words.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" ")
}

/// Hands out one byte at a time, so that the parser takes no byte beyond the reply it is asked for
/// and `silent_for` knows what is left.
struct Bytewise<'a>(&'a mut BufReader<TcpStream>);

impl Read for Bytewise<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let one = buffer.len().min(1);
        loop {
            // A read with a timeout is not taken up again by the kernel after a signal.
            match self.0.read(&mut buffer[..one]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }
}
