//! `prove worlds [NAME ...]` searches the large worlds, or those whose name starts with one of the `NAME`s. `prove small`
//! searches the small ones. The environment variable `PATIENCE` limits the seconds for each.

use redis_ratelimit_proofs::search::{search, Extent, SearchResult, PATIENCE};
use redis_ratelimit_proofs::worlds::{all, line, Size};
use std::process::ExitCode;
use std::time::Duration;

/// The maximum number of steps in a search. It leads to more than a million states in every large world that has them.
const MAX_STEPS: usize = 6_000_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (size, names) = match arguments.split_first() {
        Some((size, names)) if size == "worlds" => (Size::Large, names),
        Some((size, names)) if size == "small" => (Size::Small, names),
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
        for (property, way) in &found.wrong {
            eprintln!("WRONG: {property}: {way}");
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
