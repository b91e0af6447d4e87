//! Searches through all states of a world, with stateright.

use stateright::{Checker, HasDiscoveries, Model};
use std::fmt::Debug;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// A search that lasts longer is stopped, and says so.
pub const PATIENCE: Duration = Duration::from_secs(290);

/// What a search found.
#[derive(Debug)]
pub struct Found {
    /// The world.
    pub world: &'static str,
    /// How many distinct states it has.
    pub states: usize,
    /// How many steps from state to state were made.
    pub steps: usize,
    /// The most steps to any state.
    pub depth: usize,
    /// Whether these are all that there are, and not all that [`PATIENCE`] allowed.
    pub complete: bool,
    /// How many seconds it took.
    pub seconds: f64,
    /// What does not hold, with a shortest way there; or what never comes true.
    pub wrong: Vec<(&'static str, String)>,
}

/// How much is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All states.
    All,
    /// All states that so many steps lead to.
    Depth(usize),
    /// Those too, until something wrong is found.
    UntilWrong(usize),
}

/// Searches a world.
pub fn search<M>(world: &'static str, model: M, extent: Extent) -> Found
where
    M: Model + Send + Sync + 'static,
    M::State: Debug + Hash + Send + Sync + PartialEq + Clone,
    M::Action: Debug + PartialEq + Clone,
{
    let begin = Instant::now();
    let until_wrong = matches!(extent, Extent::UntilWrong(_));
    let when = if until_wrong { HasDiscoveries::AnyFailures } else { HasDiscoveries::All };
    let mut checker = model.checker().threads(2).finish_when(when).timeout(PATIENCE);
    if let Extent::Depth(depth) | Extent::UntilWrong(depth) = extent {
        checker = checker.target_max_depth(depth);
    }
    let checker = checker.spawn_bfs().join();
    let mut wrong: Vec<(&'static str, String)> = Vec::new();
    let complete = begin.elapsed() < PATIENCE;
    let discoveries = checker.discoveries();
    for property in checker.model().properties() {
        let found = discoveries.get(property.name);
        match (property.expectation, found) {
            (stateright::Expectation::Sometimes, None) if !until_wrong && complete => {
                wrong.push((property.name, "this never comes true".to_owned()));
            }
            (stateright::Expectation::Sometimes, _) | (_, None) => {}
            (_, Some(path)) => {
                let way: Vec<_> = path.clone().into_actions();
                wrong.push((property.name, format!("{way:?} to {:?}", path.last_state())));
            }
        }
    }
    Found {
        world,
        states: checker.unique_state_count(),
        steps: checker.state_count(),
        depth: checker.max_depth(),
        complete,
        seconds: begin.elapsed().as_secs_f64(),
        wrong,
    }
}

impl Found {
    /// A line of a table.
    pub fn line(&self) -> String {
        let Found { world, states, steps, depth, complete, seconds, .. } = self;
        let until = if *complete { "" } else { ", and not all" };
        format!("{world:<32} {states:>10} states {steps:>11} steps, at most {depth:>2} deep, {seconds:>6.1} s{until}")
    }
}
