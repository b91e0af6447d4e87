//! The cases, for the clients written in Rust.

use serde_json::Value as Json;

/// Sends the words of a call from a script, which answers errors as the call would.
pub const SCRIPT: &str = "return redis.pcall(ARGV[1], KEYS[1], unpack(ARGV, 2))";

/// The cases that answer no error, for transactions of clients that answer nothing else then.
#[allow(dead_code)]
pub fn without_errors() -> Vec<usize> {
    let cases = cases();
    (0..cases.len()).filter(|&at| !cases[at][1].is_object()).collect()
}

/// The words of every call.
pub fn calls() -> Vec<Vec<String>> {
    let words = |case: &Json| case[0].as_str().unwrap().split(' ').map(str::to_owned).collect();
    cases().iter().map(words).collect()
}

/// The same calls as EVAL has them.
pub fn calls_from_scripts() -> Vec<Vec<String>> {
    let eval = |call: Vec<String>| {
        let head = ["EVAL", SCRIPT, "1", &call[1], &call[0]].map(str::to_owned);
        head.into_iter().chain(call[2..].iter().cloned()).collect()
    };
    calls().into_iter().map(eval).collect()
}

/// Compares the replies with those that are expected. An error is `{"error": text}`.
pub fn check(mode: &str, replies: &[Json]) {
    let all: Vec<usize> = (0..cases().len()).collect();
    check_some(mode, &all, replies);
}

/// Compares the replies to some of the cases.
pub fn check_some(mode: &str, some: &[usize], replies: &[Json]) {
    assert_eq!(replies.len(), some.len(), "{mode}");
    let cases = cases();
    for (case, reply) in some.iter().map(|&at| &cases[at]).zip(replies) {
        let (call, expected) = (&case[0], &case[1]);
        let right = match (expected["error"].as_str(), reply["error"].as_str()) {
            (Some(part), Some(error)) => error.contains(part),
            _ => reply == expected,
        };
        assert!(right, "{mode}: {call} answered {reply}, not {expected}");
    }
}

fn cases() -> Vec<Json> {
    serde_json::from_str(include_str!("cases.json")).unwrap()
}
