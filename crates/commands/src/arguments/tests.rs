use crate::memory::tests::{World, NOW_US};
use crate::memory::{Outcome, Value};
use crate::options::TABLE;

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

/// An option as it should be.
struct Expected {
    name: &'static str,
    value: ExpectedValue,
    /// The options that it is used with here, because it needs one of them.
    needs: &'static str,
    min_quantity: i64,
    /// True if a policy may have it instead of the call.
    part_of_limit: bool,
    /// The name in the error for period 0, or empty.
    not_of_semaphore: &'static str,
}

/// What follows the name of an option.
#[derive(Clone, Copy)]
enum ExpectedValue {
    Nothing,
    /// An integer from the first to the second.
    Integer(u64, u64),
    /// Milliseconds, or a number with a unit, of at least this many milliseconds.
    Duration(u64),
    /// 1 to 64 bytes. The error begins with this.
    Name(&'static str),
    Text {
        error: &'static str,
        wrong: &'static str,
        right: &'static str,
    },
}

use ExpectedValue::{Duration, Integer, Name, Nothing, Text};

const MAX: u64 = i64::MAX as u64;

/// All options. What they exclude is in [`EXCLUDED`].
const OPTIONS: &[Expected] = &[
    Expected {
        part_of_limit: true,
        not_of_semaphore: "BUCKETS and FIXED",
        ..Expected::new("BUCKETS", Integer(1, 65_536))
    },
    Expected {
        part_of_limit: true,
        not_of_semaphore: "BUCKETS and FIXED",
        ..Expected::new("FIXED", Nothing)
    },
    Expected {
        needs: "FIXED",
        part_of_limit: true,
        ..Expected::new(
            "FROM",
            Text {
                error: "FROM must be first, HH:MM, ",
                wrong: "24:00 9:00 noon FIXED MS firs 0 32 1969-12-31 2256-01-01",
                right: "first FIRST 2255-12-31@23:59:59 2026-11-02",
            },
        )
    },
    Expected {
        needs: "FIXED",
        part_of_limit: true,
        ..Expected::new(
            "TZ",
            Text {
                error: "TZ must be an IANA time zone ",
                wrong: "Mars/Olympus Europe Europe/ MS +8 +08 +0800 +08:0 +24:00 +08:60 08:00 ++8:00 +0a:00 \
                        ../../etc/passwd UTC+1 EST5EDT,M3.2.0,M11.1.0 Asia\\Shanghai",
                right: "+08:00 UTC",
            },
        )
    },
    Expected { min_quantity: 0, ..Expected::new("LEAVE", Integer(0, MAX)) },
    Expected { min_quantity: 0, ..Expected::new("ATMOST", Nothing) },
    Expected { min_quantity: 0, ..Expected::new("FORCE", Nothing) },
    Expected::new("COUNTDENIED", Nothing),
    Expected::new("LEASE", Duration(1)),
    Expected { not_of_semaphore: "COUNTLAPSED", ..Expected::new("COUNTLAPSED", Nothing) },
    Expected::new("ID", Name("an id")),
    Expected::new("LIMITS", Nothing),
    Expected::new("BLOCK", Duration(0)),
    Expected { needs: "BLOCK 5s", ..Expected::new("BY", Name("BY")) },
    Expected { needs: "BLOCK 5s BY y", ..Expected::new("WEIGHT", Integer(1, 1_000)) },
    Expected { min_quantity: 0, ..Expected::new("AHEAD", Duration(1)) },
    Expected { min_quantity: 1, part_of_limit: true, ..Expected::new("BAN", Duration(1)) },
    Expected::new("CHECK", Nothing),
    Expected { part_of_limit: true, ..Expected::new("SHADOW", Nothing) },
    Expected::new("COUNT", Integer(1, MAX)),
    Expected::new("RESET", Nothing),
    Expected::new("MS", Nothing),
];

impl Expected {
    const fn new(name: &'static str, value: ExpectedValue) -> Expected {
        Expected {
            name,
            value,
            needs: "",
            min_quantity: i64::MIN,
            part_of_limit: false,
            not_of_semaphore: "",
        }
    }

    /// The name, and a value if there is one.
    fn spelled(&self) -> String {
        match self.right().pop() {
            None => self.name.into(),
            Some(value) => format!("{} {value}", self.name),
        }
    }

    /// What the error for a wrong value begins with.
    fn error(&self) -> String {
        let name = self.name;
        match self.value {
            Nothing => String::new(),
            Integer(min, max) => format!("{name} must be an integer from {min} to {max}"),
            Duration(min) => {
                let min = if min == 0 { "0" } else { "1ms" };
                format!(
                    "{name} must be whole milliseconds, or a number with a unit of ms, s, min, h, d or w, \
                     from {min} to a year (31557600000ms)"
                )
            }
            Name(what) => format!("{what} must have 1 to 64 bytes"),
            Text { error, .. } => error.into(),
        }
    }

    /// Values that are accepted, the usual one last.
    fn right(&self) -> Vec<String> {
        let right = match self.value {
            Nothing => String::new(),
            Integer(min, max) => format!("{min} {max} 1"),
            Duration(0) => "0 0s 0MIN 31557600000 5s".into(),
            Duration(_) => "1 1ms 52w 365d 31557600000 5s".into(),
            Name(_) => format!("{} x", "x".repeat(64)),
            Text { right, .. } => right.into(),
        };
        right.split_whitespace().map(str::to_owned).collect()
    }

    /// Values that are not accepted.
    fn wrong(&self) -> Vec<Vec<u8>> {
        let wrong = match self.value {
            Nothing => return vec![],
            Integer(min, max) => {
                let zero = if min == 0 { "" } else { "0" };
                format!("{NO_NUMBERS} -1 MS 1s {zero} {}", max + 1)
            }
            Duration(min) => {
                let zero = if min == 0 { "" } else { "0 0s" };
                format!("{NO_DURATIONS} 1mo 1y 366d 53w 31557600001 MS {zero}")
            }
            Name(_) => "x".repeat(65),
            Text { wrong, .. } => wrong.into(),
        };
        let odd: &[&[u8]] = if matches!(self.value, Name(_)) { &[b"", &[0; 65]] } else { &ODD };
        let long = "A".repeat(100_000);
        let wrong = wrong.split_whitespace().chain([&*long]).map(str::as_bytes);
        wrong.chain(odd.iter().copied()).map(<[u8]>::to_vec).collect()
    }
}

/// Returns the options with these names.
fn named(names: &str) -> impl Iterator<Item = &'static Expected> + '_ {
    names.split(' ').map(|name| OPTIONS.iter().find(|option| option.name == name).unwrap())
}

/// Returns whether this is a call with a limit.
fn has_limit(call: &str) -> bool {
    call.contains(" k ")
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
fn each_option_is_expected() {
    assert!(TABLE.iter().map(|row| row.name).eq(OPTIONS.iter().map(|option| option.name)));
}

#[test]
fn an_option_is_taken_once_in_any_case_by_the_commands_that_know_it() {
    let mut server = Refusing::new();
    for (call, known) in TAKERS {
        for word in ["NOSUCH", "M", "MSS"] {
            server.refuses(
                format!("{call} {word}"),
                &format!("ERR syntax error: unknown option {word}"),
            );
        }
        for option in OPTIONS {
            let Expected { name, needs, .. } = option;
            let spelled = option.spelled();
            if !known.split(' ').any(|one| one == *name) {
                // After its clauses these are RL.ALL's own.
                let in_all = call.starts_with("RL.ALL ");
                let error = match *name {
                    "MS" | "BLOCK" | "BY" | "WEIGHT" | "LIMITS" if in_all => continue,
                    "ATMOST" | "FORCE" | "AHEAD" if in_all => format!(
                        "ERR {name} must not be used in RL.ALL, which takes all or nothing, at once"
                    ),
                    _ => format!("ERR syntax error: unknown option {name}"),
                };
                server.refuses(format!("{call} {spelled}"), &error);
                continue;
            }
            if has_limit(call) {
                server.accepts(&format!("{call} {spelled} {needs}"));
                server.accepts(&format!("{call} {needs} {spelled}").to_lowercase());
            }
            if !needs.is_empty() {
                let needed = if *name == "WEIGHT" { "BY" } else { &needs[..5] };
                let error = format!("ERR {name} must be used with {needed}");
                server.refuses(format!("{call} {spelled}"), &error);
                server.refuses(format!("{call} {spelled} LEAVE 5"), &error);
            }
            let error = format!("ERR syntax error: {name} is given more than once");
            server.refuses(format!("{call} {spelled} {needs} {spelled}"), &error);
            if spelled.contains(' ') {
                let error = format!("ERR {name} needs a value: {}", option.error());
                server.refuses(format!("{call} {needs} {name}"), &error);
            }
        }
    }
}

#[test]
fn options_are_combined_unless_one_excludes_the_other() {
    let mut server = Refusing::new();
    for (call, known) in TAKERS {
        // BY and WEIGHT are part of BLOCK.
        let known = || named(known).filter(|option| !option.needs.starts_with("BLOCK"));
        for (one, other) in known().flat_map(|one| known().map(move |other| (one, other))) {
            let pair = [one.name, other.name];
            let fixed = if one.needs == "FIXED" { "FIXED" } else { other.needs };
            let fixed_twice = pair.contains(&"FIXED") || pair.contains(&"BUCKETS");
            if one.name == other.name || fixed == "FIXED" && fixed_twice {
                continue;
            }
            let call = format!("{call} {} {} {fixed}", one.spelled(), other.spelled());
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
        for option in named(known).filter(|option| option.needs.is_empty()) {
            for quantity in if is_signed { -1..=1 } else { 0..=1 } {
                let call = format!("{call} {quantity} {}", option.spelled());
                let Expected { name, min_quantity, .. } = option;
                if quantity < *min_quantity {
                    let error =
                        format!("ERR {name} must not be used with a quantity below {min_quantity}");
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
        for option in named(known).filter(|option| option.needs.is_empty()) {
            let call = format!("{call} {}", option.spelled());
            match option.not_of_semaphore {
                "" => server.accepts(&call),
                refused => server.refuses(
                    call,
                    &format!("ERR {refused} must not be used with period 0, which has no window"),
                ),
            }
        }
    }
}

#[test]
fn the_value_of_an_option_has_a_range_and_no_other_spelling() {
    let mut server = Refusing::new();
    for (call, known) in TAKERS {
        for option in named(known).filter(|option| !matches!(option.value, Nothing)) {
            let Expected { name, needs, .. } = option;
            let error = format!("ERR {}", option.error());
            for value in option.wrong() {
                let mut words = words(call);
                words.extend(needs.split_whitespace().map(str::as_bytes));
                words.extend([name.as_bytes(), &value]);
                server.refuses_words(&words, &error);
            }
            for value in option.right().iter().filter(|_| call != "RL.RENEW w a") {
                server.accepts(&format!("{call} {needs} {name} {value}"));
            }
            if matches!(option.value, Duration(_)) {
                for value in ["1m", "20M", "0m"] {
                    let error = format!("ERR {name} has the ambiguous unit m: use min");
                    server.refuses(format!("{call} {name} {value}"), &error);
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
        for option in named(accepted).filter(|option| option.needs.is_empty()) {
            let line = format!("{call} {}", option.spelled());
            match option.part_of_limit && option.name != "SHADOW" {
                true => {
                    let error = format!("ERR {} must not be used with a policy", option.name);
                    server.refuses(line, &error);
                }
                false => server.accepts(&line),
            }
        }
    }
    // With FORCE a ban is part of the call.
    server.accepts("RL.THROTTLE k @rate FORCE BAN 5s");
    server.accepts("RL.WINDOW k @window 0 BAN 5s FORCE");
    let error = "ERR BUCKETS must not be used with a policy";
    server.refuses("RL.WINDOW k @window 0 BAN 5s FORCE BUCKETS 9", error);
    for option in OPTIONS {
        let Expected { name, needs, .. } = option;
        let policy = format!("a WINDOW 4 60 {needs} {}", option.spelled()).replace(' ', "~");
        let line = format!("{define} {policy}");
        if option.part_of_limit {
            server.world.check(&[(&line, "OK")]);
            continue;
        }
        match server.world.call(&line) {
            Outcome::Reply(Value::Error(error)) => {
                let unknown = needs.split(' ').next().filter(|word| !word.is_empty());
                let unknown = unknown.unwrap_or(name);
                assert!(error.ends_with(&format!("unknown option {unknown}")), "{error}");
            }
            other => panic!("{line}: {other:?}"),
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
