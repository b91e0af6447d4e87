use super::*;
use commands::table::COMMANDS;

#[test]
fn options_that_exclude_each_other_are_one_argument_in_the_order_of_the_table() {
    let known = OptionSet::BUCKETS
        | OptionSet::FIXED
        | OptionSet::FROM
        | OptionSet::TZ
        | OptionSet::BLOCK
        | OptionSet::MS;
    let names = |arguments: &[Argument]| {
        let names = arguments.iter().map(|one| one.name.to_string_lossy().into_owned());
        names.collect::<Vec<_>>().join(" ")
    };
    let shown = options(known);
    assert_eq!(names(&shown), "kind block-ms ms");
    let [window, block, ms] = shown.as_slice() else { panic!("{shown:?}") };
    assert_eq!(names(&window.parts), "buckets calendar");
    assert_eq!(window.parts[1].parts.len(), 3);
    assert_eq!((block.token, ms.token), (Some(c"BLOCK"), Some(c"MS")));
}

#[test]
fn each_choice_of_options_has_a_name() {
    for command in &COMMANDS {
        for choice in options(command.options).iter().filter(|one| one.parts.len() > 1) {
            let is_name = |byte: &u8| byte.is_ascii_lowercase();
            let name = &choice.name;
            assert!(name.to_bytes().iter().all(is_name), "{:?}: {name:?}", command.name);
        }
    }
}
