use super::*;
use crate::environment::TestEnvironment;
use engine::anchor::Start;

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
fn leave_0_has_no_effect_and_may_be_given_once() {
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
fn the_error_for_a_wrong_value_is_documented_and_follows_a_missing_one() {
    let page = include_str!("../../../../docs/commands.md");
    for row in TABLE.iter().filter(|row| row.value.is_some()) {
        let text = row.error.to_string();
        assert!(page.contains(&format!("`{text}`")), "{text}");
        let missing = Error::NoValue(row.name, &row.error).to_string();
        assert!(missing.ends_with(&text[4..]), "{missing:?}");
    }
}
