//! Searches all states of the small worlds. `make prove` searches the large ones.

use redis_ratelimit_proofs::mistake::Mistake;
use redis_ratelimit_proofs::search::{Extent, SearchResult};
use redis_ratelimit_proofs::worlds::{search_all, search_mistake, Size};

/// The maximum number of steps from the first state.
const DEPTH: usize = 7;

#[test]
fn nothing_is_wrong_in_any_state_of_the_small_worlds() {
    for found in search_all(Size::Small, Extent::Depth(DEPTH)) {
        println!("{}", found.row());
        assert!(found.wrong.is_empty(), "{}: {:#?}", found.world, found.wrong);
    }
}

#[test]
fn every_planted_mistake_is_found() {
    for mistake in Mistake::ALL.iter().copied() {
        let found = search_mistake(mistake, Extent::UntilWrong(DEPTH));
        let SearchResult { world, states, wrong, .. } = found;
        assert!(!wrong.is_empty(), "{mistake:?} was not found in the {states} states of {world:?}");
        println!("{mistake:?} breaks {:?} in the world {world:?}", wrong[0].0);
    }
}
