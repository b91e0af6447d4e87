//! Searches the large worlds, and prints a table of what was found.

use redis_ratelimit_proofs::search::{search, Extent, SearchResult};
use redis_ratelimit_proofs::worlds::{all, line, Size};
use std::process::ExitCode;

/// The maximum number of steps in a search. It leads to more than a million states in every large world that has them.
const MAX_STEPS: usize = 6_000_000;

fn main() -> ExitCode {
    println!("{}", SearchResult::TABLE_HEAD);
    let extent = Extent::Steps(MAX_STEPS);
    let worlds = all(Size::Large).into_iter().map(|world| search(world.name, world, extent));
    let line = std::iter::once_with(|| search("line", line(Size::Large), extent));
    let mut code = ExitCode::SUCCESS;
    for found in worlds.chain(line) {
        println!("{}", found.row());
        for (property, way) in &found.wrong {
            eprintln!("WRONG: {property}: {way}");
            code = ExitCode::FAILURE;
        }
    }
    code
}
