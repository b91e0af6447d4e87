//! All states of small worlds. The large ones: `make prove`.

use redis_ratelimit_proofs::bug::Bug;
use redis_ratelimit_proofs::search::{search, Extent, Found};
use redis_ratelimit_proofs::waiting::LineWorld;
use redis_ratelimit_proofs::worlds::{all, line, with_bug, Size};

/// So many steps are searched here, one after the other in each order, and what they lead to.
const DEPTH: usize = 7;

#[test]
fn nothing_is_wrong_in_any_state_of_the_small_worlds() {
    let line = search("line", line(Size::Small), Extent::Depth(DEPTH));
    let worlds =
        all(Size::Small).into_iter().map(|world| search(world.name, world, Extent::Depth(DEPTH)));
    for found in worlds.chain([line]) {
        println!("{}", found.line());
        assert!(found.wrong.is_empty(), "{}: {:#?}", found.world, found.wrong);
    }
}

#[test]
fn every_planted_mistake_is_found() {
    for bug in Bug::ALL {
        let Found { world, states, wrong, .. } = match with_bug(bug) {
            Some(world) => search(world.name, world, Extent::UntilWrong(DEPTH)),
            None => search(
                "line",
                LineWorld { bug: Some(bug), ..line(Size::Small) },
                Extent::UntilWrong(DEPTH),
            ),
        };
        assert!(!wrong.is_empty(), "{bug:?} was not found in the {states} states of {world:?}");
        println!("{bug:?} breaks {:?} in the world {world:?}", wrong[0].0);
    }
}
