//! The tables that all clients share, a model of the server, and what the table does not reach.

use std::collections::HashMap;

use serde_json::Value as Json;

use support::Random;

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

/// A server with one sliding window, written from what the commands promise. Times are in nanoseconds.
struct Model {
    limit: u64,
    period: i64,
    events: Vec<(i64, u64)>,
    held: HashMap<Vec<u8>, (u64, i64)>,
}

impl Model {
    fn left(&mut self, now: i64) -> u64 {
        let period = self.period;
        self.events.retain(|(at, _)| at + period > now);
        self.held.retain(|_, (_, end)| *end + period > now);
        let events = self.events.iter().map(|(_, quantity)| quantity);
        let counted: u64 = events.chain(self.held.values().map(|(quantity, _)| quantity)).sum();
        self.limit.saturating_sub(counted)
    }

    fn carry_out(&mut self, command: &Command, now: i64) -> Value {
        let words: Vec<&[u8]> = command.words().collect();
        let number = |at: usize| std::str::from_utf8(words[at]).unwrap().parse::<u64>().unwrap();
        let after = |name: &[u8]| words.iter().position(|word| *word == name).unwrap() + 1;
        let left = self.left(now);
        let integer = |number: u64| Value::Integer(number as i64);
        match words[0] {
            b"RL.APPLY" => {
                let is_held = self.held.remove(words[2]).is_some();
                if is_held {
                    self.events.push((now, number(3)));
                }
                integer(is_held.into())
            }
            b"RL.RELEASE" => integer(self.held.remove(words[2]).is_some().into()),
            b"RL.WINDOW" => {
                self.events.push((now, number(4)));
                Value::Array([0, self.limit, 0].map(integer).to_vec())
            }
            _ => {
                let at_most = words.contains(&&b"ATMOST"[..]);
                let asked = number(4);
                let granted = if at_most || asked <= left { asked.min(left) } else { 0 };
                let is_granted = granted > 0;
                let mut reply = vec![
                    integer((!is_granted).into()),
                    integer(self.limit),
                    integer(left - granted),
                    Value::Integer(if is_granted { -1 } else { 5 }),
                    integer(1000),
                ];
                let id = words[after(b"ID")].to_vec();
                if is_granted {
                    let end = now + number(after(b"LEASE")) as i64 * MS;
                    self.held.insert(id.clone(), (granted, end));
                }
                reply.push(if is_granted { Value::Bytes(id) } else { Value::Nil });
                if at_most {
                    let running = self.held.values().filter(|(_, end)| *end > now).count();
                    reply.extend([integer(granted), integer(running as u64)]);
                }
                Value::Array(reply)
            }
        }
    }
}

/// The most that was spent in any (t - period, t].
fn most_in_a_period(spent: &[(i64, u64)], period: i64) -> u64 {
    let (mut most, mut total, mut first) = (0, 0, 0);
    for (at, quantity) in spent {
        total += quantity;
        while spent[first].0 <= at - period {
            total -= spent[first].1;
            first += 1;
        }
        most = most.max(total);
    }
    most
}

/// Processes that lose requests and replies, stop in the middle, die and begin again. Returns what they spent.
fn play(seed: u64) -> u64 {
    let mut random = Random::new(seed);
    let (limit, period_ms) = random.pick(&[(5, 1000), (40, 500), (200, 2000)]);
    let period = period_ms * MS;
    let mut model = Model { limit, period, events: Vec::new(), held: HashMap::new() };
    let lease_ms = random.pick(&[20, 50, 200]);
    let window = Window::new(limit, Duration::from_millis(period_ms as u64));
    let mut now = START_NS;
    let mut made = 0;
    let mut process = |now| {
        made += 1;
        Leases::new(terms(&window, lease_ms, 0), format!("process{made}"), at(now))
    };
    let mut processes: Vec<_> = (0..1 + random.below(5)).map(|_| process(now)).collect();
    let mut under_way: Vec<(usize, Round, Option<Vec<Value>>, bool)> = Vec::new();
    let mut spent = Vec::new();
    for _ in 0..1500 {
        now += random.pick(&[0, MS / 10, MS, 4 * MS, 30 * MS]);
        if random.one_in(500) {
            now += random.below(3 * period);
        }
        let index = random.below(processes.len() as i64) as usize;
        let leases = &mut processes[index];
        let event = random.below(1000);
        if event < 600 {
            let quantity = random.pick(&[1, 1, 1, 2, 3]);
            match leases.take(quantity, false, &at(now)).unwrap() {
                None => drop(leases.want(quantity, false, at(now))),
                Some(reply) if reply.is_allowed() => spent.push((now, quantity)),
                Some(_) => {}
            }
        } else if event < 750 && under_way.iter().all(|(other, ..)| *other != index) {
            if let Some(round) = leases.next_round(at(now)) {
                let fate = random.below(10);
                // What is lost on its way arrives late, or never.
                let replies = (fate < 9).then(|| {
                    round.commands.iter().map(|each| model.carry_out(each, now)).collect()
                });
                under_way.push((index, round, replies, fate < 8));
            }
        } else if event < 980 && !under_way.is_empty() {
            let (index, round, replies, is_received) =
                under_way.swap_remove(random.below(under_way.len() as i64) as usize);
            match replies {
                Some(replies) if is_received => {
                    processes[index].receive(round, replies.into_iter().map(Ok).collect(), at(now));
                }
                replies => {
                    let commands = round.commands.clone();
                    processes[index].fail(round, lost(), true, at(now));
                    if replies.is_none() && random.one_in(2) {
                        commands.iter().for_each(|each| drop(model.carry_out(each, now)));
                    }
                }
            }
        } else if event >= 997 {
            processes[index] = process(now);
            under_way.retain(|(other, ..)| *other != index);
        }
    }
    let most = most_in_a_period(&spent, period);
    assert!(most <= limit, "seed {seed}: {most} of {limit} in a period");
    spent.iter().map(|(_, quantity)| quantity).sum()
}

#[test]
fn whatever_is_lost_or_dies_no_period_has_more_than_the_limit() {
    let spent: u64 = (0..200).map(play).sum();
    assert!(spent > 20_000, "too little was tried: {spent}");
}
