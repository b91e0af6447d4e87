//! The limiter on connections of the crate fred. Some tests in `server` use it too.

use std::time::Instant;

use fred::types::config::{Config, ServerConfig};
use redis_ratelimit_client::transport::Servers;
use redis_ratelimit_client::{Clause, Limiter, Semaphore, Unreachable};
use support::{Cluster, Server, Stop};
use tokio::time::sleep;

use super::{patient, per_day, until, DEADLINE, MS, SLACK};

fn servers_of(server: ServerConfig) -> Servers {
    Servers::try_from(Config { server, ..Config::default() }).unwrap()
}

pub fn limiter_of(server: &Server) -> Limiter {
    let servers = servers_of(ServerConfig::new_centralized("127.0.0.1", server.port()));
    patient(servers)
}

#[tokio::test]
async fn calls_are_decided_reserved_and_settled() {
    let server = Server::start();
    let (limiter, window) = (limiter_of(&server), per_day(100));
    assert_eq!(limiter.take("k", &window).quantity(3).await.unwrap().remaining, 97);
    let limits = || {
        [
            Clause::acquire("{u}tokens", &window).quantity(40).name("tokens"),
            Clause::acquire("{u}calls", &Semaphore::new(2)),
        ]
    };
    let mut reservation = limiter.acquire_all(limits()).await.unwrap();
    reservation.set([("tokens", 7)]).unwrap();
    reservation.apply().await.unwrap();
    assert_eq!(limiter.look("{u}tokens", &window).await.unwrap().remaining, 93);
    // An error within a transaction names its limit.
    let mut reservation = limiter.acquire_all(limits()).await.unwrap();
    server.conn().cmd("SET {u}tokens x");
    let error = reservation.apply().await.unwrap_err();
    assert_eq!(error.code(), Some("WRONGTYPE"));
    assert!(error.to_string().ends_with("(limit tokens)"), "{error}");
    assert_eq!(limiter.held("{u}calls").await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_and_calls_at_the_same_time_do_not_mix() {
    let server = Server::start();
    let limiter = limiter_of(&server);
    let calls: Vec<_> = (0..200)
        .map(|number| {
            let (limiter, window) = (limiter.clone(), per_day(100_000));
            tokio::spawn(async move {
                if number % 2 == 0 {
                    assert!(limiter.take("{k}a", &window).await.unwrap().is_allowed());
                } else {
                    let charged = ["{k}a", "{k}b"].map(|key| Clause::take(key, &window));
                    assert!(limiter.all(charged).force().await.unwrap().is_allowed());
                }
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    assert_eq!(limiter.look("{k}a", &per_day(100_000)).await.unwrap().remaining, 99_800);
}

#[tokio::test]
async fn outages_are_answered_as_chosen() {
    let mut server = Server::start();
    let servers = servers_of(ServerConfig::new_centralized("127.0.0.1", server.port()));
    let deadline = DEADLINE * 4;
    let builder = Limiter::builder(servers).deadline(deadline).unreachable(Unreachable::Allow);
    let (limiter, window) = (builder.build().unwrap(), per_day(100));
    assert!(limiter.take("k", &window).await.unwrap().reachable);
    let frozen = server.freeze();
    let begin = Instant::now();
    for _ in 0..3 {
        assert!(!limiter.take("k", &window).await.unwrap().reachable);
    }
    assert!(begin.elapsed() >= deadline * 3 && begin.elapsed() < deadline * 3 + SLACK);
    drop(frozen);
    let is_back = || async { limiter.take("k", &window).await.unwrap().reachable };
    until(is_back).await;
    // A connection that was closed while it was idle is noticed.
    server.conn().cmd("CLIENT KILL TYPE normal SKIPME yes");
    sleep(MS * 20).await;
    assert!(limiter.take("k", &window).await.unwrap().reachable);
    server.stop(Stop::Kill);
    sleep(MS * 20).await;
    assert!(!limiter.take("k", &window).await.unwrap().reachable);
    server.restart(Stop::Kill);
    until(is_back).await;
}

#[tokio::test]
async fn keys_of_a_cluster_are_found() {
    let cluster = Cluster::of(3, 0);
    let hosts = vec![("127.0.0.1", cluster.node(0).port())];
    let servers = servers_of(ServerConfig::new_clustered(hosts));
    let limiter = patient(servers);
    for key in 0..20 {
        let key = format!("user:{key}");
        assert_eq!(limiter.take(&key, &per_day(10)).await.unwrap().remaining, 9);
    }
}
