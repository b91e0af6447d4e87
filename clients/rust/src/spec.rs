//! The tables in clients/spec, which the tests of all clients read.

use serde_json::Value as Json;

use crate::{Period, Window};

/// Reads a table.
pub(crate) fn table(name: &str) -> Json {
    let path = format!("{}/../spec/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Returns a text or a number as text.
pub(crate) fn text(of: &Json) -> String {
    of.as_str().map_or_else(|| of.to_string(), Into::into)
}

pub(crate) fn period(of: &Json) -> Period {
    text(of).parse().unwrap()
}

/// Returns the window of a case: the name of a policy, or a limit, a period and options.
pub(crate) fn window(case: &Json) -> Window {
    if let Some(policy) = case.as_str() {
        return Window::policy(policy);
    }
    let [limit, length, options] = case["window"].as_array().unwrap().as_slice() else { panic!() };
    let mut window = Window::new(limit.as_u64().unwrap(), period(length));
    if options["fixed"] == true {
        window = window.fixed();
    }
    if let Some(start) = options["start"].as_str() {
        window = window.start(start);
    }
    if let Some(buckets) = options["buckets"].as_u64() {
        window = window.buckets(buckets as u32);
    }
    match options["unit"].as_str() {
        Some(unit) => window.unit(unit).unwrap(),
        None => window,
    }
}

#[test]
fn numbers_are_those_of_the_other_clients() {
    use crate::{breaker, reservation};

    let numbers = table("numbers.json");
    let ms = |length: std::time::Duration| length.as_millis() as u64;
    let breaker = &numbers["breaker"];
    assert_eq!(breaker["failures"], breaker::FAILURES);
    assert_eq!(breaker["pause_ms"], ms(breaker::PAUSE));
    assert_eq!(breaker["probe_ms"], ms(breaker::PROBE));
    let renewal = &numbers["renewal"];
    assert_eq!(renewal["per_lease"], reservation::RENEWALS_PER_LEASE);
    assert_eq!(renewal["default_lease_ms"], ms(reservation::DEFAULT_LEASE));
    assert_eq!(renewal["least_ms"], ms(reservation::LEAST_RENEWAL));
}
