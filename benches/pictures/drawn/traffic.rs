//! The same calls against different limits.

use std::iter::once;

use super::DrawnCall;

const MINUTE_MS: i64 = 60_000;

/// Calls at fixed times.
pub struct Traffic {
    pub name: &'static str,
    pub title: &'static str,
    pub calls_ms: Vec<i64>,
    /// The first and the last moment of the picture.
    pub shown_ms: (i64, i64),
}

/// What a limit does, its command on the key `key`, and the most calls that may go ahead in any 60 seconds.
pub type DrawnLimit = (&'static str, &'static str, usize);

/// 15 a minute, each in its own way.
pub const LIMITS: [DrawnLimit; 9] = [
    ("a steady rate with bursts", "RL.THROTTLE key 14 15 60s", 30),
    ("... wait in line", "RL.THROTTLE key 14 15 60s BLOCK 20s", 30),
    ("... book, and sleep", "RL.THROTTLE key 14 15 60s AHEAD 20s", 30),
    ("any 60 seconds, exact", "RL.WINDOW key 15 60s", 15),
    ("any 60 seconds, few entries", "RL.WINDOW key 15 60s BUCKETS 10", 15),
    ("denied calls count too", "RL.WINDOW key 15 60s COUNTDENIED", 15),
    ("a denial closes it for 30 s", "RL.WINDOW key 15 60s 1 BAN 30s", 15),
    ("each minute of the clock", "RL.WINDOW key 15 1min FIXED", 30),
    ("a minute from the first call on", "RL.WINDOW key 15 60s FIXED FROM first", 30),
];

/// A call every `step_ms`, from the first time until before the other.
fn every(step_ms: usize, from_ms: i64, to_ms: i64) -> impl Iterator<Item = i64> {
    (from_ms..to_ms).step_by(step_ms)
}

pub fn all() -> [Traffic; 4] {
    [
        Traffic {
            name: "burst",
            title: "A burst at midnight: a call every second for 30 seconds, then one every 3 seconds",
            calls_ms: every(1_000, -15_000, 15_000).chain(every(3_000, 15_000, 75_000)).collect(),
            shown_ms: (-18_000, 98_000),
        },
        Traffic {
            name: "steady",
            title: "A steady stream of twice the limit: a call every 2 seconds",
            calls_ms: every(2_000, -50_000, 100_000).collect(),
            shown_ms: (-55_000, 125_000),
        },
        Traffic {
            name: "hammer",
            title: "A client that hammers for 90 seconds, pauses for a minute, then calls every 3 seconds",
            calls_ms: every(1_500, -45_000, 45_000).chain(every(3_000, 106_000, 136_000)).collect(),
            shown_ms: (-50_000, 140_000),
        },
        Traffic {
            name: "late",
            title: "A single call, and 35 seconds later one every second for a minute",
            calls_ms: once(-45_000).chain(every(1_000, -10_000, 50_000)).collect(),
            shown_ms: (-50_000, 90_000),
        },
    ]
}

/// The most calls that went ahead in any (t - 60 s, t].
pub fn most_in_a_minute(calls: &[DrawnCall]) -> usize {
    let gone = || calls.iter().filter(|call| call.may_go).map(|call| call.at_ms);
    let until = |end: i64| gone().filter(|at| (end - MINUTE_MS + 1..=end).contains(at)).count();
    gone().map(until).max().unwrap_or_default()
}

/// Runs the traffic against a limit.
pub fn run(traffic: &Traffic, (_, command, bound): DrawnLimit) -> Vec<DrawnCall> {
    let calls: Vec<_> =
        traffic.calls_ms.iter().map(|at_ms| (*at_ms, format!("{command} MS"))).collect();
    let calls = super::run(&calls, traffic.shown_ms);
    assert!(most_in_a_minute(&calls) <= bound, "{}: {command}", traffic.name);
    calls
}
