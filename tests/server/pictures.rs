//! The pictures of docs/choosing.md and the tables beside them are what `make pictures` draws.

#[path = "../../benches/pictures/drawn/mod.rs"]
mod drawn;

use std::fs;
use std::path::Path;

use support::*;

#[test]
fn pictures_and_tables_are_what_runs_draw() {
    let files = drawn::files();
    assert_eq!(files.len(), 6);
    for (path, text) in files {
        let committed = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(&path));
        let committed = committed.unwrap_or_else(|error| panic!("{path}: {error}"));
        let lines = || committed.lines().zip(text.lines());
        let differs = lines().find(|(committed, drawn)| committed != drawn);
        assert!(committed == text, "{path} is not what `make pictures` writes: {differs:#?}");
    }
}

#[test]
fn every_line_that_a_reader_may_copy_is_answered() {
    let mut lines = 0;
    for page in ["docs/choosing.md", "docs/operations.md"] {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
        // The table of what is never exceeded has names in place of numbers, and so has the syntax.
        let copied = |row: &&str| {
            row.starts_with('|') && !row.contains("key b ") && !row.contains("key limit")
        };
        for code in text.lines().filter(copied).flat_map(|row| row.split('`').skip(1).step_by(2)) {
            let words: Vec<_> = code.split(' ').collect();
            let takes = ["RL.THROTTLE", "RL.WINDOW", "RL.ACQUIRE"].contains(&words[0]);
            if takes && words.len() > 1 {
                let reply = Server::start().conn().cmd(code);
                assert_eq!(limited(&reply), 0, "{code}");
                lines += 1;
            }
        }
    }
    assert!(lines > 30, "{lines}");
}
