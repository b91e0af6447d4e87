use super::*;
use crate::environment::TestEnvironment;

#[test]
fn each_option_is_found_by_its_name_in_any_case_where_it_is_known() {
    for row in &TABLE {
        assert_eq!(row.token.to_bytes(), row.name.as_bytes());
        for name in [row.name.to_lowercase(), row.name.to_uppercase()] {
            let word = || Some(if row.option == OptionSet::TZ { &b"UTC"[..] } else { b"1" });
            assert_eq!(
                Options::new().add(&TestEnvironment::default(), row.option, name.as_bytes(), word),
                Ok(())
            );
            let others = OptionSet::all().difference(row.option);
            let unknown = Error::UnknownOption(name.as_bytes().into());
            assert_eq!(
                Options::new().add(&TestEnvironment::default(), others, name.as_bytes(), word),
                Err(unknown)
            );
        }
    }
    for name in ["", "M", "MSS"] {
        assert!(
            Options::new()
                .add(&TestEnvironment::default(), OptionSet::all(), name.as_bytes(), || None)
                .is_err(),
            "{name}"
        );
    }
}

#[test]
fn each_value_is_kept_and_read_back() {
    let rows = || TABLE.iter().filter(|row| row.value.is_some());
    // An offset in minutes is a zone too, and without its sign a time of day.
    let words: Vec<_> = (10..).take(rows().count()).map(|it| format!("+00:{it}")).collect();
    let (mut options, environment) = (Options::new(), TestEnvironment::default());
    let is_number = |row: &OptionRow| {
        matches!(row.value, Some(OptionValue::Integer { .. } | OptionValue::Duration { .. }))
    };
    for (row, word) in rows().zip(&words) {
        let word = match row.value {
            Some(OptionValue::Start) => &word[1..],
            _ if is_number(row) => &word[4..],
            _ => word,
        };
        options
            .add(&environment, OptionSet::all(), row.name.as_bytes(), || Some(word.as_bytes()))
            .unwrap();
    }
    for (row, word) in rows().zip(&words) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let zone = |zone| text(environment.zones.borrow().name(zone).as_bytes());
        let start = |start| match start {
            Start::First => panic!("it is an anchor"),
            Start::Anchor(anchor) => format!("+{anchor}"),
        };
        let read = [
            options.start(row.option).map(start),
            options.number(row.option).map(|number| format!("+00:{number}")),
            options.zone(row.option).map(zone),
            options.word(row.option).map(text),
        ];
        assert_eq!(read.iter().flatten().collect::<Vec<_>>(), [word], "{}", row.name);
    }
    assert_eq!(options.number(OptionSet::MS), None);
    assert_eq!(Options::new().number(OptionSet::LEAVE), None);
}

#[test]
fn leave_0_is_as_if_it_were_not_there_but_is_there_once() {
    let (mut options, environment) = (Options::new(), TestEnvironment::default());
    let zero = || Some(&b"0"[..]);
    assert_eq!(options.add(&environment, OptionSet::LEAVE, b"LEAVE", zero), Ok(()));
    assert!(!options.has(OptionSet::LEAVE));
    assert_eq!(options.number(OptionSet::LEAVE), None);
    assert_eq!(
        options.add(&environment, OptionSet::LEAVE, b"LEAVE", zero),
        Err(Error::Twice("LEAVE"))
    );
}

#[test]
fn of_two_options_that_exclude_each_other_one_says_so() {
    for row in &TABLE {
        assert!(!row.excludes.contains(row.option), "{}", row.name);
        for other in row.excludes.rows() {
            assert!(!other.excludes.contains(row.option), "{} and {}", row.name, other.name);
        }
    }
}

#[test]
fn an_option_that_others_need_names_the_group_of_them() {
    for row in &TABLE {
        for needed in row.needs.rows() {
            assert!(needed.group.is_some() && needed.needs.is_empty(), "{}", needed.name);
        }
    }
}

#[test]
fn what_a_value_may_be_fits_and_is_in_the_documentation() {
    let page = include_str!("../../../../docs/commands.md");
    for row in TABLE.iter().filter(|row| row.value.is_some()) {
        let text = row.error.to_string();
        assert!(page.contains(&format!("`{text}`")), "{text}");
        let missing = Error::NoValue(row.name, &row.error).to_string();
        assert!(missing.ends_with(&text[4..]), "{missing:?}");
    }
}

#[test]
fn lengths_of_time_are_milliseconds_or_carry_a_unit() {
    for (text, ms) in [
        ("0", Some(0)),
        ("0s", Some(0)),
        ("0MIN", Some(0)),
        ("1500", Some(1_500)),
        ("5s", Some(5_000)),
        ("2Min", Some(120_000)),
        ("0mo", None),
        ("1y", None),
        ("0m", None),
        ("0 s", None),
        ("0millisecondsandmore", None),
        ("00s", None),
        ("-1", None),
        ("", None),
        ("s", None),
    ] {
        assert_eq!(duration_ms(text.as_bytes()), ms, "{text:?}");
    }
}
