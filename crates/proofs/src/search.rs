//! Searches through all states of a world, with stateright.

use stateright::{Checker, HasDiscoveries, Model};
use std::fmt::Debug;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// The longest time of a search, which is then "out of time". On two idle cores each takes less than 5 minutes.
const PATIENCE: Duration = Duration::from_secs(1_500);

/// The end of a search that reached all states.
const ALL_STATES: &str = "all states";

/// The result of a search.
#[derive(Debug)]
pub struct SearchResult {
    /// The name of the world.
    pub world: &'static str,
    /// The number of distinct states that were reached.
    pub states: usize,
    /// The number of steps between states that were made.
    pub steps: usize,
    /// The largest number of steps from the first state to another.
    pub depth: usize,
    /// The reason why the search ended.
    pub end: &'static str,
    /// Each property that does not hold, with a shortest way to a state that shows it if there is one.
    pub wrong: Vec<(&'static str, String)>,
}

/// The part of a world that is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All states, or the nearest ones that this many steps between states reach.
    Steps(usize),
    /// All states that are at most this many steps from the first state.
    Depth(usize),
    /// The same, until a property is violated.
    UntilWrong(usize),
}

/// Searches a world, and checks its properties in each state.
pub fn search<M>(world: &'static str, model: M, extent: Extent) -> SearchResult
where
    M: Model + Send + Sync + 'static,
    M::State: Debug + Hash + Send + Sync + PartialEq + Clone,
    M::Action: Debug + PartialEq + Clone,
{
    let begin = Instant::now();
    let until_wrong = matches!(extent, Extent::UntilWrong(_));
    let when = if until_wrong { HasDiscoveries::AnyFailures } else { HasDiscoveries::All };
    let mut checker = model.checker().threads(2).finish_when(when).timeout(PATIENCE);
    checker = match extent {
        Extent::Steps(steps) => checker.target_state_count(steps),
        Extent::Depth(depth) | Extent::UntilWrong(depth) => checker.target_max_depth(depth),
    };
    let checker = checker.spawn_bfs().join();
    let mut wrong: Vec<(&'static str, String)> = Vec::new();
    let end = match extent {
        _ if begin.elapsed() >= PATIENCE => "out of time",
        Extent::Steps(steps) if checker.state_count() < steps => ALL_STATES,
        Extent::Steps(_) => "after the last step allowed",
        Extent::Depth(_) | Extent::UntilWrong(_) => "at the depth allowed",
    };
    let discoveries = checker.discoveries();
    for property in checker.model().properties() {
        let found = discoveries.get(property.name);
        match (property.expectation, found) {
            (stateright::Expectation::Sometimes, None)
                if matches!(extent, Extent::Depth(_)) || end == ALL_STATES =>
            {
                wrong.push((property.name, "this never happens".to_owned()));
            }
            (stateright::Expectation::Sometimes, _) | (_, None) => {}
            (_, Some(path)) => {
                let way: Vec<_> = path.clone().into_actions();
                wrong.push((property.name, format!("{way:?} to {:?}", path.last_state())));
            }
        }
    }
    SearchResult {
        world,
        states: checker.unique_state_count(),
        steps: checker.state_count(),
        depth: checker.max_depth(),
        end,
        wrong,
    }
}

impl SearchResult {
    /// The head of a Markdown table whose rows are [`SearchResult::row`].
    pub const TABLE_HEAD: &str =
        "| world | distinct states | steps | deepest | ended |\n|---|---|---|---|---|";

    /// Returns the result as a row of that table.
    pub fn row(&self) -> String {
        let SearchResult { world, states, steps, depth, end, .. } = self;
        format!("| {world} | {states} | {steps} | {depth} | {end} |")
    }
}
