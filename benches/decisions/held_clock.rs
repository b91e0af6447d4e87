//! Advances a held clock as decisions are made.

use crate::server::Host;
use support::Clock;

/// Lets a fixed time pass with each decision, or slightly more.
///
/// The clock advances by a tick whenever the server reads it, so that time also passes between the commands of a pipeline.
/// The number of reads for a decision depends on the command, the server and the length of the pipeline. It is estimated
/// here from one exchange to the next.
pub struct Pacer<'s> {
    /// None if there is no pace to keep.
    clock: Option<&'s Clock>,
    pace_us: f64,
    tick_us: f64,
    /// The time before the last exchange, and the number of its decisions.
    seen_us: i64,
    decisions: f64,
    /// Estimated reads for each decision. An estimate that is too low makes the clock slightly fast, which is harmless.
    reads: Option<f64>,
    /// The time by which the clock is behind.
    lag_us: f64,
}

impl<'s> Pacer<'s> {
    /// A pacer that lets `pace_us` microseconds pass with each decision, if that is set and the server's clock is held.
    pub fn new(host: &'s Host, pace_us: Option<f64>) -> Pacer<'s> {
        Pacer {
            clock: pace_us.and(host.clock()),
            pace_us: pace_us.unwrap_or_default(),
            tick_us: 0.0,
            seen_us: 0,
            decisions: 0.0,
            reads: None,
            lag_us: 0.0,
        }
    }

    /// Prepares the clock for an exchange of this many decisions.
    pub fn step(&mut self, decisions: usize) {
        let Some(clock) = self.clock else { return };
        let now_us = clock.now_us();
        if self.decisions > 0.0 {
            let passed_us = (now_us - self.seen_us) as f64;
            self.learn(passed_us / self.tick_us / self.decisions);
            self.lag_us = (self.lag_us + self.pace_us * self.decisions - passed_us).max(0.0);
        }
        self.seen_us = now_us;
        self.decisions = decisions as f64;
        let due_us = self.pace_us * self.decisions + self.lag_us;
        self.tick_us = (due_us / (self.reads() * self.decisions)).ceil();
        clock.tick_us(self.tick_us as i64);
    }

    /// Adopts a smaller number of reads at once, and a larger one slowly, as the server's cron reads the clock too.
    fn learn(&mut self, reads: f64) {
        self.reads = match self.reads {
            Some(known) if reads > known => Some(known + (reads - known) / 16.0),
            _ => Some(reads),
        }
    }

    /// At least one, as every command reads the clock.
    fn reads(&self) -> f64 {
        self.reads.unwrap_or(1.0).max(1.0)
    }
}
