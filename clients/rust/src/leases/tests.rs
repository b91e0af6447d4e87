//! The tables that all clients share. clients/python/tests/test_proof.py tests that processes of all clients together never
//! spend more than the limit.

use serde_json::Value as Json;

use super::demand::*;
use super::*;
use crate::testing::{table, window};
use crate::transport::{Command, ErrorReply, Value};
use crate::{breaker, reservation};

const START_NS: i64 = 1_000_000 * MS;

impl Clock for Now {
    fn monotonic_ns(&self) -> i64 {
        self.monotonic_ns
    }

    fn wall_ns(&self) -> i64 {
        self.wall_ns
    }
}

fn terms(window: &Window, lease_ms: u64, leave: u64) -> Terms {
    Terms::new(b"k", window, Duration::from_millis(lease_ms), leave).unwrap()
}

fn at(ns: i64) -> Now {
    Now { monotonic_ns: ns, wall_ns: ns }
}

fn lost() -> Error {
    Error::lost("localhost:6379", "lost", true)
}

fn numbers(reply: &Reply) -> Json {
    let ms = |wait: Duration| wait.as_millis() as u64;
    serde_json::json!([
        match reply.decision {
            Decision::Allowed => 0,
            Decision::Denied => 1,
            Decision::Held => 2,
        },
        reply.limit,
        reply.remaining,
        reply.retry_after.map(ms),
        ms(reply.reset_after)
    ])
}

fn value(of: &Json) -> Value {
    match of {
        Json::Array(values) => Value::Array(values.iter().map(value).collect()),
        Json::Number(number) => Value::Integer(number.as_i64().unwrap()),
        Json::String(text) => Value::Bytes(text.clone().into_bytes()),
        _ => Value::Nil,
    }
}

fn reply(of: &Json) -> Result<Value, Error> {
    match of["error"].as_str() {
        Some(line) => Err(Error::Server(ErrorReply::new(line))),
        None => Ok(value(of)),
    }
}

/// A command with the made ids numbered, as the table writes them.
fn shown(command: &Command, prefix: &str) -> String {
    command.to_string().replace(&format!("{prefix}-"), "#")
}

/// Carries out an event. Returns its result as the table writes it, or the event itself if it has none.
fn carry_out(
    leases: &mut Leases,
    now: &mut Now,
    sent: &mut Option<Round>,
    event: &str,
    given: &Json,
) -> Json {
    let quantity = given.as_u64().unwrap_or(0);
    match event {
        "take" => {
            return match leases.take(quantity, false, now) {
                Err(_) => "refused".into(),
                Ok(reply) => reply.map_or(Json::Null, |reply| numbers(&reply)),
            }
        }
        "plan" => {
            *sent = leases.next_round(*now);
            let commands = sent.iter().flat_map(|round| &round.commands);
            return commands.map(|each| Json::from(shown(each, &leases.prefix))).collect();
        }
        "next_at" => {
            let ms = |ns: i64| ((ns - START_NS) as f64 / 1e3).round() / 1e3;
            return leases.next_at(*now).map_or(Json::Null, |ns| ms(ns).into());
        }
        "settled" => return leases.is_settled().into(),
        "failed" => return leases.error().is_some().into(),
        "refused" => return leases.refused.as_ref().and_then(Error::code).into(),
        "want" | "wait" => drop(leases.want(quantity, event == "want", *now)),
        "receive" => {
            let replies = given.as_array().unwrap().iter().map(reply).collect();
            leases.receive(sent.take().unwrap(), replies, *now);
        }
        "fail" => leases.fail(sent.take().unwrap(), lost(), given == true, *now),
        "close" => leases.close(),
        "pass" => *now = now.after((given.as_f64().unwrap() * MS as f64) as i64),
        "wall" => now.wall_ns += quantity as i64 * MS,
        other => panic!("the event {other} is not known"),
    }
    given.clone()
}

#[test]
fn the_leases_of_each_client_send_the_same_after_the_same_events() {
    for case in table("leases.json") {
        let lease_ms = match case["options"]["lease"].as_str() {
            None => 100,
            Some(lease) => {
                let lease: crate::Period = lease.parse().unwrap();
                lease.least_duration().as_millis() as u64
            }
        };
        let leave = case["options"]["leave"].as_u64().unwrap_or(0);
        let mut now = at(START_NS);
        let terms = terms(&window(&case["limit"]), lease_ms, leave);
        let mut leases = Leases::new(terms, "prefix".into(), now);
        let mut sent = None;
        for step in case["steps"].as_array().unwrap() {
            let (event, given) =
                step.as_object().unwrap().iter().find(|(name, _)| *name != "is").unwrap();
            let found = carry_out(&mut leases, &mut now, &mut sent, event, given);
            let expected = step.get("is").unwrap_or(given);
            let is_same = found == *expected
                || found.as_f64().is_some_and(|number| Some(number) == expected.as_f64());
            assert!(is_same, "{}: {step} gave {found}", case["name"]);
        }
    }
}

#[test]
fn the_numbers_are_those_of_all_clients() {
    let numbers = &table("numbers.json")[0];
    let ms = |ns: i64| ns / MS;
    let lease = serde_json::json!({
        "least_ms": MIN_LEASE_MS, "margin": MARGIN, "least_margin_ms": ms(MIN_MARGIN_NS), "denial_ms": ms(DENIAL_NS),
        "retry_ms": ms(RETRY_NS), "lost_ms": ms(LOST_NS), "most_late": MAX_LATE,
    });
    assert_eq!(lease, numbers["lease"]);
    let ahead = serde_json::json!({
        "round_trips": AHEAD_ROUND_TRIPS as u32, "least_ms": ms(AHEAD_NS), "most_of_lease": MAX_AHEAD,
    });
    assert_eq!(ahead, numbers["ahead"]);
    let ms = |length: Duration| length.as_millis() as u64;
    let breaker = serde_json::json!({
        "failures": breaker::FAILURES, "pause_ms": ms(breaker::PAUSE), "probe_ms": ms(breaker::PROBE),
    });
    assert_eq!(breaker, numbers["breaker"]);
    let renewal = serde_json::json!({
        "per_lease": reservation::RENEWALS_PER_LEASE, "default_lease_ms": ms(reservation::DEFAULT_LEASE),
        "least_ms": ms(reservation::LEAST_RENEWAL),
    });
    assert_eq!(renewal, numbers["renewal"]);
    for case in numbers["batches"].as_array().unwrap() {
        let number = |name: &str| case[name].as_u64();
        let (needed, reservations) = (number("needed").unwrap(), number("reservations").unwrap());
        let found =
            batch_size(case["expected"].as_f64().unwrap(), needed, number("limit"), reservations);
        assert_eq!(Some(found), number("batch"), "{case}");
    }
    for case in numbers["held"].as_array().unwrap() {
        let terms = terms(&window(&case["limit"]), case["lease_ms"].as_u64().unwrap(), 0);
        assert_eq!(Some(terms.held_ms), case["held_ms"].as_u64(), "{case}");
    }
}
