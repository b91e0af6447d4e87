//! Searches the large worlds, and prints a table of what was found.

use redis_ratelimit_proofs::search::{Extent, SearchResult};
use redis_ratelimit_proofs::worlds::{search_all, Size};
use std::process::ExitCode;

/// The maximum number of steps in a search, of which a world with lines or leases gets a third. It leads to more than a
/// million states in every large world that has them.
const MAX_STEPS: usize = 6_000_000;

fn main() -> ExitCode {
    println!("{}", SearchResult::TABLE_HEAD);
    let mut code = ExitCode::SUCCESS;
    for found in search_all(Size::Large, Extent::Steps(MAX_STEPS)) {
        println!("{}", found.row());
        for (property, way) in &found.wrong {
            eprintln!("WRONG: {property}: {way}");
            code = ExitCode::FAILURE;
        }
    }
    code
}
