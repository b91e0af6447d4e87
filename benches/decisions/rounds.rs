//! Measurements in rounds, and their statistics.

use std::thread;
use std::time::Duration;

use crate::client::{BenchError, Result};

/// Measures all subjects in turn, `rounds` times, so that a disturbance affects all of them. Returns each subject with the
/// results of its rounds, or its first error.
pub fn interleave<S, T>(
    subjects: impl IntoIterator<Item = Result<S>>,
    rounds: usize,
    mut measure: impl FnMut(&mut S) -> Result<T>,
) -> Vec<Result<(S, Vec<T>)>> {
    let begin = |subject: Result<S>| Ok((subject?, Vec::new()));
    let mut subjects: Vec<Result<(S, Vec<T>)>> = subjects.into_iter().map(begin).collect();
    for _ in 0..rounds {
        for running in &mut subjects {
            if let Ok((subject, results)) = running {
                match measure(subject) {
                    Ok(result) => results.push(result),
                    Err(error) => *running = Err(error),
                }
            }
        }
    }
    subjects
}

/// The median of each column.
pub fn medians(rounds: &[Vec<f64>]) -> Vec<f64> {
    let columns = rounds.first().map_or(0, Vec::len);
    let median = |column| {
        let mut figures: Vec<f64> =
            rounds.iter().filter_map(|round| round.get(column)).copied().collect();
        figures.sort_by(f64::total_cmp);
        figures.get(figures.len() / 2).copied()
    };
    (0..columns).filter_map(median).collect()
}

/// Returns quantiles in microseconds, in thousandths: 500 is the median, 999 the 99.9th percentile.
pub fn permilles<const N: usize>(mut took: Vec<Duration>, permilles: [usize; N]) -> [f64; N] {
    took.sort();
    permilles.map(|permille| {
        let at = took.get(took.len() * permille / 1000);
        at.map_or(0.0, Duration::as_secs_f64) * 1e6
    })
}

/// Returns the result of a thread.
pub fn join<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|_| Err(BenchError::other("a thread of the benchmark panicked")))
}
