//! Random calls of every command, without BLOCK, to compare implementations and servers.

use super::Random;
use commands::options::{OptionSet, OptionValue, TABLE};
use commands::table::{CommandRow, COMMANDS};

/// Periods, some of them wrong.
const PERIODS: [&str; 16] = [
    "1", "1s", "2s", "3s", "500ms", "1500ms", "10", "1min", "1h", "1d", "1w", "1mo", "1y", "7",
    "86400", "1m",
];

/// The options of a window itself, of RL.ALL itself, and of calls that wait.
const APART: OptionSet = OptionSet::WINDOW_RO
    .difference(OptionSet::THROTTLE_RO)
    .union(OptionSet::ALL.difference(OptionSet::MS));

/// Calls with random options, on few keys, so that they meet each other's state. Some are wrong.
pub struct RandomCalls {
    random: Random,
    words: Vec<String>,
    /// One limit in this many has a name.
    one_named_in: i64,
}

impl RandomCalls {
    /// The policies that the calls name, for `CONFIG SET ratelimit.policies`.
    pub const POLICIES: &str = "rate THROTTLE 3 5 1s; shadow THROTTLE 1 1 2s SHADOW; banned THROTTLE 1 1 1s BAN 1500; \
    window WINDOW 4 3s; day WINDOW 9 1d FIXED TZ Asia/Shanghai; quiet WINDOW 2 5s SHADOW; coarse WINDOW 40 2s BUCKETS 4 BAN 700ms; \
    pool WINDOW 3 0; first WINDOW 4 5s FIXED FROM first";

    /// The calls of a seed.
    pub fn new(seed: u64) -> RandomCalls {
        RandomCalls { random: Random::new(seed), words: Vec::new(), one_named_in: 8 }
    }

    /// All keys that calls may name.
    pub fn keys() -> impl Iterator<Item = String> {
        let plain = || "twas".chars().flat_map(|kind| (0..3).map(move |at| format!("{kind}{at}")));
        let more = plain().flat_map(|key| (1..4).map(move |at| format!("{key}-{at}")));
        plain().chain(more).chain((0..3).map(|at| format!("h{at}")))
    }

    fn say(&mut self, word: impl ToString) {
        self.words.push(word.to_string());
    }

    /// The name of one of these commands. Returns its options.
    fn command(&mut self, names: &[&'static str]) -> OptionSet {
        let name = self.random.pick(names);
        self.say(name);
        let is_it = |row: &&CommandRow| row.name.to_bytes().eq_ignore_ascii_case(name.as_bytes());
        COMMANDS.iter().find(is_it).unwrap().options
    }

    /// A change of a hash of limits.
    fn hash(&mut self) {
        let key = self.key('h');
        let field = self.random.pick(&["rate", "window", "pool", "quiet", "day", "first", "none"]);
        if self.one_in(5) {
            return self.words.extend(["HDEL", &key, field].map(String::from));
        }
        // A definition in the table of policies, without its name.
        let policies: Vec<_> = Self::POLICIES.split(';').collect();
        let (_, policy) = self.random.pick(&policies).trim().split_once(' ').unwrap();
        let wrong =
            self.random.pick(&["", "WINDOW", "WINDOW x 1s", "THROTTLE 1 1", "WINDOW 5 1s MS", "7"]);
        let definition = if self.one_in(6) { wrong } else { policy };
        self.words.extend(["HSET", &key, field, definition].map(String::from));
    }

    /// A number from 0 to `end`, without `end`.
    pub fn below(&mut self, end: i64) -> i64 {
        self.random.below(end)
    }

    fn one_in(&mut self, n: i64) -> bool {
        self.random.one_in(n)
    }

    /// A key of this kind; seldom one of another.
    fn key(&mut self, kind: char) -> String {
        let kind =
            if self.one_in(60) { self.random.pick(&['t', 'w', 'a', 's', 'h']) } else { kind };
        format!("{kind}{}", self.below(3))
    }

    fn number(&mut self, most: i64) -> String {
        match self.below(40) {
            0 => self.random.pick(&["-1", "x", "01", "", "9223372036854775807", "1.5"]).into(),
            1 => self.below(100_000).to_string(),
            _ => self.below(most).to_string(),
        }
    }

    fn period(&mut self, usual: &str) -> String {
        if self.one_in(6) {
            self.random.pick(&PERIODS).into()
        } else {
            usual.into()
        }
    }

    fn duration(&mut self) -> String {
        match self.below(20) {
            0 => self.random.pick(&["0", "-5", "1y", "x", "1m", "0s", "53w"]).into(),
            1..=4 => format!("{}s", self.below(4)),
            5 => "2min".into(),
            _ => self.below(3_000).to_string(),
        }
    }

    fn id(&mut self) -> String {
        if self.one_in(80) {
            String::new()
        } else {
            format!("id{}", self.below(12))
        }
    }

    /// The limit of a command, in numbers or as a policy.
    fn limit(&mut self, kind: char) {
        if self.one_in(self.one_named_in) {
            let names = match (self.below(10), kind) {
                (0, _) => ["nobody", "rate", "pool", "window"],
                (_, 't') => ["rate", "shadow", "banned", "rate"],
                (_, 's') => ["pool", "pool", "window", "quiet"],
                _ => match self.below(2) {
                    0 => ["window", "day", "quiet", "coarse"],
                    _ => ["first", "first", "window", "coarse"],
                },
            };
            let name = self.random.pick(&names);
            return self.say(format!("@{name}"));
        }
        match kind {
            't' => {
                let (burst, count) = (self.number(7), self.number(12));
                let period = self.period("2s");
                self.words.extend([burst, count, period]);
            }
            's' => {
                let limit = self.number(7);
                self.words.extend([limit, "0".into()]);
            }
            _ => {
                let limit = self.number(12);
                let usual = self.random.pick(&["2s", "5s", "1min"]);
                let period = self.period(usual);
                self.words.extend([limit, period]);
            }
        }
    }

    fn quantity(&mut self, may_be_negative: bool) {
        match self.below(12) {
            0..=5 => {}
            6 => self.say(0),
            7 if may_be_negative || self.one_in(10) => {
                let back = self.below(4);
                self.say(-back);
            }
            8 => {
                let wrong = self.number(30);
                self.say(wrong);
            }
            _ => {
                let some = self.below(5);
                self.say(some);
            }
        }
    }

    /// Options, each with a value if it has one.
    fn say_options(&mut self, options: OptionSet) {
        for row in options.rows() {
            match self.one_in(30) {
                true => self.say(row.name.to_lowercase()),
                false => self.say(row.name),
            }
            let value = match row.value {
                None => continue,
                Some(OptionValue::Integer { .. }) => self.number(9),
                Some(OptionValue::Duration { .. }) => self.duration(),
                Some(OptionValue::Id | OptionValue::Caller) => self.id(),
                Some(OptionValue::Start) => {
                    let starts = [
                        "first", "first", "09:00", "mon", "15", "02-29", "2023-11-02",
                        "2023-11-14@22:13:19", "31", "32",
                    ];
                    self.random.pick(&starts).into()
                }
                Some(OptionValue::Zone) => {
                    let zones = ["UTC", "Asia/Shanghai", "+05:45", "America/New_York", "Mars"];
                    self.random.pick(&zones).into()
                }
            };
            self.say(value);
        }
    }

    /// Each of the options of a command one time in `often`; seldom one of another command. ID is always said, because the ids
    /// that a server makes differ.
    fn options(&mut self, accepted: OptionSet, often: i64) {
        for row in accepted.difference(APART).rows() {
            if row.option == OptionSet::ID || self.one_in(often) {
                self.say_options(row.option);
            }
        }
        if self.one_in(120) {
            let others: Vec<_> = TABLE.iter().filter(|row| !APART.contains(row.option)).collect();
            let other = self.random.pick(&others);
            self.say_options(other.option);
        }
    }

    /// The options of a call that closes its key.
    fn close(&mut self) {
        if self.one_in(20) {
            self.say_options(OptionSet::FORCE | OptionSet::BAN);
        }
    }

    /// The options that say how a window counts.
    fn shape(&mut self) {
        match self.below(10) {
            0 => self.say_options(OptionSet::BUCKETS),
            1 => self.say_options(OptionSet::FIXED),
            2 => self.say_options(OptionSet::FIXED | OptionSet::FROM),
            3 => self.say_options(OptionSet::FIXED | OptionSet::TZ),
            _ => {}
        }
    }

    fn clause(&mut self) {
        let kind = self.random.pick(&['t', 'w', 'a', 's']);
        self.say(match kind {
            't' => "THROTTLE",
            'w' => "WINDOW",
            _ => "ACQUIRE",
        });
        self.limit(kind);
        self.quantity(false);
        if kind == 'w' || kind == 'a' {
            self.shape();
        }
        let accepted = match kind {
            't' => OptionSet::THROTTLE,
            'w' => OptionSet::WINDOW,
            _ => OptionSet::ACQUIRE,
        };
        self.options(accepted.in_clause(), 8);
    }

    /// A call that takes from a key of this kind, or reserves in a key of any.
    fn take(&mut self, names: [&'static str; 4], kind: Option<char>) {
        let accepted = self.command(&names);
        let kind_or_any = kind.unwrap_or_else(|| self.random.pick(&['a', 'a', 'w', 's']));
        let key = self.key(kind_or_any);
        self.say(key);
        self.limit(kind_or_any);
        self.quantity(kind.is_some());
        if ['a', 'w'].contains(&kind_or_any) {
            self.shape();
        }
        self.options(accepted, if kind.is_some() { 7 } else { 4 });
        if kind.is_some() {
            self.close();
        }
    }

    /// The words of the next call.
    pub fn draw(&mut self) -> Vec<String> {
        self.words = Vec::new();
        match self.below(100) {
            0..=19 => {
                self.take(
                    ["RL.THROTTLE", "RL.THROTTLE", "rl.throttle", "RL.THROTTLE_RO"],
                    Some('t'),
                );
            }
            20..=44 => {
                self.take(["RL.WINDOW", "RL.WINDOW", "RL.WINDOW", "RL.WINDOW_RO"], Some('w'))
            }
            45..=64 => self.take(["RL.ACQUIRE", "RL.ACQUIRE", "RL.ACQUIRE", "RL.ACQUIRE_RO"], None),
            65..=69 => {
                let (key, id) = (self.settled_key(), self.id());
                self.words.extend(["RL.APPLY".into(), key, id]);
                if self.one_in(2) {
                    let quantity = self.number(5);
                    self.say(quantity);
                }
            }
            70..=74 => {
                let key = self.settled_key();
                self.words.extend(["RL.RELEASE".into(), key]);
                for _ in 0..=self.below(4) {
                    let id = self.id();
                    self.say(id);
                }
            }
            75..=77 => {
                let (key, id) = (self.settled_key(), self.id());
                self.words.extend(["RL.RENEW".into(), key, id]);
                self.options(OptionSet::LEASE, 2);
            }
            78..=80 => {
                let key = self.settled_key();
                self.words.extend(["RL.HELD".into(), key]);
            }
            81..=85 => {
                let kind = self.random.pick(&['t', 'w', 'a', 's']);
                let key = self.key(kind);
                self.words.extend(["RL.INFO".into(), key]);
            }
            86..=93 => self.all(),
            94 => {
                let accepted = self.command(&["RL.TOP"]);
                self.options(accepted, 5);
            }
            95 => self.say("RL.POLICIES"),
            96 => {
                let (one, other) = (self.key('w'), self.key('t'));
                self.words.extend(["DEL".into(), one, other]);
                if self.one_in(3) {
                    let hash = self.key('h');
                    self.say(hash);
                }
            }
            97 => self.hash(),
            98 if self.one_in(2) => {
                let key = self.key('t');
                self.words.extend(["RL.THROTTLE", &key, "0", "1", "9999999h"].map(String::from));
            }
            _ => {
                // Words that are cut off.
                let words = self.draw();
                let kept = 1 + self.below(words.len() as i64) as usize;
                self.words = words[..kept].to_vec();
                // Replies to other commands differ, and so do ids that the server makes.
                if self.words[0] == "DEL" || self.makes_id() {
                    self.words = vec!["RL.HELD".into()];
                }
            }
        }
        std::mem::take(&mut self.words)
    }

    /// Is true if the call may reserve without ID, so that the server makes an id.
    fn makes_id(&self) -> bool {
        let has = |word: &str| self.words.iter().any(|own| own.eq_ignore_ascii_case(word));
        let named = self.words.iter().filter(|own| *own == "ID").count();
        let acquires = self.words.iter().filter(|own| own.contains("ACQUIRE")).count();
        has("RL.ACQUIRE") || acquires > named
    }

    fn settled_key(&mut self) -> String {
        let kind = self.random.pick(&['a', 'a', 'w', 's']);
        self.key(kind)
    }

    fn all(&mut self) {
        self.command(&["RL.ALL", "RL.ALL", "RL.ALL_RO"]);
        let number = 1 + self.below(4);
        let has_limits = self.one_in(3);
        self.say(number + i64::from(has_limits));
        self.one_named_in = if has_limits { 2 } else { 8 };
        let (mut keys, mut clauses) = (Vec::new(), Vec::new());
        for _ in 0..number {
            let before = self.words.len();
            self.clause();
            let clause = self.words.split_off(before);
            let kind = match (clause[0].as_str(), clause.get(2).map(String::as_str)) {
                ("THROTTLE", _) => 't',
                ("WINDOW", _) => 'w',
                (_, Some("0")) => 's',
                _ => 'a',
            };
            keys.push(self.key(kind));
            clauses.push(clause);
        }
        // A key twice is an error; mostly there is none.
        if !self.one_in(20) {
            for at in 1..keys.len() {
                if keys[..at].contains(&keys[at]) {
                    keys[at] = format!("{}-{at}", keys[at]);
                }
            }
        }
        self.one_named_in = 8;
        if has_limits {
            keys.push(self.key('h'));
        }
        self.words.extend(keys);
        for (at, clause) in clauses.into_iter().enumerate() {
            if at > 0 && self.one_in(4) {
                self.say("ELSE");
            }
            self.words.extend(clause);
        }
        let mut options = vec![OptionSet::LIMITS; usize::from(has_limits)];
        if self.one_in(3) {
            let at = self.below(options.len() as i64 + 1) as usize;
            options.insert(at, OptionSet::MS);
        }
        if self.one_in(40) {
            options.push(OptionSet::LIMITS);
        }
        options.into_iter().for_each(|option| self.say_options(option));
    }
}
