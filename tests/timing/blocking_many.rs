//! BLOCK: thousands of waiting calls, and what they cost other clients.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::RwLockWriteGuard;
use std::thread;
use std::time::{Duration, Instant};

use support::*;

/// A turn of the event loop spends about two milliseconds on waiters. The rest is for a machine that does much else.
const LONGEST_SILENCE: Duration = Duration::from_millis(100);

/// Allows many connections to a test that runs by itself: each measures how long the server is busy.
fn alone() -> RwLockWriteGuard<'static, ()> {
    let most = rlimit::increase_nofile_limit(u64::MAX).expect("raise the limit of open files");
    assert!(most > 15_000, "only {most} files may be open");
    super::alone()
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

/// Runs `work` while another connection asks for a PONG all the time. The server may be busy for a short time only before
/// each, and no PONG may come later than that on a busy machine, which gives a server that has much to do an eighth of
/// its time and is late itself.
#[track_caller]
fn nobody_is_kept_waiting<T>(server: &Server, work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    let machine = Machine::watch();
    let (result, busiest, longest) = thread::scope(|scope| {
        let pings = scope.spawn(|| {
            let mut conn = server.conn();
            let (mut busiest, mut longest) = (Duration::ZERO, Duration::ZERO);
            while !is_over.load(SeqCst) {
                let (begin, before) = (Instant::now(), server.cpu_time());
                assert_eq!(conn.text("PING"), "PONG");
                let (took, busy) = (begin.elapsed(), server.cpu_time() - before);
                busiest = busiest.max(busy);
                longest = longest.max(took.saturating_sub(busy * 7));
                thread::sleep(Duration::from_micros(500));
            }
            (busiest, longest)
        });
        let result = work();
        is_over.store(true, SeqCst);
        let (busiest, longest) = pings.join().unwrap();
        (result, busiest, longest)
    });
    let excuse = machine.worst();
    let turn_us = server.info_ratelimit("waiting_longest_turn_us");
    let summary = format!(
        "busy for {busiest:?} before a PONG, {longest:?} without one beside that, longest turn {turn_us} us, \
         the machine was {excuse:?} late"
    );
    eprintln!("{summary}");
    assert!(busiest <= LONGEST_SILENCE, "{summary}");
    // Three may be late: the sender, the server and the reader.
    assert!(longest <= LONGEST_SILENCE + excuse * 3, "{summary}");
    result
}

fn acquire(limit: usize, id: usize, block: &str) -> String {
    format!("RL.ACQUIRE k {limit} 0 1 ID n{id} LEASE 600000 BLOCK {block}")
}

#[test]
fn a_release_that_serves_thousands_serves_them_in_order_and_delays_no_other_client() {
    const MANY: usize = 10_000;
    let _alone = alone();
    let (server, mut conn) = Server::builder().config("maxclients 12000").connect();
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
    // Calls of one turn of the server come in any order; those of different turns are served in order.
    let held = conn.held_ids("k");
    let numbers = held.iter().filter_map(|id| id.strip_prefix('n')?.parse::<usize>().ok());
    let hundreds: Vec<_> = numbers.map(|number| number / 100).collect();
    assert_eq!(hundreds.len(), MANY);
    assert!(hundreds.is_sorted(), "not in order");
    server.expect_no_waiting_calls();
}

#[test]
fn thousands_of_deadlines_at_one_time_delay_no_other_client() {
    const MANY: usize = 2_000;
    let _alone = alone();
    let (server, mut conn) = Server::connect();
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
    assert_eq!(server.info_ratelimit("waited_timed_out"), MANY as i64);
    server.expect_no_waiting_calls();
}

#[test]
fn thousands_of_lines_that_come_due_at_one_time_are_all_served_and_delay_no_other_client() {
    const MANY: usize = 1_000;
    let _alone = alone();
    let (server, mut conn) = Server::connect();
    let fill = |key: usize| format!("RL.ACQUIRE k{key} 1 0 LEASE 600000 ID x");
    conn.pipeline((0..MANY).map(fill));
    let waits = |key: usize| format!("RL.ACQUIRE k{key} 1 0 BLOCK 0 LEASE 600000");
    let mut line = wait_all(&server, (0..MANY).map(waits));
    nobody_is_kept_waiting(&server, || {
        conn.cmd("FLUSHALL");
        for waiter in &mut line {
            assert_eq!(limited(&waiter.recv()), 0);
        }
    });
    // Commands share one budget with each other.
    drop(line);
    let mut line = wait_all(&server, (0..MANY).map(waits));
    let ids: Vec<_> = (0..MANY).map(|key| conn.held_ids(&format!("k{key}")).remove(0)).collect();
    nobody_is_kept_waiting(&server, || {
        let release = |(key, id): (usize, &String)| format!("RL.RELEASE k{key} {id}");
        let released = conn.pipeline(ids.iter().enumerate().map(release));
        assert!(released.iter().all(|reply| *reply == Value::Int(1)));
        for waiter in &mut line {
            assert_eq!(limited(&waiter.recv()), 0);
        }
    });
    server.expect_no_waiting_calls();
}

#[test]
fn thousands_of_clients_that_disconnect_at_one_time_delay_no_other_client() {
    const MANY: usize = 2_000;
    let _alone = alone();
    let (server, mut conn) = Server::connect();
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
fn thousands_of_calls_over_several_limits_change_lines_and_delay_no_other_client() {
    const MANY: usize = 5_000;
    let _alone = alone();
    let (server, mut conn) = Server::builder().config("maxclients 12000").connect();
    let used = || server.info_number("used_memory");
    let before = used();
    for (key, lease) in [("a", 3_500_000), ("b", 3_600_000)] {
        conn.cmd(format!("RL.ACQUIRE {key} {MANY} 0 {MANY} ID all LEASE {lease}"));
    }
    let call = |id: usize| {
        let acquire = format!("ACQUIRE {MANY} 0 1 ID n{id} LEASE 600000");
        format!("RL.ALL 3 a b c {acquire} {acquire} WINDOW 9999 1h BLOCK 0 BY tenant{}", id % 7)
    };
    let mut line = wait_all(&server, (0..MANY).map(call));
    nobody_is_kept_waiting(&server, || {
        // What they wait for is free, but now the other denies them.
        assert_eq!(conn.int("RL.RELEASE b all"), 1);
        eventually(SOON, || conn.info_field("a", "waiting") == MANY as i64);
        assert_eq!(conn.int("RL.RELEASE a all"), 1);
        for waiter in &mut line {
            assert_eq!(limited(&waiter.recv()), 0);
        }
    });
    for key in ["a", "b"] {
        assert_eq!(conn.info_field(key, "reservations"), MANY as i64);
    }
    assert_eq!(conn.ints("RL.WINDOW_RO c 9999 1h 0")[2], 9_999 - MANY as i64);
    server.expect_no_waiting_calls();
    drop(line);
    conn.cmd("FLUSHALL");
    if server.version().is_from(7, 0) {
        eventually(SOON, || used() - before < 2_000_000);
    }
}

#[test]
fn a_head_of_another_line_is_served_in_time_while_thousands_are() {
    const MANY: usize = 3_000;
    let _alone = alone();
    let (server, mut conn) = Server::connect();
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

// ---- Long lines ----

#[test]
fn a_release_costs_the_same_however_many_wait() {
    let _alone = alone();
    let (server, mut conn) = Server::connect();
    let mut lines = [("few", 150), ("many", 1_500)].map(|(key, many)| {
        conn.cmd(format!("RL.ACQUIRE {key} 1 0 LEASE 600000"));
        let before = server.waiting();
        let mut line = VecDeque::new();
        for number in 1..=many {
            let mut waiter = server.conn();
            waiter.send(format!("RL.ACQUIRE {key} 1 0 LEASE 600000 BLOCK 0"));
            line.push_back(waiter);
            // The first calls are served; the others may end in any order.
            if number <= 150 {
                server.wait_until_waiting(before + number);
            }
        }
        server.wait_until_waiting(before + many);
        (key, line)
    });
    assert_of_least(
        |which| {
            let (key, line) = &mut lines[which];
            let before = server.cpu_time();
            for _ in 0..10 {
                let id = conn.held_ids(key).remove(0);
                assert_eq!(conn.int(format!("RL.RELEASE {key} {id}")), 1);
                let mut next = line.pop_front().expect("a waiting call");
                assert_eq!(limited(&next.recv()), 0, "{key}");
            }
            server.cpu_time() - before
        },
        |[few, many]| many < few * 4 + ms(5),
    );
    drop(lines);
    server.expect_no_waiting_calls();
}

// ---- Many lines in idle ----

#[test]
fn lines_in_idle_take_little_of_the_server_s_time_whatever_is_reserved() {
    const MANY: usize = 500;
    let _alone = alone();
    // Another client has written an id of the last one again.
    let hosts = [(1, ""), (500, ""), (500, "#02:id:1:600000:9999999999999999::-")].map(
        |(held, doubled)| {
            let (server, mut conn) = Server::connect();
            let reserve = |number| format!("RL.ACQUIRE k0 {held} 0 1 LEASE 600000 ID id{number}");
            conn.pipeline((0..held).map(reserve));
            if !doubled.is_empty() {
                conn.pipeline(["RL.RELEASE k0 id1", "RL.ACQUIRE k0 500 0 1 LEASE 600000 ID id"]);
                assert_eq!(conn.int(["ZADD", "k0", "-inf", doubled]), 1);
            }
            conn.pipeline((1..MANY).map(|key| format!("COPY k0 k{key}")));
            let waits = |key: usize| format!("RL.ACQUIRE k{key} {held} 0 BLOCK 0");
            let line = wait_all(&server, (0..MANY).map(waits));
            (server, line)
        },
    );
    assert_of_least(
        |which| {
            let (server, _) = &hosts[which];
            let (begin, before) = (Instant::now(), server.cpu_time());
            thread::sleep(ms(1_000));
            (server.cpu_time() - before).div_f64(begin.elapsed().as_secs_f64())
        },
        // A quarter of a core.
        |[few, many, doubled]| {
            [many, doubled].into_iter().all(|many| many < ms(250) && many < few * 3 + ms(10))
        },
    );
}
