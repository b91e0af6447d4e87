use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use super::library::library;
use super::{Builder, Conn, Server};

/// The wall clock of one or more servers. It shows real time until it is first set; from then on it
/// stands still and moves, forward or back, only when a test moves it.
///
/// A command sees a change made before it was sent: every server reads the clock afresh when a
/// top-level command begins, also those that then freeze it for the command.
pub struct Clock {
    path: PathBuf,
    shared: &'static Shared,
}

/// The memory that clock.c maps.
#[repr(C)]
struct Shared {
    us: AtomicI64,
    tick_us: AtomicI64,
}

impl Clock {
    /// A clock that servers read from the file `path`.
    pub(super) fn create(path: PathBuf) -> Clock {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.expect("create the clock's file");
        file.set_len(size_of::<Shared>() as u64).expect("size the clock's file");
        // SAFETY: a fresh shared mapping of the bytes that the file has, all zero, aligned to a page. It is
        // never unmapped, so the reference is good for the life of the process.
        let shared = unsafe {
            let (access, share) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            let map = libc::mmap(
                std::ptr::null_mut(),
                size_of::<Shared>(),
                access,
                share,
                file.as_raw_fd(),
                0,
            );
            assert_ne!(map, libc::MAP_FAILED, "map the clock's file");
            &*map.cast::<Shared>()
        };
        Clock { path, shared }
    }

    /// Holds the clock at `us` microseconds after 1970.
    pub fn set_us(&self, us: i64) {
        assert!(us > 0, "a held clock is after 1970");
        self.shared.us.store(us, SeqCst);
    }

    /// Steps the clock; a negative number steps it back.
    pub fn advance_us(&self, us: i64) {
        self.set_us(self.now_us() + us);
    }

    /// Steps the clock; a negative number steps it back.
    pub fn advance_ms(&self, ms: i64) {
        self.advance_us(ms * 1000);
    }

    /// Moves a held clock on by this many microseconds each time the server reads it; 0 stops it.
    pub fn tick_us(&self, us: i64) {
        self.shared.tick_us.store(us, SeqCst);
    }

    /// Lets the clock run this many milliseconds behind real time, so that timers fire.
    pub fn run_behind_ms(&self, ms: i64) {
        assert!(ms > 0, "a clock runs behind real time or by it");
        self.shared.us.store(-1000 * ms, SeqCst);
    }

    /// The time that the servers see, in microseconds after 1970.
    pub fn now_us(&self) -> i64 {
        match self.shared.us.load(SeqCst) {
            held @ 1.. => held,
            behind => {
                let real = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
                real.as_micros() as i64 + behind
            }
        }
    }

    /// Lets the clock show real time again.
    pub fn release(&self) {
        self.shared.us.store(0, SeqCst);
    }

    /// The variables with which a server reads this clock.
    pub(super) fn env(&self) -> [(&'static str, &Path); 2] {
        [("LD_PRELOAD", preload()), ("RATELIMIT_TEST_CLOCK", &self.path)]
    }
}

/// The library built from clock.c.
fn preload() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| library("clock", include_str!("clock.c")))
}

/// The time at which a held clock begins: 14 November 2023, 22:13:20 UTC.
pub const START_US: i64 = 1_700_000_000_000_000;
/// The time of the examples in docs/commands.md: 21 November 2026, 05:19:48 UTC, which is 13:19:48 in Shanghai.
pub const DOCS_US: i64 = 1_795_238_388_000_000;

impl Server {
    /// A server whose clock stands at [`START_US`], and a connection.
    #[track_caller]
    pub fn with_held_clock() -> (Server, Conn) {
        Server::builder().with_held_clock()
    }

    /// Holds the clock at `ms` milliseconds after [`START_US`].
    pub fn at_ms(&self, ms: i64) {
        self.clock().set_us(START_US + ms * 1000);
    }
}

impl Builder {
    /// The same of a server that is described.
    #[track_caller]
    pub fn with_held_clock(self) -> (Server, Conn) {
        let server = self.with_clock_at(START_US);
        let conn = server.conn();
        (server, conn)
    }

    /// A server whose clock stands at a time.
    #[track_caller]
    pub fn with_clock_at(self, now_us: i64) -> Server {
        let server = self.clock(true).start();
        server.clock().set_us(now_us);
        server
    }
}

/// Microseconds after 1970 of `2026-03-29T01:00:00` in UTC.
pub fn unix_us(text: &str) -> i64 {
    let part = |range: std::ops::Range<usize>| text[range].parse::<i64>().unwrap();
    let (year, month, day) = (part(0..4), part(5..7), part(8..10));
    // Days from the civil date, counting years from March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days =
        365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 719_469;
    let seconds = days * 86_400 + part(11..13) * 3_600 + part(14..16) * 60 + part(17..19);
    seconds * 1_000_000
}
