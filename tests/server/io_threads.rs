//! With `io-threads` a server reads commands, and some servers look for their keys, in threads other than the one that
//! runs them. Whatever is sent then, the server lives, and its append-only file loads.
//!
//! `RATELIMIT_FLOOD_SECONDS` says how long each flood lasts.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use support::*;

const COUNTERS: usize = 2;

/// Calls whose keys can be found.
const USABLE: [&str; 4] = [
    "RL.ALL 1 {u}:c THROTTLE 999999 999999 1",
    "RL.ALL 2 {u}:a {u}:b WINDOW 9 1 WINDOW 9 1",
    "RL.ALL_RO 2 {u}:a {u}:b WINDOW 9 1 WINDOW 9 1",
    "SET {u}:d 1",
];

/// Calls without a number that keys could be found with, and with keys of two slots. From a client that is not
/// authenticated a server takes no more words than these have.
const UNUSABLE: [&str; 4] = [
    "RL.ALL x a b WINDOW 1 60", "RL.ALL 99 a b WINDOW 1 60", "RL.ALL_RO -1 a b WINDOW 1 60",
    "RL.ALL 2 foo bar WINDOW 9 1 WINDOW 9 1",
];

fn flood_time() -> Duration {
    Duration::from_secs(env_number("RATELIMIT_FLOOD_SECONDS").unwrap_or(3))
}

/// A server with an append-only file and threads that read.
fn threaded() -> Builder {
    let builder = Server::builder().aof().config("io-threads 4");
    // By default the threads of older servers only write.
    match Version::under_test().is_from(8, 0) {
        true => builder,
        false => builder.config("io-threads-do-reads yes"),
    }
}

/// A client that sends all calls at once, over and over again. It reads as little of the replies as it can: the more it
/// sends, the sooner a server dies that does.
struct Flood {
    stream: TcpStream,
    calls: Vec<u8>,
    len: usize,
    replies: Vec<u8>,
}

/// The end of the replies: of a call that needs no authentication.
const LAST_CALL: &str = "HELLO 9";
const LAST_REPLY: &[u8] = b"-NOPROTO unsupported protocol version\r\n";

impl Flood {
    /// These calls, this many times in a row.
    fn new(port: u16, calls: &[&str], times: usize) -> Flood {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("connect to the server");
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let lines = calls.repeat(times).into_iter().chain([LAST_CALL]);
        let packed = lines.flat_map(|line| redis::pack_command(&line.words())).collect();
        Flood { stream, calls: packed, len: calls.len() * times, replies: Vec::new() }
    }

    /// Sends them once; the replies.
    fn send(&mut self) -> &[u8] {
        self.stream.write_all(&self.calls).expect("send to a server that lives");
        self.replies.clear();
        let mut bytes = [0; 16_384];
        while !self.replies.ends_with(LAST_REPLY) {
            match self.stream.read(&mut bytes) {
                Ok(0) => panic!("the server has closed the connection"),
                Ok(read) => self.replies.extend_from_slice(&bytes[..read]),
                Err(error) => panic!("the server does not answer: {error}"),
            }
        }
        &self.replies
    }
}

/// Sends all calls over and over again, while others count in a plain key. If some clients are `unauthenticated`, they alone
/// send the calls without usable keys.
#[track_caller]
fn survives(mut server: Server, unauthenticated: bool) {
    let mut admin = server.conn();
    let counters: Vec<_> = (0..COUNTERS).map(|_| server.conn()).collect();
    let flood = |calls: &[&str], times| Flood::new(server.port(), calls, times);
    let mut floods = vec![];
    for _ in 0..3 {
        floods.push((flood(&USABLE, 30), false));
        if !unauthenticated {
            floods.push((flood(&UNUSABLE, 30), false));
        }
    }
    if unauthenticated {
        // It is asked of new connections only.
        assert_eq!(admin.text("CONFIG SET requirepass secret"), "OK");
        // Such a connection is closed if more than a kilobyte of replies is not sent yet, so a busy machine gets few calls
        // at a time.
        floods.extend((0..3).map(|_| (flood(&UNUSABLE, 2), true)));
    }
    let end = Instant::now() + flood_time();
    let (counted, sent) = (AtomicI64::new(0), AtomicI64::new(0));
    thread::scope(|scope| {
        for mut conn in counters {
            let counted = &counted;
            scope.spawn(move || {
                while Instant::now() < end {
                    let replies = conn.pipeline(["INCR counter"; 50]);
                    assert!(replies.iter().all(|reply| matches!(reply, Value::Int(_))));
                    counted.fetch_add(50, SeqCst);
                }
            });
        }
        for (mut flood, is_refused) in floods {
            let sent = &sent;
            scope.spawn(move || {
                while Instant::now() < end {
                    assert_eq!(flood.send().starts_with(b"-NOAUTH "), is_refused);
                    sent.fetch_add(flood.len as i64, SeqCst);
                }
            });
        }
    });
    assert!(server.is_running());
    assert_eq!(admin.text(["CONFIG", "SET", "requirepass", ""]), "OK");
    // Redis 8 with I/O threads may answer before it has written to the file, so a crash might lose what was counted.
    server.restart(Stop::NoSave);
    assert_eq!(server.conn().text("GET counter"), counted.load(SeqCst).to_string());
    println!("{} calls beside {} of INCR", sent.load(SeqCst), counted.load(SeqCst));
}

#[test]
fn no_flood_of_calls_crashes_a_server_or_a_cluster_with_io_threads() {
    for unauthenticated in [false, true] {
        survives(threaded().start(), unauthenticated);
        survives(threaded().cluster().start(), unauthenticated);
    }
}
