//! BLOCK: thousands who wait, and what they cost everybody else.

mod support;

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use support::*;

/// A turn of the event loop spends about two milliseconds on waiters. The rest is for a machine that does much else.
const LONGEST_SILENCE: Duration = Duration::from_millis(100);

fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

/// Allows many connections, to one test at a time: each measures how long the server is busy.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let most = rlimit::increase_nofile_limit(u64::MAX).expect("raise the limit of open files");
    assert!(most > 15_000, "only {most} files may be open");
    alone
}

/// Many calls that wait, over as many connections, in this order.
#[track_caller]
fn wait_all(server: &Server, calls: impl Iterator<Item = String>) -> Vec<Conn> {
    let mut line = Vec::new();
    for call in calls {
        let mut conn = server.conn();
        conn.send(call);
        line.push(conn);
        // In order of arrival: the server reads connections of one turn in any order.
        if line.len() % 100 == 0 {
            server.wait_until_waiting(line.len());
        }
    }
    server.wait_until_waiting(line.len());
    line
}

/// Runs `work` while another connection asks for a PONG all the time. The longest time without one must be short, beside
/// what the machine itself was late.
#[track_caller]
fn nobody_is_kept_waiting<T>(server: &Server, work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    let machine = Machine::watch();
    let (result, longest) = thread::scope(|scope| {
        let pings = scope.spawn(|| {
            let mut conn = server.conn();
            let mut longest = Duration::ZERO;
            while !is_over.load(SeqCst) {
                let begin = Instant::now();
                assert_eq!(conn.text("PING"), "PONG");
                longest = longest.max(begin.elapsed());
                thread::sleep(Duration::from_micros(500));
            }
            longest
        });
        let result = work();
        is_over.store(true, SeqCst);
        (result, pings.join().unwrap())
    });
    let excuse = machine.worst();
    let turn_us = server.figure("waiting_longest_turn_us");
    eprintln!(
        "longest time without a PONG: {longest:?}, longest turn {turn_us} us, the machine was {excuse:?} late"
    );
    // Three are late: who asks, the server, and who reads.
    assert!(longest <= LONGEST_SILENCE + excuse * 3, "{longest:?} without a PONG, {excuse:?} late");
    result
}

fn acquire(limit: usize, id: usize, block: &str) -> String {
    format!("RL.ACQUIRE k {limit} 0 1 ID n{id} LEASE 600000 BLOCK {block}")
}

#[test]
fn one_release_that_serves_thousands_stops_nobody_and_serves_them_in_order() {
    const MANY: usize = 10_000;
    let _alone = alone();
    let server = Server::builder().config("maxclients 12000").start();
    let mut conn = server.conn();
    conn.cmd(format!("RL.ACQUIRE k {MANY} 0 {MANY} ID all LEASE 3600000"));
    let mut line = wait_all(&server, (0..MANY).map(|id| acquire(MANY, id, "0")));
    let mut late = server.conn();
    nobody_is_kept_waiting(&server, || {
        assert_eq!(conn.int("RL.RELEASE k all"), 1);
        // Nobody takes what they wait for before they have it.
        while server.waiting() > 0 {
            let answer = late.acquire(format!("RL.ACQUIRE k {MANY} 0 1"));
            assert!(answer.limited() == 2 || server.waiting() == 0, "{answer:?}");
        }
        for waiter in &mut line {
            assert_eq!(limited(&waiter.recv()), 0);
        }
    });
    // Calls of one turn of the server come in any order; those that were told apart are served in theirs.
    let held = conn.held_ids("k");
    let numbers = held.iter().filter_map(|id| id.strip_prefix('n')?.parse::<usize>().ok());
    let hundreds: Vec<_> = numbers.map(|number| number / 100).collect();
    assert_eq!(hundreds.len(), MANY);
    assert!(hundreds.is_sorted(), "not in order");
    server.expect_nobody_waits();
}

#[test]
fn thousands_of_deadlines_at_one_time_stop_nobody() {
    const MANY: usize = 2_000;
    let _alone = alone();
    let server = Server::start();
    let mut conn = server.conn();
    let fill =
        "for i = 1, 2000 do redis.call('RL.ACQUIRE', KEYS[1], 2000, 0, 'LEASE', 3600000) end";
    conn.cmd(["EVAL", fill, "1", "k"]);
    // The clock of a server that stands still does not move their deadlines: they come all at once.
    let mut line: Vec<_> = (0..MANY).map(|_| server.conn()).collect();
    for (id, waiter) in line.iter_mut().enumerate() {
        waiter.send(acquire(2_000, id, "8000"));
    }
    server.wait_until_waiting(MANY);
    let frozen = server.freeze();
    thread::sleep(ms(8_000));
    drop(frozen);
    nobody_is_kept_waiting(&server, || {
        for waiter in &mut line {
            assert_eq!(limited(&waiter.recv()), 2);
        }
    });
    assert_eq!(server.figure("waited_timed_out"), MANY as i64);
    server.expect_nobody_waits();
}

#[test]
fn thousands_of_lines_that_come_due_at_one_time_stop_nobody_and_none_is_forgotten() {
    const MANY: usize = 1_000;
    let _alone = alone();
    let server = Server::start();
    let mut conn = server.conn();
    let fill = |key: usize| format!("RL.ACQUIRE k{key} 1 0 LEASE 600000 ID x");
    conn.pipeline((0..MANY).map(fill));
    let mut line = wait_all(
        &server,
        (0..MANY).map(|key| format!("RL.ACQUIRE k{key} 1 0 BLOCK 0 LEASE 600000")),
    );
    nobody_is_kept_waiting(&server, || {
        conn.cmd("FLUSHALL");
        for waiter in &mut line {
            assert_eq!(limited(&waiter.recv()), 0);
        }
    });
    // Commands share one budget with each other.
    drop(line);
    let mut line = wait_all(
        &server,
        (0..MANY).map(|key| format!("RL.ACQUIRE k{key} 1 0 BLOCK 0 LEASE 600000")),
    );
    let ids: Vec<_> = (0..MANY).map(|key| conn.held_ids(&format!("k{key}")).remove(0)).collect();
    nobody_is_kept_waiting(&server, || {
        let release = |(key, id): (usize, &String)| format!("RL.RELEASE k{key} {id}");
        let released = conn.pipeline(ids.iter().enumerate().map(release));
        assert!(released.iter().all(|reply| *reply == Value::Int(1)));
        for waiter in &mut line {
            assert_eq!(limited(&waiter.recv()), 0);
        }
    });
    server.expect_nobody_waits();
}

#[test]
fn thousands_of_clients_that_go_at_one_time_stop_nobody() {
    const MANY: usize = 2_000;
    let _alone = alone();
    let server = Server::start();
    let mut conn = server.conn();
    conn.cmd("RL.ACQUIRE k 1 0 1 ID holder LEASE 600000");
    let mut line = wait_all(&server, (0..MANY).map(|id| acquire(1, id, "0")));
    let mut last = line.pop().unwrap();
    nobody_is_kept_waiting(&server, || {
        drop(line);
        server.wait_until_waiting(1);
    });
    conn.cmd("RL.RELEASE k holder");
    assert_eq!(acquired(&last.recv()).id(), format!("n{}", MANY - 1));
}

#[test]
fn a_head_of_another_line_is_served_in_time_while_thousands_are() {
    const MANY: usize = 3_000;
    let _alone = alone();
    let server = Server::start();
    let mut conn = server.conn();
    conn.cmd(format!("RL.ACQUIRE k {MANY} 0 {MANY} ID all LEASE 3600000"));
    let _line = wait_all(&server, (0..MANY).map(|id| acquire(MANY, id, "0")));
    let mut other = server.conn();
    assert_eq!(conn.int("RL.RELEASE k all"), 1);
    let machine = Machine::watch();
    let mut late = Vec::new();
    for _ in 0..3 {
        conn.cmd("RL.THROTTLE other 0 50 1s");
        let begin = Instant::now();
        assert_eq!(limited(&other.cmd("RL.THROTTLE other 0 50 1s 1 BLOCK 0")), 0);
        late.push(begin.elapsed().saturating_sub(ms(20)));
        conn.cmd("DEL other");
    }
    let (late, excuse) = (late.into_iter().min().unwrap(), machine.worst());
    assert!(late <= ms(30) + excuse, "{late:?} late, the machine {excuse:?}");
    server.wait_until_waiting(0);
}

// ---- Keys of any name ----

/// The processor time of some releases, each of which serves the next of a line.
#[track_caller]
fn cost_of_releases(
    server: &Server,
    conn: &mut Conn,
    key: &[u8],
    line: &mut Vec<Conn>,
) -> Duration {
    let before = server.cpu_time();
    for _ in 0..20 {
        let ids = held(&conn.cmd([b"RL.HELD", key]));
        assert_eq!(ids.len(), 1, "{}", key.escape_ascii());
        assert_eq!(conn.cmd([b"RL.RELEASE", key, &ids[0].id]), Value::Int(1));
        assert_eq!(limited(&line.remove(0).recv()), 0, "{}", key.escape_ascii());
    }
    server.cpu_time() - before
}

#[test]
fn a_release_costs_the_same_whatever_the_key_is_called_and_whoever_writes_others() {
    const MANY: usize = 3_000;
    let _alone = alone();
    let server = Server::start();
    let mut conn = server.conn();
    let mut costs = Vec::new();
    let keys: [&[u8]; 6] = [b"plain", b"", b"a}b", b"{}z", b"{q}x", b"{r}x"];
    for key in keys {
        conn.cmd("FLUSHALL");
        let hold: [&[u8]; 8] = [b"RL.ACQUIRE", key, b"1", b"0", b"ID", b"x", b"LEASE", b"600000"];
        assert_eq!(limited(&conn.cmd(hold)), 0);
        let mut line = Vec::new();
        for _ in 0..MANY {
            let mut waiter = server.conn();
            let waits: [&[u8]; 8] =
                [b"RL.ACQUIRE", key, b"1", b"0", b"LEASE", b"600000", b"BLOCK", b"0"];
            waiter.send(waits);
            line.push(waiter);
            if line.len() <= 20 {
                server.wait_until_waiting(line.len());
            }
        }
        server.wait_until_waiting(MANY);
        if key == b"{r}x" {
            // Where waiters were blocked once: each write of it made the server try them all.
            for _ in 0..20 {
                conn.cmd(["LPUSH", "{r}\0ratelimit", "x"]);
                conn.cmd(["DEL", "{r}\0ratelimit"]);
            }
        }
        costs.push(cost_of_releases(&server, &mut conn, key, &mut line));
        drop(line);
        server.expect_nobody_waits();
    }
    eprintln!("20 releases with {MANY} waiting: {costs:?}");
    let least = costs.iter().min().unwrap();
    for (key, cost) in keys.iter().zip(&costs) {
        assert!(*cost < *least * 4 + ms(5), "{}: {costs:?}", key.escape_ascii());
    }
}

#[test]
fn a_key_that_a_client_can_name_wakes_nobody() {
    const MANY: usize = 4_000;
    let _alone = alone();
    let server = Server::start();
    let mut conn = server.conn();
    conn.cmd("RL.ACQUIRE q 1 0 LEASE 600000");
    let _line = wait_all(&server, (0..MANY).map(|_| "RL.ACQUIRE q 1 0 BLOCK 0".to_owned()));
    let cost = |conn: &mut Conn, key: &str| {
        let before = server.cpu_time();
        for _ in 0..50 {
            conn.cmd(["ZADD", key, "1", "x"]);
            conn.cmd(["DEL", key]);
        }
        server.cpu_time() - before
    };
    let other = cost(&mut conn, "other");
    let old = cost(&mut conn, "{q}\0ratelimit");
    eprintln!("50 writes with {MANY} waiting: {old:?}, of another key {other:?}");
    assert!(old < other * 4 + ms(5), "{old:?}, of another key {other:?}");
}

// ---- Many lines in idle ----

#[test]
fn lines_in_idle_do_not_fill_the_server_s_time() {
    const MANY: usize = 500;
    let _alone = alone();
    let server = Server::start();
    let mut conn = server.conn();
    conn.pipeline((0..MANY).map(|key| format!("RL.ACQUIRE k{key} 1 0 LEASE 600000")));
    let _line = wait_all(&server, (0..MANY).map(|key| format!("RL.ACQUIRE k{key} 1 0 BLOCK 0")));
    let (begin, before) = (Instant::now(), server.cpu_time());
    thread::sleep(ms(1_000));
    let share = (server.cpu_time() - before).as_secs_f64() / begin.elapsed().as_secs_f64();
    eprintln!("{MANY} lines in idle take {:.1} % of a core", share * 100.0);
    assert!(share < 0.25, "{share}");
}
