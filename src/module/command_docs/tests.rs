use super::*;
use commands::table::COMMANDS;

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
