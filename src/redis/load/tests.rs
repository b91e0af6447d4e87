use super::*;

#[test]
fn options_of_valkey_are_promised_to_no_other_server() {
    let of_all = 0b1111;
    let (skip, migrate) = (SKIP_COMMAND_VALIDATION, HANDLE_ATOMIC_SLOT_MIGRATION);
    for (server, options, known) in [
        ("Redis", 0, 0),
        ("Valkey 8.0", of_all, 0),
        ("Valkey 8.1", of_all | skip, skip),
        ("Valkey 9.0", of_all | skip | migrate, skip | migrate),
    ] {
        assert_eq!(module_options(options), OPTIONS | known, "{server}");
    }
}
