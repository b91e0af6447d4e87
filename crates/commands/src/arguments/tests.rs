use crate::memory::tests::{World, NOW_US};
use crate::memory::{Outcome, Value};

/// Calls that options may follow, and those that each takes. The keys `t` and `w` exist, and must stay as they are.
const TAKERS: [(&str, &str); 11] = [
    ("RL.THROTTLE k 4 1 1", "LEAVE ATMOST FORCE BLOCK BY WEIGHT AHEAD BAN MS"),
    ("RL.THROTTLE_RO k 4 1 1", "LEAVE MS"),
    (
        "RL.WINDOW k 4 60",
        "BUCKETS FIXED FROM TZ LEAVE ATMOST FORCE COUNTDENIED BLOCK BY WEIGHT BAN MS",
    ),
    ("RL.WINDOW_RO k 4 60", "BUCKETS FIXED FROM TZ LEAVE MS"),
    (
        "RL.ACQUIRE k 4 60",
        "BUCKETS FIXED FROM TZ LEAVE ATMOST LEASE COUNTLAPSED ID BLOCK BY WEIGHT MS",
    ),
    ("RL.ACQUIRE_RO k 4 60", "BUCKETS FIXED FROM TZ LEAVE MS"),
    ("RL.ALL 1 k THROTTLE 4 1 1", "LEAVE BAN CHECK SHADOW"),
    ("RL.ALL 1 k WINDOW 4 60", "BUCKETS FIXED FROM TZ LEAVE COUNTDENIED BAN CHECK SHADOW"),
    ("RL.ALL 1 k ACQUIRE 4 60", "BUCKETS FIXED FROM TZ LEAVE LEASE COUNTLAPSED ID CHECK SHADOW"),
    ("RL.RENEW w a", "LEASE"),
    ("RL.TOP", "COUNT RESET"),
];

/// Options that exclude each other, in the order of the error.
const EXCLUDED: &str = "BUCKETS FIXED, LEAVE FORCE, ATMOST FORCE, BLOCK FORCE, COUNTDENIED FORCE, AHEAD FORCE, \
    LEAVE AHEAD, ATMOST AHEAD, BLOCK AHEAD, ATMOST BAN, BLOCK BAN, AHEAD BAN, ID CHECK, LEASE CHECK, \
    COUNTLAPSED CHECK, COUNTDENIED CHECK, BAN CHECK, SHADOW CHECK, COUNTDENIED SHADOW";

/// Words that are not numbers.
const NO_NUMBERS: &str =
    "x many + - -0 +1 01 1.0 1e3 0x10 1x 9223372036854775808 99999999999999999999";
/// Words that are not durations.
const NO_DURATIONS: &str =
    "x s ms -1 +1 01 1.5 1.5s -5s +5s 05s 5sec 5ss 1us 9223372036854775808 99999999999999999999s";
/// What is neither.
const ODD: [&[u8]; 9] =
    [b"", b" ", b" 1", b"1 ", b"1\0", b"\xff\xfe", b"1\xe9", b"\xd9\xa1", &[b'9'; 100_000]];

/// An option with a value, if it has one.
fn spelled(option: &str) -> String {
    let value = match option {
        "LEAVE" | "BUCKETS" | "COUNT" | "WEIGHT" => " 1",
        "BLOCK" | "LEASE" | "AHEAD" | "BAN" => " 5s",
        "FROM" => " 2026-11-02",
        "TZ" => " UTC",
        "ID" | "BY" => " x",
        _ => "",
    };
    format!("{option}{value}")
}

/// What the value of an option must be.
fn range(option: &str) -> String {
    let least = if option == "BLOCK" { "0" } else { "1ms" };
    match option {
        "LEAVE" => "LEAVE must be an integer from 0 to 9223372036854775807".into(),
        "COUNT" => "COUNT must be an integer from 1 to 9223372036854775807".into(),
        "BUCKETS" => "BUCKETS must be an integer from 1 to 65536".into(),
        "FROM" => "FROM must be first, HH:MM, ".into(),
        "TZ" => "TZ must be an IANA time zone ".into(),
        "ID" => "an id must have 1 to 64 bytes".into(),
        "BY" => "BY must have 1 to 64 bytes".into(),
        "WEIGHT" => "WEIGHT must be an integer from 1 to 1000".into(),
        _ => format!(
            "{option} must be whole milliseconds, or a number with a unit of ms, s, min, h, d or w, \
             from {least} to a year (31557600000ms)"
        ),
    }
}

/// Returns whether this is a call with a limit.
fn has_limit(call: &str) -> bool {
    call.contains(" k ")
}

fn needed(option: &str) -> &'static str {
    match option {
        "FROM" | "TZ" => "FIXED",
        "BY" => "BLOCK 5s",
        "WEIGHT" => "BLOCK 5s BY y",
        _ => "",
    }
}

/// A server with a bucket `t` and a window `w`, to which every wrong call is an error that changes nothing.
struct Refusing {
    world: World,
    before: String,
}

impl Refusing {
    fn new() -> Refusing {
        let mut world = World::new();
        for call in ["RL.THROTTLE t 15 30 60", "RL.WINDOW w 5 60", "RL.ACQUIRE w 9 60 1 ID a"] {
            world.call(call);
        }
        let before = state(&mut world);
        Refusing { world, before }
    }

    /// Checks that the reply to a call is an error that begins with these words.
    #[track_caller]
    fn refuses_words(&mut self, words: &[&[u8]], begins: &str) {
        match self.world.server.call(words, NOW_US) {
            Outcome::Reply(Value::Error(error)) if error.starts_with(begins) => {}
            other => panic!("{begins}: {other:?} to {}", words.concat().escape_ascii()),
        }
    }

    #[track_caller]
    fn refuses(&mut self, line: impl AsRef<str>, begins: &str) {
        self.refuses_words(&words(line.as_ref()), begins);
    }

    #[track_caller]
    fn accepts(&mut self, line: &str) {
        let reply = self.world.server.call(&words(line), NOW_US);
        assert!(matches!(reply, Outcome::Reply(Value::Array(_))), "{line}: {reply:?}");
        self.world.call("DEL k");
    }
}

impl Drop for Refusing {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(state(&mut self.world), self.before);
        }
    }
}

/// What the keys of the server hold.
fn state(world: &mut World) -> String {
    assert_eq!(world.server.call(&words("DEL k other"), NOW_US), Outcome::Reply(Value::Integer(0)));
    ["RL.INFO t", "RL.INFO w", "RL.HELD w"].map(|call| format!("{:?}", world.call(call))).concat()
}

fn words(line: &str) -> Vec<&[u8]> {
    line.split_whitespace().map(str::as_bytes).collect()
}

#[test]
fn numbers_and_periods_have_ranges_and_no_other_spelling() {
    let mut server = Refusing::new();
    let limit = "limit must be an integer from 0 to 9223372036854775807";
    let period = "period must be a whole number of seconds, or one with a unit of ms, s, min, h, d, w, mo or y, \
                  from 1ms to 100y";
    let semaphore = period.replace("be a whole", "be 0 for a semaphore, a whole");
    let signed = "quantity must be an integer from -9223372036854775808 to 9223372036854775807";
    let quantity = "quantity must be an integer from 0 to 9223372036854775807";
    let burst = "max_burst must be an integer from 0 to 9223372036854775806";
    let count = "count must be an integer from 1 to 9223372036854775807";
    let plain = "period must be a whole number of seconds, or one with a unit of ms, s, min, h, d or w, from 1ms \
                 to 36525d";
    for (call, names, error, more) in [
        ("t # 30 60", "THROTTLE THROTTLE_RO", burst, "-1 9223372036854775807"),
        ("t 15 # 60", "THROTTLE THROTTLE_RO", count, "0 -1"),
        ("t 15 30 #", "THROTTLE THROTTLE_RO", plain, "0 0ms 1mo 1y 36526d 3155760001"),
        ("t 15 30 60 # MS", "THROTTLE THROTTLE_RO", signed, "-9223372036854775809"),
        ("w # 60", "WINDOW WINDOW_RO ACQUIRE ACQUIRE_RO", limit, "-1"),
        ("w 5 #", "WINDOW WINDOW_RO", period, "0 0ms 101y 1201mo 36526d 3155760001"),
        ("w 5 #", "ACQUIRE ACQUIRE_RO", &semaphore, "00 0s 101y 1201mo 36526d 3155760001"),
        ("w 5 60 # MS", "WINDOW WINDOW_RO", signed, "-9223372036854775809"),
        ("w 5 60 # MS", "ACQUIRE", quantity, "-1"),
        ("w a #", "APPLY", quantity, "-1"),
    ] {
        let wrong = if error.starts_with("period") { NO_DURATIONS } else { NO_NUMBERS };
        let wrong = wrong.split(' ').chain(more.split(' ')).map(str::as_bytes).chain(ODD);
        // A word of letters in the place of a quantity is an option.
        let wrong: Vec<_> = wrong
            .filter(|word| {
                !call.ends_with(" # MS") || !word.first().is_some_and(u8::is_ascii_alphabetic)
            })
            .collect();
        for name in names.split(' ') {
            for word in &wrong {
                let line = format!("RL.{name} {call}");
                let words =
                    words(&line).into_iter().map(|own| if own == b"#" { *word } else { own });
                server.refuses_words(&words.collect::<Vec<_>>(), &format!("ERR {error}"));
            }
            if error.starts_with("period") {
                for period in ["1m", "1M"] {
                    let call = format!("RL.{name} {}", call.replace('#', period));
                    server.refuses(call, "ERR period has the ambiguous unit m: use 1min or 1mo");
                }
            }
        }
    }
    for clause in ["THROTTLE 4 1 1", "WINDOW 4 60", "ACQUIRE 4 60"] {
        server.refuses(format!("RL.ALL 1 k {clause} -1"), &format!("ERR {quantity}"));
    }
    for call in [
        "RL.THROTTLE k 0 1 1ms 0",
        "RL.THROTTLE k 9223372036854775806 9223372036854775807 1ms 9223372036854775807",
        "RL.THROTTLE k 0 1 36525d -9223372036854775808",
        "RL.WINDOW k 0 1ms 9223372036854775807",
        "RL.WINDOW k 9223372036854775807 100y -9223372036854775808",
        "RL.ACQUIRE k 9223372036854775807 0 9223372036854775807",
    ] {
        server.accepts(call);
    }
    for rate in [
        "1 1 3155760000",
        "9223372036854775806 1 1ms",
        "9223372036854775806 9223372036854775806 36525d",
    ] {
        server.refuses(
            format!("RL.THROTTLE t {rate}"),
            "ERR (max_burst + 1) * period / count must be ",
        );
    }
}

#[test]
fn too_few_and_too_many_arguments_are_errors() {
    let mut server = Refusing::new();
    let arity = "ERR wrong number of arguments for '";
    for call in [
        "RL.THROTTLE t 15 30", "RL.THROTTLE_RO t 15 30", "RL.WINDOW w 5", "RL.WINDOW_RO w 5",
        "RL.ACQUIRE w 9", "RL.ACQUIRE_RO w 9", "RL.APPLY w", "RL.RELEASE w", "RL.RENEW w",
        "RL.HELD", "RL.INFO",
    ] {
        let words = words(call);
        (1..=words.len()).for_each(|number| server.refuses_words(&words[..number], arity));
    }
    for call in ["RL.APPLY w a 1 1", "RL.HELD w a", "RL.HELD w MS", "RL.INFO w x", "RL.POLICIES x"]
    {
        server.refuses(call, arity);
    }
    for call in
        ["RL.WINDOW w 5 60 1", "RL.ACQUIRE w 5 60 MS", "RL.THROTTLE t 9 1 1 ATMOST", "RL.RENEW w a"]
    {
        server.refuses(format!("{call} 1"), "ERR syntax error: unknown option 1");
    }
}

// ---- Options ----

#[test]
fn an_option_is_taken_once_in_any_case_by_the_commands_that_know_it() {
    let mut server = Refusing::new();
    let mut all: Vec<_> = TAKERS.iter().flat_map(|(_, options)| options.split(' ')).collect();
    all.extend(["NOSUCH", "M", "MSS"]);
    for (call, known) in TAKERS {
        for option in &all {
            let spelled = spelled(option);
            if !known.split(' ').any(|one| one == *option) {
                // After its clauses these are RL.ALL's own.
                let in_all = call.starts_with("RL.ALL ");
                let error = match *option {
                    "MS" | "BLOCK" | "BY" | "WEIGHT" if in_all => continue,
                    "ATMOST" | "FORCE" | "AHEAD" if in_all => format!(
                        "ERR {option} must not be used in RL.ALL, which takes all or nothing, at once"
                    ),
                    _ => format!("ERR syntax error: unknown option {option}"),
                };
                server.refuses(format!("{call} {spelled}"), &error);
                continue;
            }
            let fixed = needed(option);
            if has_limit(call) {
                server.accepts(&format!("{call} {spelled} {fixed}"));
                server.accepts(&format!("{call} {fixed} {spelled}").to_lowercase());
            }
            if !fixed.is_empty() {
                let option_needed = if *option == "WEIGHT" { "BY" } else { &fixed[..5] };
                let error = format!("ERR {option} must be used with {option_needed}");
                server.refuses(format!("{call} {spelled}"), &error);
                server.refuses(format!("{call} {spelled} LEAVE 5"), &error);
            }
            let error = format!("ERR syntax error: {option} is given more than once");
            server.refuses(format!("{call} {spelled} {fixed} {spelled}"), &error);
            if spelled.contains(' ') {
                let error = format!("ERR {option} needs a value: {}", range(option));
                server.refuses(format!("{call} {fixed} {option}"), &error);
            }
        }
    }
}

#[test]
fn options_are_combined_unless_one_excludes_the_other() {
    let mut server = Refusing::new();
    for (call, known) in TAKERS {
        // BY and WEIGHT are part of BLOCK.
        let known = || known.split(' ').filter(|option| !needed(option).starts_with("BLOCK"));
        for (one, other) in known().flat_map(|one| known().map(move |other| (one, other))) {
            let pair = [one, other];
            let fixed = if pair.map(needed).contains(&"FIXED") { "FIXED" } else { "" };
            let fixed_twice = pair.contains(&"FIXED") || pair.contains(&"BUCKETS");
            if one == other || fixed == "FIXED" && fixed_twice {
                continue;
            }
            let call = format!("{call} {} {} {fixed}", spelled(one), spelled(other));
            let excluded = EXCLUDED.split(", ").filter_map(|pair| pair.split_once(' '));
            let mut excluded = excluded.filter(|(a, b)| pair == [*a, *b] || pair == [*b, *a]);
            match excluded.next() {
                Some((a, b)) => {
                    server.refuses(call, &format!("ERR {a} and {b} must not be used together"))
                }
                None => server.accepts(&call),
            }
        }
    }
    // As if LEAVE were not there.
    server.accepts("RL.WINDOW k 4 60 LEAVE 0 FORCE");
}

#[test]
fn some_options_need_a_quantity_that_takes() {
    let mut server = Refusing::new();
    for (call, known) in TAKERS.into_iter().filter(|(call, _)| has_limit(call)) {
        let is_signed = call.contains("RL.THROTTLE") || call.contains("RL.WINDOW");
        for option in known.split(' ').filter(|option| needed(option).is_empty()) {
            for quantity in if is_signed { -1..=1 } else { 0..=1 } {
                let least = match option {
                    "BAN" => 1,
                    "LEAVE" | "ATMOST" | "FORCE" | "AHEAD" => 0,
                    _ => -1,
                };
                let call = format!("{call} {quantity} {}", spelled(option));
                if quantity < least {
                    let error =
                        format!("ERR {option} must not be used with a quantity below {least}");
                    server.refuses(call, &error);
                } else {
                    server.accepts(&call);
                }
            }
        }
    }
    // With FORCE a ban closes the key even without a quantity.
    server.accepts("RL.THROTTLE k 4 1 1 0 FORCE BAN 5s");
    server.accepts("RL.WINDOW k 4 60 0 BAN 5s FORCE");
    let error = "ERR FORCE must not be used with a quantity below 0";
    server.refuses("RL.WINDOW k 4 60 -1 BAN 5s FORCE", error);
}

#[test]
fn options_of_a_window_are_refused_with_period_0() {
    let mut server = Refusing::new();
    for (call, known) in TAKERS.into_iter().filter(|(call, _)| call.contains("ACQUIRE")) {
        let call = call.replace("4 60", "4 0");
        for option in known.split(' ').filter(|option| needed(option).is_empty()) {
            let refused = match option {
                "BUCKETS" | "FIXED" => "BUCKETS and FIXED",
                "COUNTLAPSED" => option,
                _ => "",
            };
            let call = format!("{call} {}", spelled(option));
            if refused.is_empty() {
                server.accepts(&call);
            } else {
                let error =
                    format!("ERR {refused} must not be used with period 0, which has no window");
                server.refuses(call, &error);
            }
        }
    }
}

#[test]
fn the_value_of_an_option_has_a_range_and_no_other_spelling() {
    let mut server = Refusing::new();
    let long = "A".repeat(100_000);
    for (call, known) in TAKERS {
        for option in known.split(' ').filter(|option| spelled(option).contains(' ')) {
            let wrong = match option {
                "LEAVE" => format!("{NO_NUMBERS} -1 MS 1s"),
                "COUNT" => format!("{NO_NUMBERS} -1 0 MS 1s"),
                "BUCKETS" => format!("{NO_NUMBERS} -1 MS 1s 0 65537"),
                "FROM" => "24:00 9:00 noon FIXED MS firs 0 32 1969-12-31 2256-01-01".into(),
                "TZ" => "Mars/Olympus Europe Europe/ MS +8 +08 +0800 +08:0 +24:00 +08:60 08:00 ++8:00 +0a:00 \
                         ../../etc/passwd UTC+1 EST5EDT,M3.2.0,M11.1.0 Asia\\Shanghai"
                    .into(),
                "ID" | "BY" => "x".repeat(65),
                "WEIGHT" => format!("{NO_NUMBERS} -1 MS 1s 0 1001"),
                _ => format!("{NO_DURATIONS} 1mo 1y 366d 53w 31557600001 MS"),
            };
            let least = if ["LEASE", "AHEAD", "BAN"].contains(&option) { "0 0s" } else { "" };
            let odd: &[&[u8]] =
                if ["ID", "BY"].contains(&option) { &[b"", &[0; 65]] } else { &ODD };
            let wrong = wrong.split(' ').chain(least.split_whitespace()).chain([&*long]);
            let error = format!("ERR {}", range(option));
            for value in wrong.map(str::as_bytes).chain(odd.iter().copied()) {
                let mut words = words(call);
                words.extend(needed(option).split_whitespace().map(str::as_bytes));
                words.extend([option.as_bytes(), value]);
                server.refuses_words(&words, &error);
            }
            let id = "x".repeat(64);
            let right = match option {
                "LEAVE" => "0 9223372036854775807",
                "BUCKETS" => "1 65536",
                "COUNT" => "1 9223372036854775807",
                "FROM" => "first FIRST 2255-12-31@23:59:59",
                "TZ" => "UTC +08:00",
                "ID" | "BY" => &id,
                "WEIGHT" => "1 1000",
                "BLOCK" => "0 0s 0MIN 31557600000",
                _ => "1 1ms 52w 365d 31557600000",
            };
            let fixed = needed(option);
            for value in right.split(' ').filter(|_| call != "RL.RENEW w a") {
                server.accepts(&format!("{call} {fixed} {option} {value}"));
            }
            if range(option).contains("whole milliseconds") {
                for value in ["1m", "20M", "0m"] {
                    let error = format!("ERR {option} has the ambiguous unit m: use min");
                    server.refuses(format!("{call} {option} {value}"), &error);
                }
            }
        }
    }
    for (call, error) in [
        ("RL.WINDOW k 4 1y FIXED FROM 02-30", "ERR FROM must be a day that exists: "),
        (
            "RL.WINDOW k 4 1d FIXED FROM first TZ UTC",
            "ERR TZ and FROM first must not be used together",
        ),
        (
            "RL.WINDOW k 4 1d TZ UTC FROM FIRST FIXED",
            "ERR TZ and FROM first must not be used together",
        ),
        ("RL.WINDOW k 4 7s FIXED", "ERR FIXED must have a period of 1d, 1w, 1y, "),
        ("RL.ACQUIRE k 4 500ms FIXED", "ERR FIXED must have a period of 1d, 1w, 1y, "),
        ("RL.WINDOW k 4 60 FIXED UTC", "ERR syntax error: unknown option UTC"),
    ] {
        server.refuses(call, error);
    }
}

#[test]
fn the_options_of_a_limit_belong_to_its_policy() {
    let mut server = Refusing::new();
    let define = "CONFIG SET ratelimit.policies";
    server.world.check(&[(&format!("{define} rate~THROTTLE~4~1~1;window~WINDOW~4~60"), "OK")]);
    for (call, accepted) in TAKERS.into_iter().filter(|(call, _)| has_limit(call)) {
        let call = call.replace(" 4 1 1", " @rate").replace(" 4 60", " @window");
        for option in accepted.split(' ').filter(|option| needed(option).is_empty()) {
            let line = format!("{call} {}", spelled(option));
            match option {
                "BUCKETS" | "FIXED" | "BAN" => {
                    server.refuses(line, &format!("ERR {option} must not be used with a policy"));
                }
                _ => server.accepts(&line),
            }
        }
    }
    // With FORCE a ban is part of the call.
    server.accepts("RL.THROTTLE k @rate FORCE BAN 5s");
    server.accepts("RL.WINDOW k @window 0 BAN 5s FORCE");
    let error = "ERR BUCKETS must not be used with a policy";
    server.refuses("RL.WINDOW k @window 0 BAN 5s FORCE BUCKETS 9", error);
    for (_, accepted) in TAKERS {
        for option in accepted.split(' ') {
            let needed = needed(option);
            let policy = format!("a WINDOW 4 60 {needed} {}", spelled(option)).replace(' ', "~");
            let line = format!("{define} {policy}");
            match option {
                "BUCKETS" | "FIXED" | "FROM" | "TZ" | "BAN" | "SHADOW" => {
                    server.world.check(&[(&line, "OK")]);
                }
                _ => match server.world.call(&line) {
                    Outcome::Reply(Value::Error(error)) => {
                        let unknown = needed.split(' ').next().filter(|word| !word.is_empty());
                        let unknown = unknown.unwrap_or(option);
                        assert!(error.ends_with(&format!("unknown option {unknown}")), "{error}");
                    }
                    other => panic!("{line}: {other:?}"),
                },
            }
        }
    }
}

#[test]
fn a_duration_may_have_a_unit() {
    for (duration, ms) in
        [("5000", 5_000), ("250MS", 250), ("2Min", 120_000), ("52w", 31_449_600_000_u64)]
    {
        World::new().check(&[
            (
                &format!("RL.ACQUIRE k 1 0 1 ID x LEASE {duration} MS"),
                &format!("[0 1 0 -1 {ms} x]"),
            ),
            (&format!("RL.RENEW k x LEASE {duration}"), "1"),
            ("RL.HELD k", &format!("[[x 1 {ms}]]")),
        ]);
    }
}
