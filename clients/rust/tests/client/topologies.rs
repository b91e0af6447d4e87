//! Masters that Sentinel names, and clusters.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Instant;

use redis_ratelimit_client::transport::Servers;
use redis_ratelimit_client::{Clause, Error, Limiter, Semaphore, Unreachable, Window};
use support::{eventually, text, wait_for_sync, Cluster, Sentinel, Server};

use super::{patient, per_day, rate, until, url, DEADLINE, LONG, MS, PATIENCE, SLACK};

/// A Sentinel that watches a master.
fn watch(master: &Server) -> Sentinel {
    let times =
        ["sentinel down-after-milliseconds limits 1000", "sentinel failover-timeout limits 5000"];
    Sentinel::start(master, master, 1, &times)
}

fn named_by(sentinel: &Sentinel) -> Servers {
    Servers::open_sentinel("limits", [url(sentinel.port())], "redis://master").unwrap()
}

/// Calls until one is decided by a server.
async fn until_decided(limiter: &Limiter, key: &str) {
    let is_decided = async || limiter.take(key, &rate()).await.is_ok_and(|reply| reply.reachable);
    until(is_decided).await;
}

#[tokio::test]
async fn calls_go_to_the_new_master_after_a_failover() {
    let master = Server::start();
    let replica = Server::replica_of(&master, true);
    let sentinel = watch(&master);
    sentinel.wait_until_knows(1, 0);
    let builder = Limiter::builder(named_by(&sentinel)).deadline(DEADLINE);
    let limiter = builder.unreachable(Unreachable::Allow).build().unwrap();
    until_decided(&limiter, "k").await;
    let frozen = master.freeze();
    for _ in 0..4 {
        let begin = Instant::now();
        assert!(!limiter.take("k", &rate()).await.unwrap().reachable);
        assert!(begin.elapsed() < DEADLINE + SLACK);
    }
    // A server that changes its role hangs up.
    let replication = || replica.try_ask("INFO replication").map(|reply| text(&reply));
    eventually(PATIENCE, || replication().is_some_and(|text| text.contains("role:master")));
    until_decided(&limiter, "k").await;
    until_decided(&limiter, "after").await;
    assert_eq!(replica.conn().int("EXISTS after"), 1);
    drop(frozen);
}

#[tokio::test]
async fn a_master_that_became_a_replica_is_left_for_the_new_one() {
    let (first, second) = (Server::start(), Server::start());
    let sentinel = watch(&first);
    let limiter = patient(named_by(&sentinel));
    assert!(limiter.take("k", &rate()).await.unwrap().reachable);
    // Like a failover, but at once.
    sentinel.ask("SENTINEL REMOVE limits").unwrap();
    let monitor = format!("SENTINEL MONITOR limits 127.0.0.1 {} 1", second.port());
    sentinel.ask(&monitor).unwrap();
    first.conn().cmd(format!("REPLICAOF 127.0.0.1 {}", second.port()));
    let error = limiter.take("k", &rate()).await.unwrap_err();
    assert_eq!(error.code(), Some("READONLY"));
    assert!(limiter.take("k", &rate()).await.unwrap().reachable);
    assert_eq!(second.conn().int("EXISTS k"), 1);
    let port = second.port();
    drop(second);
    let error = limiter.held("k").await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("the master of Sentinel at 127.0.0.1:{port}: ")), "{error}");
}

#[tokio::test]
async fn a_sentinel_that_hangs_is_given_up_at_the_deadline() {
    // Accepts connections and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let sentinels = [url(silent.local_addr().unwrap().port())];
    let servers = Servers::open_sentinel("limits", sentinels, "redis://master").unwrap();
    let builder = Limiter::builder(servers).deadline(DEADLINE);
    let limiter = builder.unreachable(Unreachable::Allow).build().unwrap();
    for _ in 0..3 {
        let begin = Instant::now();
        assert!(!limiter.take("k", &rate()).await.unwrap().reachable);
        assert!(begin.elapsed() < DEADLINE + SLACK);
    }
    // A sentinel that answers is found although another one is silent.
    let master = Server::start();
    let sentinel = watch(&master);
    let sentinels = [url(silent.local_addr().unwrap().port()), url(sentinel.port())];
    let servers = Servers::open_sentinel("limits", sentinels, "redis://master").unwrap();
    let limiter = Limiter::builder(servers).deadline(PATIENCE / 10).build().unwrap();
    assert!(limiter.take("k", &rate()).await.unwrap().reachable);
}

#[tokio::test]
async fn calls_in_a_cluster_find_the_node_of_their_key() {
    let cluster = Cluster::of(3, 0);
    let servers = Servers::open_cluster([url(cluster.node(1).port())]).unwrap();
    let limiter = patient(servers);
    let window = per_day(1000);
    for key in 0..50 {
        let key = format!("user:{key}");
        assert_eq!(limiter.take(&key, &window).await.unwrap().remaining, 999);
        let node = cluster.node(cluster.master_of(&key));
        assert_eq!(node.conn().int(format!("EXISTS {key}")), 1);
    }
    let jobs = Semaphore::new(1);
    let mut permit = limiter.acquire("{u}jobs", &jobs).await.unwrap();
    let denied = limiter.acquire("{u}jobs", &jobs).block(MS * 20).await;
    assert!(matches!(denied, Err(Error::Denied(_))));
    permit.release().await.unwrap();
    let limits =
        || [Clause::acquire("{u}tokens", &window).quantity(10), Clause::acquire("{u}jobs", &jobs)];
    let mut both = limiter.acquire_all(limits()).await.unwrap();
    both.set([("{u}tokens", 3)]).unwrap();
    both.apply().await.unwrap();
    assert_eq!(limiter.look("{u}tokens", &window).await.unwrap().remaining, 997);
    let charge = [Clause::take("{u}tokens", &window), Clause::take("elsewhere", &window)];
    let error = limiter.all(charge.clone()).force().await.unwrap_err();
    assert_eq!(error.code(), Some("CROSSSLOT"));
    let error = limiter.all(charge).await.unwrap_err();
    assert_eq!(error.code(), Some("CROSSSLOT"));
    // Each node counts its own denials.
    let none = per_day(0);
    for key in ["a", "b", "c", "d", "b"] {
        let _ = limiter.take(key, &none).await.unwrap();
    }
    let top = limiter.top_and_reset(2).await.unwrap();
    assert_eq!((top.len(), top[0].denials), (2, 2));
    for node in 0..3 {
        cluster.node(node).conn().cmd(["CONFIG", "SET", "ratelimit.policies", "p WINDOW 1 1d"]);
    }
    for key in 0..20 {
        let _ = limiter.take(format!("p{key}"), &Window::policy("p")).await.unwrap();
    }
    let policies = limiter.policies().await.unwrap();
    assert_eq!((policies.len(), policies[0].allowed), (1, 20));
}

#[tokio::test]
async fn the_settings_of_the_first_node_apply_to_all() {
    let cluster = Cluster::of(3, 0);
    for node in 0..3 {
        cluster.node(node).conn().cmd("ACL SETUSER app on >secret ~* +@all");
    }
    let node = cluster.node(cluster.master_of("k"));
    // Refuses connections.
    let first = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nodes = [format!("redis://app:secret@{first}/"), url(node.port())];
    let limiter = patient(Servers::open_cluster(nodes).unwrap());
    assert!(limiter.take("k", &rate()).await.unwrap().reachable);
    assert!(node.conn().text("CLIENT LIST").contains("user=app"));
}

#[tokio::test]
async fn a_slot_that_moves_is_followed_and_no_call_is_lost() {
    let cluster = Cluster::of(3, 0);
    let servers = Servers::open_cluster([url(cluster.node(0).port())]).unwrap();
    let limiter = patient(servers);
    let window = per_day(1000);
    assert_eq!(limiter.take("b", &window).await.unwrap().remaining, 999);
    let from = cluster.master_of("b");
    let to = (from + 1) % 3;
    let (source, target) = (cluster.node(from), cluster.node(to));
    for key in ["{b}x", "{b}y"] {
        let _ = limiter.take(key, &window).await.unwrap();
    }
    // Calls at the same time, each of which must be counted once.
    let is_moved = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let (limiter, window, is_moved) =
                (limiter.clone(), per_day(1_000_000), Arc::clone(&is_moved));
            tokio::spawn(async move {
                let mut counted = 0;
                while !is_moved.load(Relaxed) {
                    assert!(limiter.take("{b}z", &window).await.unwrap().is_allowed());
                    counted += 1;
                }
                counted
            })
        })
        .collect();
    let slot = source.conn().int("CLUSTER KEYSLOT b");
    let (source_id, target_id) = (cluster.id(from), cluster.id(to));
    target.conn().cmd(format!("CLUSTER SETSLOT {slot} IMPORTING {source_id}"));
    source.conn().cmd(format!("CLUSTER SETSLOT {slot} MIGRATING {target_id}"));
    for key in ["b", "{b}x", "{b}y", "{b}z"] {
        source.conn().cmd(format!("MIGRATE 127.0.0.1 {} {key} 0 5000", target.port()));
    }
    // The reply is ASK: this call goes to the other node.
    assert_eq!(limiter.take("b", &window).await.unwrap().remaining, 998);
    let charged = [Clause::take("b", &window)];
    assert_eq!(limiter.all(charged).force().await.unwrap().remaining, 997);
    let mut reservation = limiter.acquire("b", &window).block(MS).await.unwrap();
    reservation.apply().await.unwrap();
    // A transaction follows ASK too.
    let both = ["{b}x", "{b}y"].map(|key| Clause::acquire(key, &window));
    limiter.acquire_all(both).await.unwrap().apply().await.unwrap();
    for node in [target, source] {
        node.conn().cmd(format!("CLUSTER SETSLOT {slot} NODE {target_id}"));
    }
    // The reply is MOVED.
    assert_eq!(limiter.take("b", &window).await.unwrap().remaining, 995);
    assert_eq!(limiter.take("b", &window).await.unwrap().remaining, 994);
    assert_eq!(limiter.look("{b}y", &window).await.unwrap().remaining, 998);
    is_moved.store(true, Relaxed);
    let mut counted = 0;
    for caller in callers {
        counted += caller.await.unwrap();
    }
    let left = limiter.look("{b}z", &per_day(1_000_000)).await.unwrap().remaining;
    assert_eq!(1_000_000 - left, counted);
}

#[tokio::test]
async fn a_node_that_is_away_takes_no_other_with_it_and_its_replica_takes_over() {
    let mut cluster = Cluster::of(3, 1);
    cluster.notice_the_dead();
    let nodes: Vec<_> = (0..6).map(|node| url(cluster.node(node).port())).collect();
    let builder = Limiter::builder(Servers::open_cluster(nodes).unwrap()).deadline(LONG);
    let limiter = builder.unreachable(Unreachable::Allow).build().unwrap();
    for key in ["a", "b"] {
        until_decided(&limiter, key).await;
    }
    let (lost, other) = (cluster.master_of("b"), cluster.master_of("a"));
    assert_ne!(lost, other);
    wait_for_sync(cluster.node(lost), cluster.node(cluster.replica_of(lost)));
    cluster.kill(lost);
    let mut decided = 0;
    for _ in 0..5 {
        let begin = Instant::now();
        assert!(!limiter.take("b", &rate()).await.unwrap().reachable);
        assert!(begin.elapsed() < LONG + SLACK);
        decided += u32::from(limiter.take("a", &rate()).await.is_ok_and(|reply| reply.reachable));
    }
    // A busy machine may be late for some.
    assert!(decided > 2, "another node decides as ever: {decided} of 5");
    until_decided(&limiter, "b").await;
}

#[tokio::test]
async fn a_node_that_hangs_holds_up_no_call_of_another() {
    let cluster = Cluster::of(3, 0);
    let (hung, live) = (cluster.master_of("b"), cluster.master_of("a"));
    let open = |nodes: [usize; 2]| {
        let nodes = nodes.map(|node| url(cluster.node(node).port()));
        let builder = Limiter::builder(Servers::open_cluster(nodes).unwrap());
        builder.deadline(LONG).unreachable(Unreachable::Allow).build().unwrap()
    };
    let masters = (0..120).map(|number| format!("user:{number}"));
    let masters: Vec<_> = masters.map(|key| (cluster.master_of(&key), key)).collect();
    let keys_of = |node| masters.iter().filter(move |(master, _)| *master == node);
    let keys: Vec<_> = keys_of(live).take(20).chain(keys_of(hung).take(20)).cloned().collect();
    let (limiter, other) = (open([live, hung]), open([hung, live]));
    for (_, key) in &keys {
        until_decided(&limiter, key).await;
        until_decided(&other, key).await;
    }
    let frozen = cluster.node(hung).freeze();
    // The first of these slots is known, and the others are not.
    for (_, key) in keys_of(live).skip(19) {
        assert!(other.take(key, &rate()).await.unwrap().reachable, "{key}");
    }
    for _ in 0..4 {
        let call = |(master, key): (usize, String)| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let reply = limiter.take(&key, &rate()).await.unwrap();
                assert_eq!(reply.reachable, master != hung, "{key}");
            })
        };
        for call in keys.iter().cloned().map(call).collect::<Vec<_>>() {
            call.await.unwrap();
        }
    }
    drop(frozen);
    until_decided(&limiter, "b").await;
}
