use super::*;
use crate::definitions;
use crate::environment::TestEnvironment;
use crate::options::{OptionRow, OptionValue, TABLE};
use engine::reservation::{MAX_ID, YEAR_MS};

/// Who takes options.
#[derive(Clone, Copy, Debug)]
enum Taker {
    Command(Family, OptionSet),
    Clause(Family),
}

const TAKERS: [Taker; 9] = [
    Taker::Command(Family::Throttle, OptionSet::THROTTLE),
    Taker::Command(Family::Throttle, OptionSet::THROTTLE_RO),
    Taker::Command(Family::Window, OptionSet::WINDOW),
    Taker::Command(Family::Window, OptionSet::WINDOW_RO),
    Taker::Command(Family::Acquire, OptionSet::ACQUIRE),
    Taker::Command(Family::Acquire, OptionSet::WINDOW_RO),
    Taker::Clause(Family::Throttle),
    Taker::Clause(Family::Window),
    Taker::Clause(Family::Acquire),
];

impl Taker {
    fn family(self) -> Family {
        match self {
            Taker::Command(family, _) | Taker::Clause(family) => family,
        }
    }

    fn known(self) -> OptionSet {
        match self {
            Taker::Command(_, known) => known,
            Taker::Clause(family) => family.clause_options(),
        }
    }

    fn takes_negative(self) -> bool {
        matches!(self, Taker::Command(Family::Throttle | Family::Window, _))
    }

    fn limit(self) -> &'static str {
        match self.family() {
            Family::Throttle => "5 5 60",
            Family::Window | Family::Acquire => "5 60",
        }
    }

    /// What is said of words, separated by single spaces.
    fn read(self, words: &str) -> Result<(), Error> {
        self.read_in(&TestEnvironment::default(), words)
    }

    fn read_in(self, environment: &TestEnvironment, words: &str) -> Result<(), Error> {
        let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        match self {
            Taker::Command(family, known) => Arguments::from(&words[..], 0)
                .request(environment, family, known, &mut Options::new())
                .map(|_| ()),
            Taker::Clause(family) => {
                Arguments::clauses_from(&words[..], 0).clause(environment, family, 0).map(|_| ())
            }
        }
    }

    /// What is said of these options after a limit.
    fn options(self, options: &str) -> Result<(), Error> {
        self.read(&format!("{} {options}", self.limit()))
    }
}

/// The option with a value that it may have.
fn spelled(row: &OptionRow) -> String {
    match row.value {
        None => row.name.into(),
        Some(OptionValue::Integer { min, .. }) => format!("{} {}", row.name, min + 1),
        Some(OptionValue::Duration { min_ms, .. }) => {
            format!("{} {}", row.name, min_ms + 1)
        }
        Some(OptionValue::Start) => format!("{} 2026-11-02", row.name),
        Some(OptionValue::Zone | OptionValue::Id) => format!("{} UTC", row.name),
    }
}

/// The same with what it needs.
fn complete(row: &OptionRow) -> String {
    let needed = row.needs.rows().map(spelled);
    needed.chain([spelled(row)]).collect::<Vec<_>>().join(" ")
}

#[test]
fn an_option_is_taken_once_with_a_value_and_by_no_other_command() {
    for taker in TAKERS {
        for row in taker.known().rows() {
            let (name, once) = (row.name, spelled(row));
            assert_eq!(taker.options(&complete(row)), Ok(()), "{taker:?} {name}");
            let twice = taker.options(&format!("{once} {once}"));
            assert_eq!(twice, Err(Error::Twice(name)), "{taker:?} {name}");
            let wanted = match row.value {
                Some(_) => Err(Error::NoValue(name, &row.error)),
                None => taker.options(&complete(row)),
            };
            assert_eq!(taker.options(name), wanted, "{taker:?} {name}");
        }
        // MS as the last word is the end of a clause.
        let others = OptionSet::all().difference(taker.known()).difference(OptionSet::MS);
        for row in others.rows() {
            let error = match taker {
                Taker::Clause(_) if OptionSet::NOT_IN_CLAUSE.contains(row.option) => {
                    Error::NotInAll(row.name)
                }
                _ => Error::UnknownOption(row.name.as_bytes().into()),
            };
            assert_eq!(taker.options(&spelled(row)), Err(error), "{taker:?} {}", row.name);
        }
    }
}

#[test]
fn a_value_out_of_its_range_is_an_error_that_says_the_range() {
    let no_numbers = || ["", "x", "+1", "01", "1.5", "-1", "1m", "1mo"].map(String::from);
    let plus = |value: u64, more: i128| (i128::from(value) + more).to_string();
    for row in &TABLE {
        let (good, bad): (Vec<String>, Vec<String>) = match row.value {
            Some(OptionValue::Integer { min, max, .. }) => (
                vec![plus(min, 0), plus(max, 0)],
                [plus(min, -1), plus(max, 1), plus(u64::MAX, 2), "1s".into()]
                    .into_iter()
                    .chain(no_numbers())
                    .collect(),
            ),
            Some(OptionValue::Duration { min_ms, .. }) => (
                vec![plus(min_ms, 0), plus(YEAR_MS, 0), "52w".into(), "5Min".into()],
                [plus(min_ms, -1), plus(YEAR_MS, 1), "53w".into(), "1y".into()]
                    .into_iter()
                    .chain(no_numbers())
                    .collect(),
            ),
            Some(OptionValue::Id) => {
                let id = |bytes| "x".repeat(bytes);
                (vec![id(1), id(MAX_ID)], vec![String::new(), id(MAX_ID + 1)])
            }
            Some(OptionValue::Start) => (
                ["first", "FIRST", "09:00", "sun@09:00:30", "31", "02-29", "2255-12-31@23:59:59"]
                    .map(String::from)
                    .into(),
                ["", "0", "32", "9:00", "firs", "sun@", "1969-12-31", "2256-01-01"]
                    .map(String::from)
                    .into(),
            ),
            Some(OptionValue::Zone) => {
                (vec!["UTC".into(), "+08:00".into()], ["", "1", "Mars"].map(String::from).into())
            }
            None => continue,
        };
        let read = |value: &String| {
            Options::new().add(&TestEnvironment::default(), row.option, row.name.as_bytes(), || {
                Some(value.as_bytes())
            })
        };
        for value in &good {
            assert_eq!(read(value), Ok(()), "{} {value:?}", row.name);
        }
        for value in &bad {
            let error = match row.value {
                Some(OptionValue::Duration { .. }) if value == "1m" => {
                    Error::AmbiguousDuration(row.name)
                }
                _ => row.error,
            };
            assert_eq!(read(value), Err(error), "{} {value:?}", row.name);
        }
    }
}

#[test]
fn options_stand_together_unless_one_excludes_the_other() {
    for taker in TAKERS {
        let known = taker.known();
        for (one, other) in known.rows().flat_map(|one| known.rows().map(move |it| (one, it))) {
            // What one of them needs may exclude the other.
            let mut needed = one.needs.rows().chain(other.needs.rows());
            if one.option == other.option
                || needed.any(|row| row.clashes_with(one) || row.clashes_with(other))
            {
                continue;
            }
            let mut words = vec![spelled(one), spelled(other)];
            let missing = one.needs.union(other.needs).difference(one.option | other.option);
            words.extend(missing.rows().map(spelled));
            let wanted = match (one.excludes.contains(other.option), one.clashes_with(other)) {
                (true, _) => Err(Error::NotTogether(other.name, one.name)),
                (false, true) => Err(Error::NotTogether(one.name, other.name)),
                (false, false) => Ok(()),
            };
            let words = words.join(" ");
            assert_eq!(taker.options(&words), wanted, "{taker:?} {words}");
        }
    }
}

#[test]
fn an_option_needs_what_its_row_says() {
    for taker in TAKERS {
        for row in taker.known().rows() {
            for needed in row.needs.rows() {
                let error = Err(Error::Needs(row.name, needed.name));
                assert_eq!(taker.options(&spelled(row)), error, "{taker:?}");
            }
        }
    }
}

#[test]
fn an_option_stands_beside_the_quantities_that_its_row_allows() {
    for taker in TAKERS {
        let min = if taker.takes_negative() { -1 } else { 0 };
        for (row, quantity) in
            taker.known().rows().flat_map(|row| (min..=1).map(move |it| (row, it)))
        {
            let wanted = match quantity < row.min_quantity {
                true => Err(Error::QuantityBelow(row.name, row.min_quantity)),
                false => Ok(()),
            };
            let options = format!("{quantity} {}", complete(row));
            assert_eq!(taker.options(&options), wanted, "{taker:?} {options}");
        }
    }
}

#[test]
fn an_option_that_says_the_limit_stands_in_a_policy_and_not_beside_it() {
    let environment = TestEnvironment::default();
    let table = b"rate THROTTLE 5 5 60; window WINDOW 5 60";
    let definitions = definitions::parse(table, &environment).unwrap();
    environment.policies.borrow_mut().replace(table, definitions);
    for taker in TAKERS {
        let policy = if taker.family() == Family::Throttle { "@rate" } else { "@window" };
        for row in taker.known().rows().filter(|row| row.needs.is_empty()) {
            let wanted =
                if row.part_of_limit { Err(Error::BesidePolicy(row.name)) } else { Ok(()) };
            let words = format!("{policy} {}", spelled(row));
            assert_eq!(taker.read_in(&environment, &words), wanted, "{taker:?} {words}");
        }
    }
    for row in &TABLE {
        let in_policy = OptionSet::WINDOW.in_policy().contains(row.option);
        let definition = format!("a WINDOW 5 60 {}", complete(row));
        let read = definitions::parse(definition.as_bytes(), &environment).map(|_| ());
        assert_eq!(read.is_ok(), in_policy, "{definition}: {read:?}");
    }
}

#[test]
fn an_option_that_needs_a_window_does_not_stand_beside_period_0() {
    for taker in TAKERS.into_iter().filter(|taker| taker.family() == Family::Acquire) {
        for row in taker.known().rows().filter(|row| row.needs.is_empty()) {
            let wanted = row.semaphore_error.map_or(Ok(()), Err);
            let words = format!("5 0 {}", spelled(row));
            assert_eq!(taker.read(&words), wanted, "{taker:?} {words}");
        }
    }
}
