//! Measures how much a limit admits when its master changes while clients call it. Prints the figures of docs/operations.md:
//! `cargo test --test server failovers:: -- --include-ignored --nocapture`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use support::*;

const LIMIT: u64 = 2_000;
const CLIENTS: u64 = 8;
/// The clients together use up the limit in about four seconds.
const PAUSE: Duration = Duration::from_millis(15);
const CHANGE_AFTER: Duration = Duration::from_secs(1);

/// All replies to the clients: how often each reply came, by its first word.
type Replies = BTreeMap<String, u64>;

/// Calls the limit from several clients for as long as `change` takes, and until each has been denied. A client keeps its
/// connection until it is refused or closed, then asks `master` where to go; every other client asks before each call, as
/// new processes do.
fn replies_during(master: &(impl Fn() -> u16 + Sync), change: impl FnOnce()) -> Replies {
    let over = AtomicBool::new(false);
    scope(|threads| {
        let over = &over;
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                threads.spawn(move || {
                    let mut replies = Replies::new();
                    let mut at: Option<(u16, Conn)> = None;
                    loop {
                        let is_over = over.load(SeqCst);
                        let port = match &at {
                            Some((port, _)) if client % 2 == 0 => *port,
                            _ => master(),
                        };
                        if at.as_ref().is_none_or(|(at, _)| *at != port) {
                            at = Conn::open(port).ok().map(|conn| (port, conn));
                        }
                        let call = format!("RL.WINDOW limit {LIMIT} 1h");
                        let reply = at.as_mut().map(|(_, conn)| conn.try_cmd(call.as_str()));
                        let word = match reply {
                            Some(Ok(error @ Value::ServerError(_))) => error_line(&error),
                            Some(Ok(reply)) if limited(&reply) == 0 => "allowed".to_owned(),
                            Some(Ok(_)) => "denied".to_owned(),
                            _ => "closed".to_owned(),
                        };
                        let word = word.split(' ').next().unwrap().to_owned();
                        if !["allowed", "denied", "NOREPLICAS"].contains(&word.as_str()) {
                            at = None;
                        }
                        let is_denied = word == "denied";
                        *replies.entry(word).or_default() += 1;
                        if is_over && is_denied {
                            return replies;
                        }
                        sleep(PAUSE);
                    }
                })
            })
            .collect();
        sleep(CHANGE_AFTER);
        change();
        over.store(true, SeqCst);
        let mut all = Replies::new();
        for client in clients {
            for (word, times) in client.join().expect("a client fails") {
                *all.entry(word).or_default() += times;
            }
        }
        all
    })
}

/// Neither too many nor too few calls were allowed, apart from those that lost their reply with a connection.
fn assert_exact(replies: &Replies) {
    let lost = replies.get("closed").copied().unwrap_or_default();
    assert!((LIMIT - lost.min(LIMIT)..=LIMIT).contains(&replies["allowed"]), "{replies:?}");
}

fn pair(config: &[&str]) -> [Server; 2] {
    let configured = |builder: Builder| config.iter().fold(builder, |it, line| it.config(*line));
    let master = configured(Server::builder()).start();
    let replica = configured(Server::builder().replica_of(&master)).start();
    eventually(SOON, || replica.info("master_link_status").as_deref() == Some("up"));
    [master, replica]
}

fn role(server: &Server) -> String {
    server.info("role").unwrap_or_default()
}

#[test]
fn failover_without_sentinel_admits_exactly_the_limit() {
    if Version::under_test().lacks("FAILOVER", (6, 2)) {
        return;
    }
    let servers = pair(&[]);
    let master = || servers.iter().find(|it| role(it) == "master").unwrap_or(&servers[0]).port();
    let replies = replies_during(&master, || {
        servers[0].conn().cmd("FAILOVER");
        eventually(SOON, || role(&servers[1]) == "master" && role(&servers[0]) == "slave");
    });
    println!("FAILOVER: {replies:?}");
    assert_exact(&replies);
}

/// The server or Sentinel that gets the command to change the master.
#[derive(Clone, Copy, PartialEq)]
enum Tell {
    Sentinel,
    Master,
}

/// A master with a replica, and three Sentinels, two of which must agree that the master is down.
fn failover_under_sentinel(tell: Tell, config: &[&str]) -> Replies {
    let servers = pair(config);
    let sentinels = [(); 3].map(|()| Sentinel::start(&servers[0], &servers[0], 2, &[]));
    sentinels.iter().for_each(|sentinel| sentinel.wait_until_knows(1, 2));
    let master = || sentinels[0].master_port().unwrap_or(servers[0].port());
    replies_during(&master, || {
        let begin = Instant::now();
        // Sentinel may have to learn first how the replica is.
        match tell {
            Tell::Sentinel => {
                eventually(SOON, || {
                    sentinels[0].ask("SENTINEL FAILOVER limits") == Some(Value::Okay)
                });
            }
            Tell::Master => assert_eq!(servers[0].conn().cmd("FAILOVER"), Value::Okay),
        }
        eventually(SOON, || role(&servers[1]) == "master");
        let promoted = begin.elapsed();
        eventually(SOON, || role(&servers[0]) == "slave");
        let two_masters = begin.elapsed().saturating_sub(promoted);
        // It waits until it is sure that the master did not change by mistake.
        eventually(2 * SOON, || master() == servers[1].port());
        println!(
            "two masters for {:.1} s, Sentinel names the new one after {:.1} s",
            two_masters.as_secs_f64(),
            begin.elapsed().as_secs_f64()
        );
    })
}

#[test]
#[ignore = "a minute: make soak"]
fn a_failover_by_sentinel_admits_exactly_the_limit_with_min_replicas_to_write() {
    let replies = failover_under_sentinel(Tell::Sentinel, &[]);
    println!("SENTINEL FAILOVER: {replies:?}");
    assert!((LIMIT..=2 * LIMIT).contains(&replies["allowed"]), "{replies:?}");
    let replies = failover_under_sentinel(Tell::Sentinel, &["min-replicas-to-write 1"]);
    println!("SENTINEL FAILOVER, min-replicas-to-write 1: {replies:?}");
    assert_exact(&replies);
    assert!(replies["NOREPLICAS"] > 0, "{replies:?}");
}

#[test]
#[ignore = "a minute: make soak"]
fn failover_under_sentinel_refuses_calls_until_sentinel_has_noticed() {
    let replies = failover_under_sentinel(Tell::Master, &[]);
    println!("FAILOVER under Sentinel: {replies:?}");
    assert_exact(&replies);
}
