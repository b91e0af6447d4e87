//! What the limiter reports by the crate tracing.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use redis_ratelimit_client::http::Problem;
use redis_ratelimit_client::transport::Servers;
use redis_ratelimit_client::{Limiter, MemoryLimiter, Unreachable, Window};
use serde_json::json;
use support::{Server, Stop};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Event, Metadata, Subscriber};

use super::scripted::{value_of, Script};
use super::{per_day, until, MS, PATIENCE};

/// Records the events of this crate on this thread.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

impl Subscriber for Events {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("redis_ratelimit_client")
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

impl Events {
    fn start() -> (Events, (DefaultGuard, Dispatch)) {
        let events = Events::default();
        // If there were only one, an event that first happens on another thread would be taken for one that nobody wants.
        let second = Dispatch::new(Events::default());
        let guard = tracing::subscriber::set_default(events.clone());
        (events, (guard, second))
    }

    /// Returns the events that have this text.
    fn with(&self, text: &str) -> Vec<String> {
        self.0.lock().unwrap().iter().filter(|event| event.contains(text)).cloned().collect()
    }
}

#[tokio::test]
async fn an_outage_is_reported_once_and_each_call_that_it_decides() {
    let (events, _guard) = Events::start();
    let mut server = Server::start();
    let servers = Servers::open(server.url()).unwrap();
    let builder = Limiter::builder(servers).deadline(PATIENCE).unreachable(Unreachable::Allow);
    let (limiter, window) = (builder.build().unwrap(), per_day(100));
    assert!(limiter.take("k", &window).await.unwrap().reachable);
    server.stop(Stop::Kill);
    for _ in 0..5 {
        assert!(!limiter.take("k", &window).await.unwrap().reachable);
    }
    let opened = events.with("the breaker is open");
    let begin = format!(
        "WARN message=the server does not answer: the breaker is open server=127.0.0.1:{}",
        server.port()
    );
    assert!(opened.len() == 1 && opened[0].starts_with(&begin), "{opened:?}");
    assert_eq!(events.with("DEBUG message=a call is decided without the server").len(), 5);
    server.restart(Stop::Kill);
    until(|| async { limiter.take("k", &window).await.unwrap().reachable }).await;
    assert_eq!(events.with("INFO message=the server answers again").len(), 1);
}

/// On tokio's clock, because a busy machine may renew a lease too late.
#[tokio::test(start_paused = true)]
async fn a_lost_lease_ends_the_future_of_its_reservation_and_is_reported() {
    let (events, _guard) = Events::start();
    let (limiter, window) = (MemoryLimiter::new(), per_day(100));
    let reservation = limiter.acquire("k", &window).lease(MS * 300).await.unwrap();
    let lost = tokio::spawn(reservation.lost());
    tokio::time::sleep(MS * 400).await;
    assert!(!lost.is_finished() && events.with("lost").is_empty());
    assert!(limiter.reset("k").await.unwrap());
    tokio::time::timeout(PATIENCE, lost).await.unwrap().unwrap();
    assert_eq!(events.with(""), ["WARN message=a lease was lost limits=\"\\\"k\\\"\""]);
}

#[tokio::test(start_paused = true)]
async fn a_reservation_that_could_not_be_settled_in_the_background_is_reported() {
    let (events, _guard) = Events::start();
    let (script, window) = (Script::default(), per_day(100));
    let limiter = script.limiter([]);
    let cases = [
        (Some(5), json!(0), Some("the lease ended")),
        // A reservation that has lapsed need not be released.
        (None, json!(0), None),
        (None, json!({"error": "READONLY it is a replica"}), Some("READONLY")),
    ];
    for (cost, reply, reported) in cases {
        script.will_reply(vec![value_of(&json!([0, 9, 7, -1, 9, "x"]))]);
        let mut reservation = limiter.acquire("k", &window).renewed(false).await.unwrap();
        if let Some(cost) = cost {
            reservation.set(cost).unwrap();
        }
        script.will_reply(vec![value_of(&reply)]);
        events.0.lock().unwrap().clear();
        drop(reservation);
        tokio::time::sleep(MS).await;
        let found = events.with("WARN message=a reservation was not settled");
        assert_eq!(found.len(), usize::from(reported.is_some()), "{found:?}");
        assert!(found.iter().all(|event| event.contains(reported.unwrap())), "{found:?}");
    }
}

#[tokio::test]
async fn an_error_that_becomes_a_response_with_status_500_is_reported() {
    let (events, _guard) = Events::start();
    let unknown = MemoryLimiter::new().take("k", &Window::policy("gold")).await.unwrap_err();
    assert_eq!(Problem::from(unknown).status(), 500);
    let reported = events.with("ERROR message=a request could not be decided error=NOPOLICY ");
    assert_eq!(reported.len(), 1);
}
