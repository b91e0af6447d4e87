use super::*;

#[test]
fn the_arity_is_derived_from_the_arguments() {
    let arities: Vec<_> = COMMANDS.iter().map(|row| (row.name, row.arity())).collect();
    let expected = [
        (c"rl.throttle", -3),
        (c"rl.throttle_ro", -3),
        (c"rl.window", -3),
        (c"rl.window_ro", -3),
        (c"rl.acquire", -3),
        (c"rl.acquire_ro", -3),
        (c"rl.apply", -3),
        (c"rl.release", -3),
        (c"rl.renew", -3),
        (c"rl.held", 2),
        (c"rl.info", 2),
        (c"rl.all", -3),
        (c"rl.all_ro", -3),
        (c"rl.policies", 1),
        (c"rl.top", -1),
        (c"cl.throttle", -5),
    ];
    assert_eq!(arities, expected);
}

#[test]
fn every_command_says_what_it_does_costs_and_takes() {
    for row in &COMMANDS {
        assert!(row.summary.to_bytes().ends_with(b"."), "{:?} says nothing", row.name);
        // Only a bucket takes the same time however much its key holds.
        let is_constant = matches!(
            row.command,
            Command::Take(Family::Throttle) | Command::Look(Family::Throttle) | Command::ClThrottle
        );
        assert_eq!(row.complexity == c"O(1)", is_constant, "{:?}", row.name);
        // The other options are in the clauses.
        let has_clauses = matches!(row.command, Command::All | Command::AllRo);
        assert!(!has_clauses || row.options == OptionSet::MS, "{:?}", row.name);
    }
}
