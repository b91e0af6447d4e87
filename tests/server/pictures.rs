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

/// The names and texts of the committed files in a folder of docs.
fn committed(folder: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(folder);
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap();
            (name.to_owned(), fs::read_to_string(&path).unwrap())
        })
        .collect()
}

/// The value of an attribute of a tag.
fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = tag.split_once(&format!(" {name}=\""))?;
    Some(rest.split_once('"')?.0)
}

#[test]
fn no_text_of_a_picture_is_cut_off() {
    for (name, svg) in committed("pictures") {
        let right: f64 = attribute(&svg, "width").unwrap().parse().unwrap();
        for text in svg.split("<text").skip(1).filter_map(|rest| rest.split_once("</text>")) {
            let (tag, words) = text.0.split_once('>').unwrap();
            let number =
                |name: &str| attribute(tag, name).map(|value| value.parse::<f64>().unwrap());
            // The average letter is narrower than this in most fonts.
            let width = words.chars().count() as f64 * number("font-size").unwrap_or(13.0) * 0.62;
            let x = number("x").unwrap();
            let left = match attribute(tag, "text-anchor") {
                Some("middle") => x - width / 2.0,
                Some("end") => x - width,
                _ => x,
            };
            assert!(
                left >= 0.0 && left + width <= right,
                "{name}: {words}: {left} to {}",
                left + width
            );
        }
    }
}

#[test]
fn a_logarithmic_axis_says_so() {
    for (name, svg) in committed("charts") {
        let said = svg.matches("(logarithmic scale)\n").count();
        let expected = match name.as_str() {
            "window" | "event-memory" => 2,
            "latency" | "wake" => 1,
            _ => 0,
        };
        assert_eq!(said, expected, "{name}");
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
