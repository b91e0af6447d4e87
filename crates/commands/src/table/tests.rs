use super::*;

#[test]
fn every_command_says_what_it_does_costs_and_takes() {
    for row in &COMMANDS {
        assert!(row.summary.to_bytes().ends_with(b"."), "{:?} says nothing", row.name);
        // Only a bucket takes the same time however much its key holds.
        let is_constant = matches!(
            row.command,
            Command::Take(LimitKind::Rate) | Command::Look(LimitKind::Rate) | Command::ClThrottle
        );
        assert_eq!(row.complexity == c"O(1)", is_constant, "{:?}", row.name);
    }
}
