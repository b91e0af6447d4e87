//! Searches all states of the small worlds. `make prove` searches the large ones.

use redis_ratelimit_proofs::mistake::Mistake;
use redis_ratelimit_proofs::search::{search, Extent, SearchResult, PATIENCE};
use redis_ratelimit_proofs::waiting::WaitingWorld;
use redis_ratelimit_proofs::worlds::{all, line, with_mistake, Size};

/// The maximum number of steps from the first state.
const DEPTH: usize = 7;

#[test]
fn nothing_is_wrong_in_any_state_of_the_small_worlds() {
    let line = search("line", line(Size::Small), Extent::Depth(DEPTH), PATIENCE);
    let worlds = all(Size::Small)
        .into_iter()
        .map(|world| search(world.name, world, Extent::Depth(DEPTH), PATIENCE));
    for found in worlds.chain([line]) {
        println!("{}", found.row());
        assert!(found.wrong.is_empty(), "{}: {:#?}", found.world, found.wrong);
    }
}

#[test]
fn every_planted_mistake_is_found() {
    for mistake in Mistake::ALL.iter().copied() {
        let SearchResult { world, states, wrong, .. } = match with_mistake(mistake) {
            Some(world) => search(world.name, world, Extent::UntilWrong(DEPTH), PATIENCE),
            None => search(
                "line",
                WaitingWorld { mistake: Some(mistake), ..line(Size::Small) },
                Extent::UntilWrong(DEPTH),
                PATIENCE,
            ),
        };
        assert!(!wrong.is_empty(), "{mistake:?} was not found in the {states} states of {world:?}");
        println!("{mistake:?} breaks {:?} in the world {world:?}", wrong[0].0);
    }
}
