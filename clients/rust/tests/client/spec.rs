//! The tables that the clients of all languages share.

use std::time::Duration;

use redis_ratelimit_client::transport::{Servers, Value};
use redis_ratelimit_client::{
    All, AllReply, Call, Clause, Cost, Decision, Error, KeyState, Limiter, Period, Rate, Reply,
    Reservation, Semaphore, Window,
};
use serde_json::{json, Map, Value as Json};

use super::scripted::{value_of, Script};
use super::testing::{parse_window, period, set_options, table, window};
use super::{url, MS};

enum AnyLimit {
    Rate(Rate),
    Window(Window),
}

fn rate_of(rate: &Json) -> Rate {
    Rate::new(rate[0].as_u64().unwrap(), rate[1].as_u64().unwrap(), period(&rate[2]))
}

/// The limit of a call or of a clause, with the ban that is among its options.
fn limit_of(case: &Json, takes_rate: bool) -> Result<AnyLimit, Error> {
    let ban = case["options"].get("ban").map(parse_length).transpose()?;
    let limit = &case["limit"];
    Ok(match (limit.as_str(), limit.get("rate"), ban) {
        (Some(name), _, _) if takes_rate => AnyLimit::Rate(Rate::policy(name)),
        (_, Some(rate), None) => AnyLimit::Rate(rate_of(rate)),
        (_, Some(rate), Some(ban)) => AnyLimit::Rate(rate_of(rate).ban(ban)),
        (_, None, None) => AnyLimit::Window(parse_window(limit)?),
        (_, None, Some(ban)) => AnyLimit::Window(parse_window(limit)?.ban(ban)),
    })
}

fn parse_length(json: &Json) -> Result<Duration, Error> {
    match json {
        Json::Number(ms) => Ok(Duration::from_millis(ms.as_u64().unwrap())),
        words => Ok(text(words).parse::<Period>()?.as_duration().expect("a fixed length")),
    }
}

fn length(json: &Json) -> Duration {
    parse_length(json).unwrap()
}

/// Lengths of options are sent in milliseconds, however the table writes them.
fn in_milliseconds(words: &str) -> String {
    let mut words: Vec<String> = words.split(' ').map(str::to_owned).collect();
    for at in 1..words.len() {
        if ["LEASE", "BAN", "AHEAD", "BLOCK"].contains(&words[at - 1].as_str()) {
            let is_plain = words[at].bytes().all(|byte| byte.is_ascii_digit());
            if !is_plain {
                words[at] = length(&json!(words[at])).as_millis().to_string();
            }
        }
    }
    words.join(" ")
}

/// Returns the words without the ids that the limiter makes where the caller gives none.
fn without_made_ids(words: &str, expected: &str) -> String {
    let words: Vec<&str> = words.split(' ').collect();
    let is_made = |id: &str| id.len() == 16 && !expected.contains(id);
    let is_before =
        |at: usize| words[at] == "ID" && words.get(at + 1).is_some_and(|id| is_made(id));
    let is_kept = |at: &usize| !is_before(*at) && (*at == 0 || !is_before(*at - 1));
    (0..words.len()).filter(is_kept).map(|at| words[at]).collect::<Vec<_>>().join(" ")
}

fn quantity(case: &Json) -> i64 {
    case["quantity"].as_i64().unwrap_or(1)
}

fn ms(length: Option<Duration>) -> Json {
    length.map_or(Json::Null, |length| json!(length.as_millis() as u64))
}

fn reply_as_json(reply: &Reply) -> Json {
    json!({
        "limited": match reply.decision { Decision::Allowed => 0, Decision::Denied => 1, Decision::Held => 2 },
        "limit": reply.limit,
        "remaining": reply.remaining,
        "retry_after_ms": ms(reply.retry_after),
        "reset_after_ms": ms(Some(reply.reset_after)),
        "allowed": reply.is_allowed(),
        "granted": reply.granted,
        "reservations": reply.reservations,
        "id": reply.id.as_ref().map(ToString::to_string),
        "wait_ms": ms(reply.wait),
        "reachable": reply.reachable,
    })
}

fn all_as_json(reply: &AllReply) -> Json {
    let mut json = reply_as_json(reply);
    json["clause"] = json!(reply.clause);
    json["answers"] = reply.answers.iter().map(reply_as_json).collect();
    json
}

/// Returns whether all that is expected is there.
fn assert_means(found: &Json, expected: &Json, case: &Json) {
    match expected {
        Json::Object(fields) => {
            fields.iter().for_each(|(name, value)| assert_means(&found[name], value, case));
        }
        Json::Array(all) => {
            assert_eq!(found.as_array().unwrap().len(), all.len(), "{case}");
            all.iter().enumerate().for_each(|(at, value)| assert_means(&found[at], value, case));
        }
        other => assert_eq!(found, other, "{case}"),
    }
}

/// Sets the options of a call that a case has: flags, and options with a value.
macro_rules! set {
    ($call:ident, $case:ident, $($flag:ident),*; $($name:ident: $read:ident),*) => {
        let given = |name: &str| $case["options"].get(name.replace("at_most", "atmost"));
        $(if given(stringify!($flag)) == Some(&json!(true)) {
            $call = $call.$flag();
        })*
        $(if let Some(value) = given(stringify!($name)) {
            $call = $call.$name($read(value));
        })*
    };
}

fn number(json: &Json) -> u64 {
    json.as_u64().unwrap()
}

fn text(json: &Json) -> &str {
    json.as_str().unwrap()
}

fn clause_of(case: &Json) -> Clause {
    let key = case["key"].as_str().unwrap();
    let mut clause =
        match (text(&case["clause"]), limit_of(case, case["clause"] == "throttle").unwrap()) {
            ("acquire", AnyLimit::Window(window)) => Clause::acquire(key, &window),
            (_, AnyLimit::Window(window)) => Clause::take(key, &window),
            (_, AnyLimit::Rate(rate)) => Clause::take(key, &rate),
        };
    clause = clause.quantity(quantity(case) as u64);
    set!(clause, case, count_denied, check, shadow, count_lapsed;
        name: text, leave: number, lease: length, id: text);
    clause
}

fn clauses_of(case: &Json) -> Vec<Clause> {
    let clause = |each: &Json| match each.as_array() {
        Some(group) => group.iter().map(clause_of).reduce(Clause::or_else).unwrap(),
        None => clause_of(each),
    };
    case["clauses"].as_array().unwrap().iter().map(clause).collect()
}

/// A call of all limits of a case.
fn all_of(limiter: &Limiter, case: &Json) -> Call<AllReply, All> {
    let mut call = limiter.all(clauses_of(case));
    set!(call, case,; limits: text, block: length, by: text, weight: number);
    call
}

/// A call that reserves in several limits of a case.
fn acquire_all_of(limiter: &Limiter, case: &Json) -> Call<Reservation, All> {
    let mut call = limiter.acquire_all(clauses_of(case)).renewed(false);
    set!(call, case,; limits: text, block: length, by: text, weight: number);
    call
}

async fn close(limiter: &Limiter, case: &Json) -> Result<Reply, Error> {
    let (key, length) = (text(&case["key"]), parse_length(&case["duration"])?);
    match limit_of(case, case["options"]["kind"] == "throttle")? {
        AnyLimit::Rate(rate) => limiter.close(key, &rate, length).await,
        AnyLimit::Window(window) => limiter.close(key, &window, length).await,
    }
}

fn acquired(result: Result<Reservation, Error>) -> AllReply {
    match result {
        // So that nothing more is sent.
        Ok(reservation) => {
            let reply = reservation.reply().clone();
            reservation.detach();
            reply
        }
        Err(Error::Denied(reply)) => *reply,
        Err(error) => panic!("{error}"),
    }
}

async fn take(limiter: &Limiter, case: &Json) -> Result<Reply, Error> {
    let key = case["key"].as_str().unwrap();
    match limit_of(case, case["call"] == "throttle")? {
        AnyLimit::Rate(rate) => {
            let mut call = limiter.take(key, &rate).quantity(quantity(case));
            set!(call, case, at_most, force; leave: number, block: length, by: text, weight: number, ahead: length);
            call.await
        }
        AnyLimit::Window(window) => {
            let mut call = limiter.take(key, &window).quantity(quantity(case));
            set!(call, case, at_most, force, count_denied; leave: number, block: length, by: text, weight: number);
            call.await
        }
    }
}

async fn reserve(limiter: &Limiter, case: &Json) -> Result<Reservation, Error> {
    let AnyLimit::Window(window) = limit_of(case, false)? else { panic!("{case}") };
    let mut call = limiter.acquire(text(&case["key"]), &window).quantity(quantity(case) as u64);
    set!(call, case, at_most, count_lapsed;
        leave: number, lease: length, id: text, block: length, by: text, weight: number);
    call.renewed(false).await
}

async fn look(limiter: &Limiter, case: &Json) -> Reply {
    let key = case["key"].as_str().unwrap();
    macro_rules! look {
        ($limit:expr $(, $reserving:ident)?) => {{
            let mut call = limiter.look(key, &$limit)$(.$reserving())?.quantity(quantity(case));
            set!(call, case,; leave: number);
            call.await
        }};
    }
    match limit_of(case, case["call"] == "throttle_ro").unwrap() {
        AnyLimit::Rate(rate) => look!(rate),
        AnyLimit::Window(window) if case["call"] == "acquire_ro" => look!(window, reserving),
        AnyLimit::Window(window) => look!(window),
    }
    .unwrap()
}

async fn answer(limiter: &Limiter, case: &Json) -> Json {
    let key = case["key"].as_str().unwrap_or_default();
    let ids: Vec<&str> = match case["ids"].as_array() {
        Some(ids) => ids.iter().map(|id| id.as_str().unwrap()).collect(),
        None => Vec::new(),
    };
    match case["call"].as_str().unwrap() {
        "throttle" | "window" => reply_as_json(&take(limiter, case).await.unwrap()),
        "close" => reply_as_json(&close(limiter, case).await.unwrap()),
        "throttle_ro" | "window_ro" | "acquire_ro" => reply_as_json(&look(limiter, case).await),
        "reserve" if case.get("clauses").is_some() => {
            all_as_json(&acquired(acquire_all_of(limiter, case).await))
        }
        "reserve" => reply_as_json(&acquired(reserve(limiter, case).await).answers[0]),
        "apply" => json!(limiter.apply(key, ids[0], case["quantity"].as_u64()).await.unwrap()),
        "release" => json!(limiter.release(key, ids).await.unwrap()),
        "renew" => {
            let lease = case["options"].get("lease").map(length);
            json!(limiter.renew(key, ids[0], lease).await.unwrap())
        }
        "held" => {
            let held = limiter.held(key).await.unwrap();
            let fields = held.iter().map(|each| {
                let left = ms(Some(each.left));
                json!({"id": each.id.to_string(), "quantity": each.quantity, "left_ms": left})
            });
            fields.collect()
        }
        "all_ro" => all_as_json(&all_of(limiter, case).look().await.unwrap()),
        "all" => match all_of(limiter, case).await {
            Ok(reply) => all_as_json(&reply),
            // A limit reserves.
            Err(Error::InvalidArgument(_)) => {
                all_as_json(&acquired(acquire_all_of(limiter, case).await))
            }
            Err(error) => panic!("{error}"),
        },
        "reset" => json!(limiter.reset(key).await.unwrap()),
        "info" => match limiter.info(key).await.unwrap() {
            None => Json::Null,
            Some(info) => {
                let mut fields = match info.state {
                    KeyState::Bucket { full_in, debt, .. } => {
                        json!({"kind": "bucket", "full_in_ms": ms(Some(full_in)), "debt_ms": ms(Some(debt))})
                    }
                    KeyState::Window {
                        events,
                        denied,
                        entries,
                        oldest,
                        newest,
                        held,
                        reservations,
                        ..
                    } => json!({
                        "kind": "window", "events": events, "denied": denied, "entries": entries, "oldest_ms": ms(oldest),
                        "newest_ms": ms(newest), "held": held, "reservations": reservations
                    }),
                    _ => panic!("{info:?}"),
                };
                fields["ban_ms"] = ms(Some(info.ban));
                fields["waiting"] = json!(info.waiting);
                fields["ttl_ms"] = ms(Some(info.ttl));
                fields
            }
        },
        "top" => {
            let count = case["options"]["count"].as_u64().unwrap();
            let top = match case["options"]["reset"] == true {
                true => limiter.top_and_reset(count).await.unwrap(),
                false => limiter.top(count).await.unwrap(),
            };
            let fields = top.iter().map(|each| {
                json!({"key": String::from_utf8_lossy(&each.key), "db": each.db, "denials": each.denials, "over": each.over})
            });
            fields.collect()
        }
        "policies" => {
            let policies = limiter.policies().await.unwrap();
            let fields = policies.iter().map(|each| {
                json!({"name": each.name, "definition": each.definition, "allowed": each.allowed, "denied": each.denied,
                    "shadow_denied": each.shadow_denied})
            });
            fields.collect()
        }
        other => panic!("no such call: {other}"),
    }
}

async fn run(name: &str) {
    for case in table(name) {
        let script = Script::default();
        let limiter = script.limiter([value_of(&case["reply"])]);
        let found = answer(&limiter, &case).await;
        let expected = case["words"].as_str().unwrap();
        let sent = script.sent();
        let sent: Vec<_> = sent.iter().map(|words| without_made_ids(words, expected)).collect();
        assert_eq!(sent, [in_milliseconds(expected)], "{case}");
        assert_means(&found, &case["means"], &case);
    }
}

#[tokio::test]
async fn calls_send_what_the_table_says_and_mean_what_it_says() {
    run("cases.json").await;
}

#[tokio::test]
async fn calls_that_inspect_keys_do_so_too() {
    run("insight.json").await;
}

#[test]
fn limits_in_words_are_the_limits_of_the_table() {
    for case in table("spoken.json") {
        let (say, options) = (case["say"].as_str().unwrap(), &case["options"]);
        if case["error"] == true {
            assert!(matches!(Rate::per(say), Err(Error::InvalidArgument(_))), "{case}");
            // A window may admit nobody.
            let admits_nobody =
                Window::per(say).is_ok_and(|window| window.numbers().unwrap().0 == 0);
            let is_window = case.get("window").is_some() || admits_nobody;
            assert_eq!(Window::per(say).is_ok(), is_window, "{case}");
        }
        if let Some(rate) = case.get("rate") {
            let said = Rate::per(say).unwrap();
            let said = match options["capacity"].as_u64() {
                Some(capacity) => said.capacity(capacity).unwrap(),
                None => said,
            };
            assert_eq!(said, rate_of(rate), "{case}");
        }
        if case.get("window").is_some() {
            assert_eq!(set_options(Window::per(say).unwrap(), options), window(&case), "{case}");
        }
    }
}

#[tokio::test]
async fn several_limits_are_settled_and_charged_as_the_table_says() {
    for case in table("several.json") {
        let script = Script::default();
        let list = |name: &str| case[name].as_array().into_iter().flatten();
        let sent: Vec<_> = list("sent").map(|words| in_milliseconds(text(words))).collect();
        let replies: Vec<_> = list("replies").map(value_of).collect();
        if case["force"] == true {
            let limiter = script.limiter([]);
            script.will_reply(replies);
            let reply = all_of(&limiter, &case).force().await.unwrap();
            assert_eq!(script.sent(), sent, "{case}");
            assert_eq!(json!(reply.paid), case["paid"], "{case}");
            assert_means(&all_as_json(&reply), &case["means"], &case);
            continue;
        }
        let limiter = script.limiter([value_of(&case["reply"])]);
        let mut reservation = match acquire_all_of(&limiter, &case).await {
            Err(Error::Denied(reply)) => {
                assert_eq!(
                    json!([reply.paid, reply.denied]),
                    json!([case["paid"], case["denied"]])
                );
                continue;
            }
            acquired => acquired.unwrap(),
        };
        assert_eq!(json!(reservation.reply().paid), case["paid"], "{case}");
        let ids: Map<String, Json> =
            reservation.ids().map(|(name, id)| (name.into(), json!(id.to_string()))).collect();
        assert_eq!(json!(ids), case["ids"], "{case}");
        script.sent();
        script.will_reply(replies);
        let result = match case["then"].as_str().unwrap() {
            "renew" => {
                let result = reservation.renew(case.get("lease").map(length)).await;
                reservation.detach();
                result
            }
            "release" => reservation.release().await,
            _ => {
                let cost = case["cost"].as_object().unwrap();
                let cost = cost.iter().map(|(name, cost)| (name.as_str(), cost.as_u64().unwrap()));
                reservation.set(cost.collect::<Cost>()).unwrap();
                reservation.apply().await
            }
        };
        assert_eq!(script.sent(), sent, "{case}");
        match (result, &case["means"]) {
            (Ok(()), Json::Bool(true)) => {}
            (Err(Error::Lapsed { limits }), Json::Bool(false)) => assert_eq!(limits.len(), 1),
            (Err(Error::Server(reply)), Json::Null) => {
                assert_eq!(json!(reply.to_string()), case["raises"]);
            }
            (result, _) => panic!("{result:?}: {case}"),
        }
    }
}

/// The table of mistakes has more.
#[tokio::test]
async fn mistakes_that_only_rust_allows_are_refused_before_anything_is_sent() {
    let (limiter, second) = (Script::default().limiter([]), Duration::from_secs(1));
    let (window, none) = (Window::per("5/min").unwrap(), Window::new(5, Duration::ZERO));
    let (day, wrong) = (|| Window::policy("day"), Window::per("5/day").unwrap().tz("UTC"));
    let say = |text: &str| Rate::per(text).map(drop);
    let rate = async |rate: Rate| limiter.take("k", &rate).await.map(drop);
    let take = async |window: &Window| limiter.take("k", window).await.map(drop);
    let all = async |clause: Clause| limiter.all([clause]).await.map(drop);
    let clause = || Clause::take("a", &window);
    let mut reserved = several().await;
    let deadline =
        Limiter::builder(Servers::open(url(1)).unwrap()).deadline(Duration::ZERO).build();
    let either = clause().or_else(Clause::take("b", &window));
    let not_m = "not m, which may be min or mo";
    let kind = "the server sets the kind of window of the policy \"day\"";
    let (is_acquired, is_fixed) = ("a semaphore is acquired", "tz must be used with fixed");
    for (result, expected) in [
        (say("30/m"), not_m),
        (say(" 5 per  10 M "), not_m),
        ("10m".parse::<Period>().map(drop), not_m),
        (say("30/month"), "months or years, which differ in length: 1mo"),
        (say("3/0s"), "the period must be above 0, not as in \"3/0s\""),
        (Rate::per("30/min").unwrap().capacity(0).map(drop), "capacity must be above 0"),
        (Rate::policy("free").capacity(1).map(drop), "the capacity of the policy \"free\""),
        (day().unit("tökens").map(drop), "printable ASCII"),
        (day().unit("a\nb").map(drop), "printable ASCII"),
        (deadline.map(drop), "deadline must be above 0"),
        (rate(Rate::new(0, 0, second)).await, "the count of a rate must be above 0"),
        (rate(Rate::new(0, 1, Duration::ZERO)).await, "the period of a rate must be above 0"),
        (rate(Rate::new(0, 1, Period::months(1))).await, "rate must not be in months"),
        (take(&day().fixed()).await, kind),
        (take(&day().start("12:00")).await, kind),
        (take(&day().tz("UTC")).await, kind),
        (take(&day().buckets(9)).await, kind),
        (take(&none).await, is_acquired),
        (limiter.close("k", &none, MS).await.map(drop), is_acquired),
        (all(Clause::take("k", &none)).await, is_acquired),
        (take(&wrong).await, is_fixed),
        (limiter.look("k", &wrong).await.map(drop), is_fixed),
        (limiter.acquire("k", &wrong).await.map(drop), is_fixed),
        (limiter.local("k", &wrong).build().map(drop), is_fixed),
        (limiter.acquire_all([Clause::acquire("k", &wrong)]).await.map(drop), is_fixed),
        (all(Clause::acquire("a", &none)).await, "the limit \"a\" reserves: use acquire_all"),
        (all(clause().lease(second)).await, "lease must not be used with "),
        (all(clause().id("x")).await, "id must not be used with "),
        (all(clause().count_lapsed()).await, "count_lapsed must not be used with "),
        (all(Clause::acquire("a", &window).count_denied()).await, "count_denied must not be"),
        (limiter.acquire_all([clause()]).await.map(drop), "acquire_all must have at least one"),
        (limiter.all([either]).force().await.map(drop), "force takes rates and windows without"),
        // Its renewal would otherwise go on at the shortest pause after the server has refused the lease.
        (reserved.renew(Duration::ZERO).await, "lease must be above 0"),
    ] {
        match result {
            Err(Error::InvalidArgument(text)) => assert!(text.contains(expected), "{text}"),
            other => panic!("{other:?}, not {expected}"),
        }
    }
    reserved.detach();
    assert!(!Rate::per("30/fortnight").unwrap_err().to_string().contains("not m"));
    // A window that changes its mind in the same kind is fine.
    assert_eq!(window.start("09:00").fixed().starts_at(), Some("09:00"));
}

#[tokio::test]
async fn a_reservation_is_settled_again_if_no_server_answered() {
    let script = Script::default();
    let reply = || value_of(&json!([0, 9, 7, -1, 9, "x"]));
    let loading = || vec![value_of(&json!({"error": "LOADING it is being read"}))];
    let limiter = script.limiter([reply()]);
    let window = Window::per("9/min").unwrap();
    let mut reservation = limiter.acquire("k", &window).quantity(2).await.unwrap();
    reservation.set(1).unwrap();
    script.sent();
    script.will_reply(loading());
    assert!(reservation.apply().await.unwrap_err().is_transient());
    script.will_reply(vec![Value::Integer(1)]);
    reservation.apply().await.unwrap();
    assert_eq!(script.sent(), ["RL.APPLY k x 1", "RL.APPLY k x 1"]);
    script.will_reply(vec![Value::Integer(0)]);
    assert!(matches!(reservation.release().await, Err(Error::Lapsed { .. })));
    script.sent();

    // Dropping it tries to apply again: what may have been counted must not be released.
    script.will_reply(vec![reply()]);
    let mut reservation = limiter.acquire("k", &window).await.unwrap();
    script.sent();
    script.will_reply(loading());
    assert!(reservation.apply().await.unwrap_err().is_transient());
    script.will_reply(vec![Value::Integer(1)]);
    drop(reservation);
    tokio::time::sleep(10 * MS).await;
    assert_eq!(script.sent(), ["RL.APPLY k x", "RL.APPLY k x"]);
}

/// Reserves the window a and the semaphore c, and counts in the window d.
async fn several() -> Reservation {
    let replies = json!([[0, 9, 8, -1, 9, "x"], [0, 9, 8, -1, 9, "y"], [0, 9, 8, -1, 9]]);
    let limiter = Script::default().limiter([value_of(&json!([0, 9, 8, -1, 9, 1, replies]))]);
    let window = Window::per("9/min").unwrap();
    let clauses = [
        Clause::acquire("a", &window),
        Clause::acquire("c", &Semaphore::new(9)),
        Clause::take("d", &window),
    ];
    limiter.acquire_all(clauses).renewed(false).await.unwrap()
}

/// The mistakes that do not compile in Rust, in addition to those of type `type`.
const IMPOSSIBLE: [&str; 14] = [
    "a call waits less than 0 ms",
    "a cost is below 0",
    "a group has no limits",
    "a group is counted afterwards",
    "a key is closed by a limit in words",
    "a key is closed by a limit of another kind",
    "a key is closed by a policy of an unknown kind",
    "a key is closed by a policy whose kind is not given",
    "a local limit leaves less than 0",
    "a rate in words stands in the place of a rate",
    "a window in words stands in the place of a window",
    "less than nothing is counted afterwards",
    "several limits wait less than 0 ms",
    "the name of a policy begins with no @",
];

#[tokio::test]
async fn the_mistakes_of_the_table_are_refused_before_anything_is_sent() {
    let mut impossible = Vec::new();
    for case in table("mistakes.json") {
        let (says, is_several) = (text(&case["says"]), case["cost"] == 5);
        if IMPOSSIBLE.contains(&says) {
            impossible.push(says.to_owned());
        } else if case["error"] == "value" || is_several {
            let made = make_mistake(&case).await;
            assert!(matches!(made, Err(Error::InvalidArgument(_))), "{made:?}: {says}");
        }
    }
    impossible.sort();
    assert_eq!(impossible, IMPOSSIBLE);
}

async fn make_mistake(case: &Json) -> Result<(), Error> {
    if let Some(cost) = case.get("cost") {
        let mut reservation = several().await;
        let set = match cost.as_object() {
            Some(costs) => reservation.set(costs.keys().map(|name| (name, 1)).collect::<Cost>()),
            None => reservation.set(number(cost)),
        };
        reservation.detach();
        return set;
    }
    let limiter = Script::default().limiter([]);
    if case.get("clauses").is_some() {
        let call = all_of(&limiter, case);
        return match case["force"] == true {
            true => call.force().await.map(drop),
            false => call.await.map(drop),
        };
    }
    match text(&case["call"]) {
        "close" => close(&limiter, case).await.map(drop),
        "renew" => {
            let lease = parse_length(&case["options"]["lease"])?;
            limiter.renew("k", "a", Some(lease)).await.map(drop)
        }
        "reserve" => reserve(&limiter, case).await.map(drop),
        "local" => {
            let lease = parse_length(&case["options"]["lease"])?;
            limiter.local("k", &parse_window(&case["limit"])?).lease(lease).build().map(drop)
        }
        _ => take(&limiter, case).await.map(drop),
    }
}

#[tokio::test]
async fn a_reply_that_redis_ratelimit_never_sends_is_an_error() {
    for reply in [json!(1), json!([]), json!([0, 1, 2, 3]), json!([0, 1, 2, 3, "x"]), json!(null)] {
        let limiter = Script::default().limiter([value_of(&reply)]);
        let result = limiter.take("k", &Rate::per("5/min").unwrap()).await;
        assert!(matches!(result, Err(Error::UnexpectedReply(_))), "{result:?}");
    }
}
