//! A RESP2 client that costs less than the server it measures. (The `redis` crate spends 0.6 µs on parsing one reply of
//! five integers, more than Redis spends on answering it.)

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The reason why a measurement could not be made.
#[derive(Debug)]
pub enum BenchError {
    /// The error reply of the server, or why the measurement is not possible on it.
    Refused(String),
    Io(io::Error),
}

impl BenchError {
    /// A failure of the benchmark's own, in words.
    pub fn other(text: impl Into<String>) -> BenchError {
        BenchError::Io(io::Error::other(text.into()))
    }
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The errors of a server without a command, an option or a setting.
        let lacks = |text: &str| text.to_ascii_lowercase().contains("unknown");
        match self {
            BenchError::Refused(text) if lacks(text) => f.write_str("not there"),
            BenchError::Refused(text) => write!(f, "refused: {text}"),
            BenchError::Io(error) => error.fmt(f),
        }
    }
}

impl From<io::Error> for BenchError {
    fn from(error: io::Error) -> BenchError {
        BenchError::Io(error)
    }
}

pub type Result<T> = std::result::Result<T, BenchError>;

/// A reply of the server.
#[derive(Debug)]
pub enum ServerReply {
    Nil,
    Integer(i64),
    Text(Vec<u8>),
    Error(String),
    Array(Vec<ServerReply>),
}

impl ServerReply {
    pub fn integer(&self) -> Option<i64> {
        match self {
            ServerReply::Integer(value) => Some(*value),
            _ => None,
        }
    }

    /// A string; empty if it is anything else.
    pub fn text(&self) -> &str {
        match self {
            ServerReply::Text(bytes) => std::str::from_utf8(bytes).unwrap_or_default(),
            _ => "",
        }
    }

    /// Element `index` of an array; nil if there is none.
    pub fn at(&self, index: usize) -> &ServerReply {
        match self {
            ServerReply::Array(elements) => elements.get(index).unwrap_or(&ServerReply::Nil),
            _ => &ServerReply::Nil,
        }
    }
}

/// Commands packed for one write.
#[derive(Default)]
pub struct Batch {
    bytes: Vec<u8>,
    replies: usize,
}

impl Batch {
    /// A batch with the commands of `Batch::add`.
    pub fn of(commands: &str) -> Batch {
        let mut batch = Batch::default();
        batch.add(commands);
        batch
    }

    /// One command, with arguments of any bytes.
    pub fn words<W: AsRef<[u8]>>(words: impl IntoIterator<Item = W>) -> Batch {
        let mut batch = Batch::default();
        batch.add_words(words);
        batch
    }

    /// Appends one command for each line, with blanks between its words.
    pub fn add(&mut self, commands: &str) {
        commands.lines().for_each(|line| self.add_words(line.split_ascii_whitespace()));
    }

    fn add_words<W: AsRef<[u8]>>(&mut self, words: impl IntoIterator<Item = W>) {
        let words: Vec<W> = words.into_iter().collect();
        self.add_header(b'*', words.len());
        for word in &words {
            self.add_header(b'$', word.as_ref().len());
            self.bytes.extend_from_slice(word.as_ref());
            self.bytes.extend_from_slice(b"\r\n");
        }
        self.replies += 1;
    }

    fn add_header(&mut self, kind: u8, length: usize) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(length.to_string().as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }
}

/// One connection.
pub struct Client {
    stream: TcpStream,
    input: Vec<u8>,
    parsed: usize,
}

impl Client {
    pub fn connect(port: u16) -> Result<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        Ok(Client { stream, input: Vec::new(), parsed: 0 })
    }

    /// Runs one command.
    pub fn call(&mut self, command: &str) -> Result<ServerReply> {
        self.send(&Batch::of(command))?;
        self.receive()
    }

    /// Runs many commands, fifty at a time.
    pub fn call_all<S: AsRef<str>>(&mut self, commands: &[S]) -> Result<()> {
        for chunk in commands.chunks(50) {
            let mut batch = Batch::default();
            chunk.iter().for_each(|command| batch.add(command.as_ref()));
            self.exchange(&batch)?;
        }
        Ok(())
    }

    /// Sends a batch, and returns its replies and the time until the last of them.
    pub fn exchange(&mut self, batch: &Batch) -> Result<(Vec<ServerReply>, Duration)> {
        let started = Instant::now();
        self.send(batch)?;
        let mut replies = Vec::with_capacity(batch.replies);
        let mut refused = None;
        for _ in 0..batch.replies {
            match self.receive() {
                Ok(reply) => replies.push(reply),
                Err(BenchError::Refused(text)) => refused = Some(text),
                Err(error) => return Err(error),
            }
        }
        match refused {
            Some(text) => Err(BenchError::Refused(text)),
            None => Ok((replies, started.elapsed())),
        }
    }

    pub fn send(&mut self, batch: &Batch) -> Result<()> {
        Ok(self.stream.write_all(&batch.bytes)?)
    }

    /// Waits for one reply.
    pub fn receive(&mut self) -> Result<ServerReply> {
        loop {
            let mut rest = &self.input[self.parsed..];
            if let Some(reply) = parse(&mut rest)? {
                self.parsed = self.input.len() - rest.len();
                if rest.is_empty() {
                    self.input.clear();
                    self.parsed = 0;
                }
                return match reply {
                    ServerReply::Error(text) => Err(BenchError::Refused(text)),
                    reply => Ok(reply),
                };
            }
            let mut chunk = [0; 16 * 1024];
            match self.stream.read(&mut chunk)? {
                0 => return Err(BenchError::other("the server closed the connection")),
                read => self.input.extend_from_slice(&chunk[..read]),
            }
        }
    }
}

/// Takes one reply off the front of `input`, or none if it is not complete, which leaves `input` at any position.
fn parse(input: &mut &[u8]) -> Result<Option<ServerReply>> {
    let Some(end) = input.iter().position(|&byte| byte == b'\r') else { return Ok(None) };
    let Some(rest) = input.get(end + 2..) else { return Ok(None) };
    let malformed = || BenchError::other("the server sent a malformed reply");
    let (&kind, line) = input[..end].split_first().ok_or_else(malformed)?;
    let text = || String::from_utf8_lossy(line);
    let number = || text().parse::<i64>().map_err(|_| malformed());
    *input = rest;
    let reply = match kind {
        b'+' => ServerReply::Text(line.to_vec()),
        b'-' => ServerReply::Error(text().into_owned()),
        b':' => ServerReply::Integer(number()?),
        b'$' | b'*' if line == b"-1" => ServerReply::Nil,
        b'$' => {
            let length = usize::try_from(number()?).map_err(|_| malformed())?;
            let (Some(body), Some(rest)) = (input.get(..length), input.get(length + 2..)) else {
                return Ok(None);
            };
            *input = rest;
            ServerReply::Text(body.to_vec())
        }
        b'*' => {
            let mut elements = Vec::new();
            for _ in 0..number()? {
                match parse(input)? {
                    Some(element) => elements.push(element),
                    None => return Ok(None),
                }
            }
            ServerReply::Array(elements)
        }
        _ => return Err(malformed()),
    };
    Ok(Some(reply))
}
