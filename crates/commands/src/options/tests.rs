use super::*;

#[test]
fn one_of_two_options_that_exclude_each_other_says_so() {
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
            assert!(needed.group.is_some(), "{}", needed.name);
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
