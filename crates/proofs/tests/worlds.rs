//! Searches all states of the small worlds. `make prove` searches the large ones.

use redis_ratelimit_proofs::mistake::Mistake;
use redis_ratelimit_proofs::search::{search, Extent, SearchResult};
use redis_ratelimit_proofs::waiting::WaitingWorld;
use redis_ratelimit_proofs::worlds::{all, line, with_mistake, Size};

/// The maximum number of steps from the first state.
const DEPTH: usize = 7;

#[test]
fn nothing_is_wrong_in_any_state_of_the_small_worlds() {
    let extent = Extent::Depth(DEPTH);
    let line = search("line", line(Size::Small), extent);
    let worlds = all(Size::Small).into_iter().map(|world| search(world.name, world, extent));
    for found in worlds.chain([line]) {
        println!("{}", found.row());
        assert!(found.wrong.is_empty(), "{}: {:#?}", found.world, found.wrong);
    }
}

#[test]
fn every_planted_mistake_is_found() {
    let extent = Extent::UntilWrong(DEPTH);
    for mistake in Mistake::ALL.iter().copied() {
        let SearchResult { world, states, wrong, .. } = match with_mistake(mistake) {
            Some(world) => search(world.name, world, extent),
            None => {
                let line = WaitingWorld { mistake: Some(mistake), ..line(Size::Small) };
                search("line", line, extent)
            }
        };
        assert!(!wrong.is_empty(), "{mistake:?} was not found in the {states} states of {world:?}");
        println!("{mistake:?} breaks {:?} in the world {world:?}", wrong[0].0);
    }
}
