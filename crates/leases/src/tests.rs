//! The tables that all clients share. clients/python/tests/test_proof.py tests that processes of all clients together never
//! spend more than the limit.

use serde_json::{json, Value as Json};

use super::demand::*;
use super::*;

const START_NS: i64 = 1_000_000 * MS;

fn table(name: &str) -> Vec<Json> {
    let path = format!("{}/../../clients/spec/{name}", env!("CARGO_MANIFEST_DIR"));
    match serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap() {
        Json::Array(cases) => cases,
        one => vec![one],
    }
}

fn terms(limit: &Json, lease_ms: u64, leave: u64) -> Terms {
    let (window, limit, counted_ms) = match limit["window"].as_array() {
        Some(window) => {
            let period = window[1].as_str().unwrap();
            let ms = period.strip_suffix('s').unwrap().parse::<u64>().unwrap() * 1_000;
            let limit = window[0].as_u64().unwrap();
            (vec![limit.to_string().into_bytes(), period.as_bytes().to_vec()], Some(limit), ms)
        }
        None => (vec![limit.as_str().unwrap().as_bytes().to_vec()], None, 0),
    };
    Terms { key: b"k".to_vec(), window, options: vec![], limit, counted_ms, lease_ms, leave }
}

fn numbers(reply: &Reply) -> Json {
    let Reply { limit, remaining, retry_after_ms, reset_after_ms, .. } = *reply;
    json!([reply.decision as u8, limit, remaining, retry_after_ms, reset_after_ms])
}

fn value(of: &Json) -> Value {
    match of {
        Json::Array(values) => Value::Array(values.iter().map(value).collect()),
        Json::Number(number) => Value::Integer(number.as_i64().unwrap()),
        Json::String(_) => Value::Text,
        _ => Value::Nil,
    }
}

fn reply(of: &Json) -> Result<Value, ErrorReply<String>> {
    let Some(text) = of["error"].as_str() else { return Ok(value(of)) };
    let code = text.split(' ').next().unwrap().to_string();
    Err(ErrorReply { code: code.clone(), error: code })
}

/// A command with the made ids numbered, as the table writes them.
fn shown(command: &[Vec<u8>]) -> String {
    String::from_utf8(command.join(&b' ')).unwrap().replace("prefix-", "#")
}

/// Carries out an event. Returns its result as the table writes it, or the event itself if it has none.
fn carry_out(
    leases: &mut Leases<String>,
    now: &mut Now,
    sent: &mut Option<Round>,
    event: &str,
    given: &Json,
) -> Json {
    let quantity = given.as_u64().unwrap_or(0);
    match event {
        "take" => {
            return match leases.take(quantity, false, *now) {
                Err(_) => "refused".into(),
                Ok(reply) => reply.map_or(Json::Null, |reply| numbers(&reply)),
            }
        }
        "plan" => {
            *sent = leases.next_round(*now);
            let commands = sent.iter().flat_map(|round| &round.commands);
            return commands.map(|each| Json::from(shown(each))).collect();
        }
        "next_at" => {
            let ms = |ns: i64| ((ns - START_NS) as f64 / 1e3).round() / 1e3;
            return leases.next_at(*now).map_or(Json::Null, |ns| ms(ns).into());
        }
        "settled" => return leases.is_settled().into(),
        "failed" => return leases.error.is_some().into(),
        "refused" => {
            return leases.refused.as_deref().into();
        }
        "want" | "wait" => drop(leases.want(quantity, event == "want", *now)),
        "receive" => {
            let replies = given.as_array().unwrap().iter().map(reply).collect();
            leases.receive(sent.take().unwrap(), replies, *now);
        }
        "fail" => leases.fail(sent.take().unwrap(), "lost".to_string(), given == true, *now),
        "close" => leases.close(),
        "pass" => *now = now.after((given.as_f64().unwrap() * MS as f64) as i64),
        "wall" => now.wall_ns += quantity as i64 * MS,
        other => panic!("the event {other} is not known"),
    }
    given.clone()
}

#[test]
fn the_cases_of_the_table_send_what_they_should_after_each_event() {
    for case in table("leases.json") {
        let lease = case["options"]["lease"].as_str().unwrap_or("100ms");
        let lease_ms = match lease.strip_suffix("ms") {
            Some(ms) => ms.parse().unwrap(),
            None => lease.strip_suffix('s').unwrap().parse::<u64>().unwrap() * 1_000,
        };
        let leave = case["options"]["leave"].as_u64().unwrap_or(0);
        let mut now = Now { monotonic_ns: START_NS, wall_ns: START_NS };
        let mut leases =
            Leases::new(terms(&case["limit"], lease_ms, leave), "prefix".to_string(), now);
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
fn the_numbers_are_those_that_the_pages_say() {
    let numbers = &table("numbers.json")[0];
    let ms = |ns: i64| ns / MS;
    let lease = json!({
        "least_ms": MIN_LEASE_MS, "margin": MARGIN, "least_margin_ms": ms(MIN_MARGIN_NS), "denial_ms": ms(DENIAL_NS),
        "retry_ms": ms(RETRY_NS), "lost_ms": ms(LOST_NS), "most_late": MAX_LATE,
    });
    assert_eq!(lease, numbers["lease"]);
    let ahead = json!({
        "round_trips": AHEAD_ROUND_TRIPS as u32, "least_ms": ms(AHEAD_NS), "most_of_lease": MAX_AHEAD,
    });
    assert_eq!(ahead, numbers["ahead"]);
}

#[test]
fn a_batch_is_what_is_expected_within_half_a_lease_and_at_most_the_share() {
    for case in table("numbers.json")[0]["batches"].as_array().unwrap() {
        let number = |name: &str| case[name].as_u64();
        let (needed, reservations) = (number("needed").unwrap(), number("reservations").unwrap());
        let found =
            batch_size(case["expected"].as_f64().unwrap(), needed, number("limit"), reservations);
        assert_eq!(Some(found), number("batch"), "{case}");
    }
}

#[test]
fn a_reply_that_cannot_be_read_loses_the_round() {
    let now = Now { monotonic_ns: 0, wall_ns: 0 };
    let granted = |granted, reservations| {
        let mut values = [0, 9, 8, -1, 60_000].map(Value::Integer).to_vec();
        values.extend([Value::Text, granted, reservations]);
        Value::Array(values)
    };
    let unreadable = [
        granted(Value::Integer(-1), Value::Integer(1)),
        granted(Value::Integer(1), Value::Text),
        Value::Nil,
        Value::Integer(1),
        Value::Text,
        Value::Array(vec![Value::Integer(0)]),
        Value::Array(vec![Value::Integer(-1); 8]),
        Value::Array(vec![Value::Text; 8]),
    ];
    for reply in unreadable {
        let mut leases =
            Leases::<()>::new(terms(&json!({"window": [5, "1s"]}), 100, 0), "a".into(), now);
        let awaited = leases.want(1, false, now).unwrap();
        let round = leases.next_round(now).unwrap();
        leases.receive(round, vec![Ok(reply)], now);
        assert!(matches!(leases.error_since(awaited), Some(Failure::Unreadable(_))));
        let later = now.after(RETRY_NS);
        assert_eq!(shown(&leases.next_round(later).unwrap().commands[0]), "RL.RELEASE k a-1");
    }
}
