//! The tables that all clients share.

use std::time::Duration;

use serde_json::Value as Json;

use super::headers::base64;
use super::*;
use crate::testing::{period, table, text, window};
use crate::{AllReply, Decision, Rate, Reply, Semaphore};

fn reply(case: &Json) -> Reply {
    let ms = |name: &str| case[name].as_u64().map(Duration::from_millis);
    Reply {
        decision: match case["limited"].as_u64() {
            Some(0) => Decision::Allowed,
            Some(1) => Decision::Denied,
            _ => Decision::Held,
        },
        limit: case["limit"].as_u64().unwrap(),
        remaining: case["remaining"].as_u64().unwrap(),
        retry_after: ms("retry_after_ms"),
        reset_after: ms("reset_after_ms").unwrap(),
        reachable: case["reachable"] != false,
        decided: case["reachable"] != false || case["limit"] != 0,
        ..Reply::unreached(false)
    }
}

fn list(given: &Json) -> Vec<Json> {
    match given {
        Json::Null => Vec::new(),
        Json::Array(each) => each.clone(),
        one => vec![one.clone()],
    }
}

fn with_limit(reply: ReplyWithOptions, case: &Json) -> ReplyWithOptions {
    if let Some([burst, count, length]) = case["rate"].as_array().map(Vec::as_slice) {
        let (burst, count) = (burst.as_u64().unwrap(), count.as_u64().unwrap());
        return reply.limit(&Rate::new(burst, count, period(length)));
    }
    let given = &case["window"];
    if given[1] == 0 && given[2]["unit"].is_null() {
        return reply.limit(&Semaphore::new(given[0].as_u64().unwrap()));
    }
    reply.limit(&window(case))
}

fn asked(case: &Json) -> ReplyWithOptions {
    let given = &case["reply"];
    let mut made = match given["answers"].as_array() {
        None => ReplyWithOptions::new(reply(given)),
        Some(answers) => {
            let mut all = AllReply::from(reply(given));
            all.answers = answers.iter().map(reply).collect();
            all.names = list(&given["names"]).iter().map(text).collect();
            all.denied = list(&given["denied"]).iter().map(text).collect();
            ReplyWithOptions::new(all)
        }
    };
    for limit in list(&case["limits"]) {
        made = with_limit(made, &limit);
    }
    for name in list(&case["names"]) {
        made = made.name(&text(&name));
    }
    for key in list(&case["pk"]) {
        made = made.partition_key(text(&key));
    }
    made
}

fn written(replies: &[ReplyWithOptions]) -> Json {
    let all = headers(replies).into_iter().map(|(name, value)| (name.into(), value.into()));
    Json::Object(all.collect())
}

fn expected(case: &Json) -> Json {
    let headers = case["headers"].as_object().unwrap();
    Json::Object(headers.iter().map(|(name, value)| (name.to_lowercase(), value.clone())).collect())
}

#[test]
fn each_reply_gives_the_headers_of_its_case() {
    for case in table("headers.json") {
        assert_eq!(written(&[asked(&case)]), expected(&case), "{case}");
    }
}

#[test]
fn several_limits_of_a_request_give_one_set_of_headers_and_one_problem() {
    for case in table("http.json") {
        let replies: Vec<_> = list(&case["asked"]).iter().map(asked).collect();
        assert_eq!(written(&replies), expected(&case), "{case}");
        let problem = Problem::of(&replies);
        let status = problem.as_ref().map_or(200, Problem::status);
        assert_eq!(case["status"], status, "{case}");
        if let Some(problem) = problem {
            let body: Json = serde_json::from_str(&problem.to_string()).unwrap();
            assert_eq!(body["status"], status);
            assert_eq!(body["violated-policies"], case["violated"], "{case}");
            let kind = if status == 429 { "quota-exceeded" } else { "temporary-reduced-capacity" };
            let uri = format!("https://iana.org/assignments/http-problem-types#{kind}");
            assert_eq!(body["type"], uri);
        }
    }
}

#[test]
fn each_kind_of_header_can_be_left_out() {
    let denied = Reply {
        limit: 5,
        retry_after: Some(Duration::from_millis(1500)),
        decided: true,
        ..Reply::unreached(false)
    };
    let reply = ReplyWithOptions::new(denied).standard(false).x_ratelimit(false);
    assert_eq!(headers(&[reply]), [("retry-after", "2".to_owned())]);
}

#[test]
fn bytes_of_a_partition_key_are_base64() {
    let found = [&b""[..], b"f", b"fo", b"foo", b"foob", b"\x00\xff\xbf"].map(base64);
    assert_eq!(found, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "AP+/"]);
}

#[test]
fn each_client_has_the_address_of_its_case() {
    for case in table("addresses.json") {
        // An IpAddr has no zone.
        let peer = case["peer"].as_str().and_then(|text| text.split('%').next()?.parse().ok());
        let proxies = case["proxies"].as_u64().unwrap_or(0);
        let prefix = case["prefix"].as_u64().unwrap_or(64);
        let found = client_address(
            peer,
            case["forwarded_for"].as_str(),
            proxies.try_into().unwrap(),
            prefix.try_into().unwrap(),
        );
        assert_eq!(case["address"], found, "{case}");
    }
}

#[cfg(all(feature = "http", feature = "tower"))]
#[test]
fn each_retry_after_asks_to_wait_for_the_time_of_its_case() {
    use ::http::HeaderMap;

    for case in table("retry_after.json") {
        let now_ms = case["now_ms"].as_u64().unwrap_or(0);
        let now = std::time::UNIX_EPOCH + Duration::from_millis(now_ms);
        let wait = match case["headers"].as_object() {
            None => retry_after(case["text"].as_str(), now),
            Some(headers) => {
                let parse = |(name, value): (&String, &Json)| {
                    (name.parse().unwrap(), text(value).parse().unwrap())
                };
                let headers: HeaderMap = headers.iter().map(parse).collect();
                retry_after(headers.get("retry-after"), now)
            }
        };
        let wait_ms = wait.map(|wait| wait.as_millis() as u64);
        assert_eq!(wait_ms, case["wait_ms"].as_u64(), "{case}");
    }
}

#[cfg(feature = "tower")]
#[test]
fn the_address_of_a_client_is_found_behind_whatever_it_wrote_in_the_header() {
    use ::http::{HeaderMap, HeaderValue};

    let mut headers = HeaderMap::new();
    for value in [&b"192.0.2.66"[..], b"\xff, 192.0.2.67, 2001:db8::1"] {
        headers.append("x-forwarded-for", HeaderValue::from_bytes(value).unwrap());
    }
    let peer = Some([10, 0, 0, 1].into());
    let address = |proxies| client_address(peer, headers.get_all("x-forwarded-for"), proxies, 64);
    assert_eq!([0, 1, 2].map(address), ["10.0.0.1", "2001:db8::/64", "192.0.2.67"]);
    assert_eq!(client_address(None, [""; 0], 1, 64), "");
}
