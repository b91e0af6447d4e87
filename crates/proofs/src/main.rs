//! `prove worlds [NAME ...]` searches the large worlds whose names begin so, all unless told; `prove small` the small ones.

use redis_ratelimit_proofs::search::{search, Extent, Found};
use redis_ratelimit_proofs::worlds::{all, line, Size};
use std::process::ExitCode;

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
    let wanted = |name: &str| names.is_empty() || names.iter().any(|one| name.starts_with(one));
    let mut wrong = 0;
    let mut note = |found: Found| {
        println!("{}", found.line());
        for (what, way) in &found.wrong {
            println!("  WRONG: {what}: {way}");
        }
        wrong += found.wrong.len();
    };
    for world in all(size).into_iter().filter(|world| wanted(world.name)) {
        note(search(world.name, world, Extent::All));
    }
    if wanted("line") {
        note(search("line", line(size), Extent::All));
    }
    if wrong > 0 {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
