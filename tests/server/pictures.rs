//! The pictures in README.md and docs/choosing.md and the tables in docs/operations.md are what `make pictures` draws.

#[path = "../../benches/pictures/drawn/mod.rs"]
mod drawn;

use std::fs;

use support::*;

#[test]
fn pictures_and_tables_are_what_runs_draw() {
    let files = drawn::files();
    assert_eq!(files.len(), 6);
    for (path, text) in files {
        let committed = file(&path);
        let lines = || committed.lines().zip(text.lines());
        let differs = lines().find(|(committed, drawn)| committed != drawn);
        assert!(committed == text, "{path} is not what `make pictures` writes: {differs:#?}");
    }
}

/// The names and texts of the committed files in a folder of docs.
fn committed(folder: &str) -> Vec<(String, String)> {
    let folder = root().join("docs").join(folder);
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

/// The relative luminance of a colour, `#rgb` or `#rrggbb`: 0 to 1, as WCAG 2 defines it.
fn luminance(colour: &str) -> f64 {
    let digits = &colour[1..];
    let size = digits.len() / 3;
    let part = |index: usize| {
        let digits = &digits[size * index..size * (index + 1)];
        let value = i64::from_str_radix(&digits.repeat(2 / size), 16).unwrap() as f64 / 255.0;
        if value <= 0.03928 {
            value / 12.92
        } else {
            ((value + 0.055) / 1.055).powf(2.4)
        }
    };
    0.2126 * part(0) + 0.7152 * part(1) + 0.0722 * part(2)
}

#[test]
fn pictures_and_charts_can_be_read_on_a_dark_page() {
    for (name, svg) in [committed("pictures"), committed("charts")].concat() {
        let (_, style) = svg
            .split_once("<style>@media (prefers-color-scheme: dark) {")
            .unwrap_or_else(|| panic!("{name} has no colours for a dark page"));
        let (rules, drawn) = style.split_once("</style>").unwrap();
        let dark = |of: &str, light: &str| {
            let (_, rest) = rules
                .split_once(&format!("[{of}=\"{light}\"] {{ {of}: "))
                .unwrap_or_else(|| panic!("{name} has no rule for the {of} {light}"));
            rest.split_once(' ').unwrap().0.to_owned()
        };
        let tags = || drawn.split('<').filter_map(|rest| rest.split_once('>')).map(|(tag, _)| tag);
        // The background is drawn first.
        let background = tags().find(|tag| tag.starts_with("rect ")).unwrap();
        let background = luminance(&dark("fill", attribute(background, "fill").unwrap()));
        for tag in [svg.split_once('>').unwrap().0].into_iter().chain(tags()) {
            let is_text = tag.starts_with("text ") || tag.starts_with("<svg ");
            for of in ["fill", "stroke"] {
                let Some(light) = attribute(tag, of).filter(|light| light.starts_with('#')) else {
                    continue;
                };
                let colour = luminance(&dark(of, light));
                let contrast = (colour.max(background) + 0.05) / (colour.min(background) + 0.05);
                // What WCAG 2 asks for small text.
                assert!(!is_text || contrast >= 4.5, "{name}: {light}: {contrast}");
            }
        }
    }
}

#[test]
fn every_line_that_a_reader_may_copy_is_answered() {
    let (_server, mut conn) = Server::connect();
    let mut lines = 0;
    for page in ["docs/choosing.md", "docs/operations.md"] {
        let text = file(page);
        // The table of what is never exceeded has names in place of numbers, and so has the syntax.
        let copied = |row: &&str| {
            row.starts_with('|') && !row.contains("key b ") && !row.contains("key limit")
        };
        for code in text.lines().filter(copied).flat_map(|row| row.split('`').skip(1).step_by(2)) {
            let words: Vec<_> = code.split(' ').collect();
            let takes = ["RL.THROTTLE", "RL.WINDOW", "RL.ACQUIRE"].contains(&words[0]);
            if takes && words.len() > 1 {
                conn.cmd("FLUSHALL");
                assert_eq!(limited(&conn.cmd(code)), 0, "{code}");
                lines += 1;
            }
        }
    }
    assert!(lines > 15, "{lines}");
}
