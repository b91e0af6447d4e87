//! What is sent for calls whose futures are dropped, or that get no reply in time, on tokio's clock, which stands still
//! until all tasks wait.

use std::future::{pending, IntoFuture};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Duration;

use redis_ratelimit_client::transport::Value;
use redis_ratelimit_client::{Clause, Limiter, Rate, Semaphore, Unreachable, Window};
use serde_json::{json, Value as Json};
use tokio::time::{sleep, timeout};

use crate::scripted::value_of;
use crate::testing::Double;
use crate::MS;

/// A server that gives this reply after 100 ms, or none if it is null. Releases find nothing.
fn slow(reply: Json) -> Double {
    Double::new(move |commands| {
        let is_release = commands[0].word(0) == Some(b"RL.RELEASE");
        let reply = reply.clone();
        async move {
            if is_release {
                return Ok(vec![Value::Integer(0)]);
            }
            if reply.is_null() {
                return pending().await;
            }
            sleep(MS * 100).await;
            Ok(vec![value_of(&reply)])
        }
    })
}

fn limiter_on(server: &Double) -> Limiter {
    Limiter::new(server.servers())
}

/// Returns the commands that were sent after the first.
fn sent_later(server: &Double) -> Vec<String> {
    server.sent().split_off(1)
}

/// Drops a call that is on its way, and waits until nothing more is sent for it.
async fn drop_soon(call: impl IntoFuture) {
    let mut call = Box::pin(call.into_future());
    assert!(timeout(MS * 50, &mut call).await.is_err());
    drop(call);
    sleep(Duration::from_secs(60)).await;
}

#[tokio::test(start_paused = true)]
async fn the_deadline_of_a_call_begins_when_it_is_sent() {
    let server = slow(json!([0, 5, 4, -1, 0]));
    let call = limiter_on(&server).take("k", &Rate::per("1/s").unwrap()).into_future();
    sleep(Duration::from_secs(60)).await;
    assert!(call.await.unwrap().is_allowed());
}

#[tokio::test(start_paused = true)]
async fn what_a_dropped_call_takes_is_given_back_unless_it_was_used_already() {
    let (window, rate) = (Window::per("9/min").unwrap(), Rate::per("9/min").unwrap());
    let server = slow(json!([0, 9, 2, -1, 60_000, 7]));
    let limiter = limiter_on(&server);
    let (take, book) = (|| limiter.take("w", &window), || limiter.take("r", &rate).quantity(3));
    let cases = [
        (take().quantity(3).into_future(), vec!["RL.WINDOW w 9 1min -3 MS"]),
        (take().quantity(30).at_most().into_future(), vec!["RL.WINDOW w 9 1min -7 MS"]),
        (take().quantity(3).force().into_future(), vec![]),
        (book().into_future(), vec!["RL.THROTTLE r 8 9 1min -3 MS"]),
        // Later bookings do not move up, so a turn that is given back would be booked twice.
        (book().ahead(Duration::from_secs(60)).into_future(), vec![]),
    ];
    for (call, given_back) in cases {
        drop_soon(call).await;
        assert_eq!(sent_later(&server), given_back);
    }
}

#[tokio::test(start_paused = true)]
async fn an_id_of_the_callers_is_released_if_the_reply_says_that_it_is_reserved() {
    let server = slow(json!([0, 5, 4, -1, 0, "job-17"]));
    drop_soon(limiter_on(&server).acquire("jobs", &Semaphore::new(5)).id("job-17")).await;
    assert_eq!(sent_later(&server), ["RL.RELEASE jobs job-17"]);
}

/// Another holder may have the same id.
#[tokio::test(start_paused = true)]
async fn of_several_limits_only_ids_that_the_limiter_made_are_released_without_a_reply() {
    let (jobs, rate) = (Semaphore::new(5), Rate::per("1/s").unwrap());
    let (taken, own) = (Clause::take("{k}1", &rate), Clause::acquire("{k}2", &jobs).id("job-17"));
    let made = Clause::acquire("{k}3", &jobs);
    let mixtures = [
        vec![own.clone(), made.clone()],
        vec![taken.clone(), made.clone()],
        vec![taken, own, made],
    ];
    for clauses in mixtures {
        for (is_dropped, waits) in [(true, true), (true, false), (false, true), (false, false)] {
            let server = slow(Json::Null);
            let call = limiter_on(&server).acquire_all(clauses.clone());
            let call = match waits {
                true => call.block(MS * 500),
                false => call,
            };
            match is_dropped {
                true => drop_soon(call).await,
                false => {
                    call.await.unwrap_err();
                    sleep(Duration::from_secs(60)).await;
                }
            }
            let sent = sent_later(&server);
            assert!(sent.iter().all(|command| command.starts_with("RL.RELEASE {k}3 ")), "{sent:?}");
            assert_eq!(sent.len(), 2, "{clauses:?}, dropped: {is_dropped}, waits: {waits}");
        }
    }
}

/// It was held until its lease ended.
#[tokio::test(start_paused = true)]
async fn a_settlement_that_could_not_be_sent_is_tried_again() {
    let is_away = Arc::new(AtomicBool::new(false));
    let away = Arc::clone(&is_away);
    let server = Double::new(move |_| {
        let is_here = !away.load(Relaxed);
        let reply = vec![value_of(&json!([0, 5, 4, -1, 0, "x"]))];
        async move { is_here.then_some(reply).ok_or("it is away".into()) }
    });
    let limiter = limiter_on(&server);
    let permit = limiter.acquire("jobs", &Semaphore::new(5)).await.unwrap();
    is_away.store(true, Relaxed);
    for _ in 0..3 {
        sleep(MS).await;
        limiter.held("jobs").await.unwrap_err();
    }
    is_away.store(false, Relaxed);
    server.sent();
    // Nothing is sent while the breaker is open.
    drop(permit);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(server.sent(), ["RL.RELEASE jobs x"]);
    // After its lease somebody else may have reserved by this id.
    let lease = Duration::from_millis(500);
    let semaphore = Semaphore::new(5);
    let permit = limiter.acquire("jobs", &semaphore).id("x").lease(lease).renewed(false);
    let permit = permit.await.unwrap();
    is_away.store(true, Relaxed);
    drop(permit);
    sleep(Duration::from_secs(10)).await;
    is_away.store(false, Relaxed);
    server.sent();
    sleep(Duration::from_secs(30)).await;
    assert_eq!(server.sent(), [""; 0]);
}

/// Only RL.ALL knows the limit of its name, and it gives nothing back.
#[tokio::test(start_paused = true)]
async fn what_was_taken_from_a_limit_of_the_hash_is_not_given_back() {
    let minute = Window::per("9/min").unwrap();
    let taken = json!([0, 9, 8, -1, 60_000]);
    let answers = json!([taken, taken, [0, 5, 4, -1, 20_000, "x"]]);
    let clauses = [
        Clause::take("{k}1", &Window::policy("rpm")),
        Clause::take("{k}2", &minute),
        Clause::acquire("{k}3", &Semaphore::policy("jobs")),
    ];
    let server = slow(json!([0, 9, 8, -1, 60_000, 1, answers]));
    drop_soon(limiter_on(&server).acquire_all(clauses).limits("{k}limits")).await;
    let given_back = ["MULTI", "RL.WINDOW {k}2 9 1min -1 MS", "RL.RELEASE {k}3 x", "EXEC"];
    assert_eq!(sent_later(&server), given_back);
}

#[tokio::test(start_paused = true)]
async fn closing_a_local_limit_ends_although_its_limiter_has_no_deadline() {
    let server = slow(Json::Null);
    let limiter = Limiter::builder(server.servers()).deadline(None).build().unwrap();
    let local = limiter.local("k", &Window::per("5/min").unwrap()).build().unwrap();
    assert!(local.try_take(1).unwrap().is_none());
    sleep(MS).await;
    // tokio's clock jumps ahead of the system's clock, which leases use.
    timeout(Duration::from_secs(86_400), local.close()).await.unwrap().unwrap();
    assert!(sent_later(&server)[0].starts_with("RL.RELEASE k "));
}

/// Otherwise it might be granted on the server too.
#[tokio::test(start_paused = true)]
async fn a_call_past_its_deadline_leaves_its_line_before_another_limiter_decides() {
    let (server, other) = (slow(Json::Null), slow(Json::Null));
    let builder = Limiter::builder(server.servers()).deadline(MS * 100);
    let builder = builder.unreachable(Unreachable::Limiter(limiter_on(&other)));
    let (limiter, rate) = (builder.build().unwrap(), Rate::per("1/s").unwrap());
    let mut call = Box::pin(limiter.take("mail", &rate).block(MS * 200).into_future());
    assert!(timeout(MS * 250, &mut call).await.is_err());
    assert!(server.is_asked() && !other.is_asked());
    assert!(timeout(MS * 250, &mut call).await.is_err());
    assert!(!server.is_asked() && other.is_asked());
}
