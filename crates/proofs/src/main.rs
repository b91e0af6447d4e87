//! `prove worlds [NAME ...]` searches the large worlds with names that begin with one of these, or all; `prove small` the
//! small ones. `PATIENCE` in the environment is how many seconds each may take.

use redis_ratelimit_proofs::search::{search, Extent, SearchResult, PATIENCE};
use redis_ratelimit_proofs::worlds::{all, line, Size};
use std::process::ExitCode;
use std::time::Duration;

/// So many steps lead to more than a million states in each large world. The smaller ones of those end before.
const MAX_STEPS: usize = 6_000_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (size, names) = match arguments.split_first() {
        Some((what, names)) if what == "worlds" => (Size::Large, names),
        Some((what, names)) if what == "small" => (Size::Small, names),
        _ => {
            eprintln!("usage: prove worlds|small [NAME ...]");
            return ExitCode::FAILURE;
        }
    };
    let seconds = std::env::var("PATIENCE").ok().and_then(|text| text.parse().ok());
    let patience = seconds.map_or(PATIENCE, Duration::from_secs);
    let wanted = |name: &str| names.is_empty() || names.iter().any(|one| name.starts_with(one));
    println!("{}", SearchResult::TABLE_HEAD);
    let mut wrong = 0;
    let mut note = |found: SearchResult| {
        println!("{}", found.row());
        for (what, way) in &found.wrong {
            eprintln!("WRONG: {what}: {way}");
        }
        wrong += found.wrong.len();
    };
    for world in all(size).into_iter().filter(|world| wanted(world.name)) {
        note(search(world.name, world, Extent::Steps(MAX_STEPS), patience));
    }
    if wanted("line") {
        note(search("line", line(size), Extent::Steps(MAX_STEPS), patience));
    }
    if wrong > 0 {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
