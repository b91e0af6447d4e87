//! Searches through all states of a world, with stateright.

use stateright::{Checker, HasDiscoveries, Model};
use std::fmt::Debug;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// A search that lasts longer is stopped, and says so. Each takes less than 5 minutes on two cores that do nothing else.
pub const PATIENCE: Duration = Duration::from_secs(1_500);

/// What a search found.
#[derive(Debug)]
pub struct SearchResult {
    /// The world.
    pub world: &'static str,
    /// How many distinct states it has.
    pub states: usize,
    /// How many steps from state to state were made.
    pub steps: usize,
    /// The most steps to any state.
    pub depth: usize,
    /// Why the search came to its end.
    pub end: End,
    /// The processor time that it took.
    pub processor_seconds: f64,
    /// What does not hold, with a shortest way there; or what never comes true.
    pub wrong: Vec<(&'static str, String)>,
}

/// Why a search came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// There are no more states.
    All,
    /// As many steps were made as the extent allows.
    Steps,
    /// As deep as the extent allows, there are no more.
    Depth,
    /// It took too long.
    Patience,
}

/// How much is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All states, or those reached by the first this many steps from state to state, nearest first.
    Steps(usize),
    /// All states reached by this many steps.
    Depth(usize),
    /// Those too, until something wrong is found.
    UntilWrong(usize),
}

/// Searches a world.
pub fn search<M>(world: &'static str, model: M, extent: Extent, patience: Duration) -> SearchResult
where
    M: Model + Send + Sync + 'static,
    M::State: Debug + Hash + Send + Sync + PartialEq + Clone,
    M::Action: Debug + PartialEq + Clone,
{
    let (begin, used) = (Instant::now(), processor_seconds());
    let until_wrong = matches!(extent, Extent::UntilWrong(_));
    let when = if until_wrong { HasDiscoveries::AnyFailures } else { HasDiscoveries::All };
    let mut checker = model.checker().threads(2).finish_when(when).timeout(patience);
    checker = match extent {
        Extent::Steps(steps) => checker.target_state_count(steps),
        Extent::Depth(depth) | Extent::UntilWrong(depth) => checker.target_max_depth(depth),
    };
    let checker = checker.spawn_bfs().join();
    let mut wrong: Vec<(&'static str, String)> = Vec::new();
    let end = match extent {
        _ if begin.elapsed() >= patience => End::Patience,
        Extent::Steps(steps) if checker.state_count() < steps => End::All,
        Extent::Steps(_) => End::Steps,
        Extent::Depth(_) | Extent::UntilWrong(_) => End::Depth,
    };
    let discoveries = checker.discoveries();
    for property in checker.model().properties() {
        let found = discoveries.get(property.name);
        match (property.expectation, found) {
            (stateright::Expectation::Sometimes, None)
                if matches!(extent, Extent::Depth(_)) || end == End::All =>
            {
                wrong.push((property.name, "this never comes true".to_owned()));
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
        processor_seconds: processor_seconds() - used,
        wrong,
    }
}

/// The processor time of this process until now, in seconds: fields 14 and 15 of its line in /proc, in hundredths of
/// seconds.
fn processor_seconds() -> f64 {
    let line = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let behind_name = line.rsplit(") ").next().unwrap_or_default();
    let fields = behind_name.split(' ').skip(11).take(2);
    fields.filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / 100.0
}

impl SearchResult {
    /// The head of the table that has [`SearchResult::row`] as rows.
    pub const TABLE_HEAD: &str =
        "| world | distinct states | steps | deepest | ended | processor seconds |\n\
                                  |---|---|---|---|---|---|";

    /// The result as a row of a Markdown table.
    pub fn row(&self) -> String {
        let SearchResult { world, states, steps, depth, processor_seconds, .. } = self;
        let end = match self.end {
            End::All => "all states",
            End::Steps => "after the last step allowed",
            End::Depth => "at the depth allowed",
            End::Patience => "out of time",
        };
        format!("| {world} | {states} | {steps} | {depth} | {end} | {processor_seconds:.0} |")
    }
}
