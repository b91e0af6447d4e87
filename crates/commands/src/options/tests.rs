use super::*;
use crate::table::COMMANDS;

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

/// The names of the options in the syntax that docs/commands.md shows for a command or a clause, in their order.
fn shown_options(name: &str) -> Vec<&'static str> {
    let page = include_str!("../../../../docs/commands.md");
    let start = format!("{name} ");
    let mut blocks = page.split("```text\n").skip(1).filter_map(|block| block.split("```").next());
    let syntax = blocks.find_map(|block| {
        let mut lines = block.lines().skip_while(|line| !line.starts_with(&start));
        let first = lines.next()?.strip_prefix(&start)?;
        Some([first].into_iter().chain(lines.take_while(|line| line.starts_with(' '))))
    });
    let words =
        syntax.into_iter().flatten().flat_map(|line| line.split(|c: char| !c.is_ascii_uppercase()));
    words.filter_map(|word| TABLE.iter().find(|row| row.name == word)).map(|row| row.name).collect()
}

#[test]
fn the_page_shows_the_options_of_each_command_and_clause() {
    let clauses = [
        ("THROTTLE".to_owned(), OptionSet::THROTTLE.in_clause()),
        ("WINDOW".to_owned(), OptionSet::WINDOW.in_clause()),
        ("ACQUIRE".to_owned(), OptionSet::ACQUIRE.in_clause()),
    ];
    let commands =
        COMMANDS.iter().map(|row| (row.name.to_string_lossy().to_uppercase(), row.options));
    for (name, accepted) in commands.chain(clauses) {
        let names: Vec<_> = accepted.rows().map(|row| row.name).collect();
        assert_eq!(shown_options(&name), names, "{name}");
    }
}
