//! Lets a held clock move on as decisions are made.

use crate::server::Host;
use support::Clock;

/// Keeps a pace of a fixed time for each decision, or barely exceeds it.
///
/// The clock moves on by a tick whenever the server reads it, so that time passes between the commands of a pipeline
/// too. How often it is read for a decision differs from command to command, from server to server and with the
/// pipeline's length; it is estimated here from one exchange to the next.
pub struct Pacer<'s> {
    /// None where no pace is to be kept.
    clock: Option<&'s Clock>,
    pace_us: f64,
    tick_us: f64,
    /// What the clock showed before the last exchange, and how many decisions that was for.
    seen_us: i64,
    decisions: f64,
    /// Estimated reads for each decision. Too few let the clock run a little fast, which is harmless.
    reads: Option<f64>,
    /// How far the clock has fallen behind.
    lag_us: f64,
}

impl<'s> Pacer<'s> {
    /// Keeps `pace_us` microseconds for each decision, if there is a pace and the server's clock is held.
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

    /// Follows a smaller number of reads at once, a larger one slowly: the server's cron reads the clock as well.
    fn learn(&mut self, reads: f64) {
        self.reads = match self.reads {
            Some(known) if reads > known => Some(known + (reads - known) / 16.0),
            _ => Some(reads),
        }
    }

    /// At least one, as every command looks at the clock.
    fn reads(&self) -> f64 {
        self.reads.unwrap_or(1.0).max(1.0)
    }

    /// The tick that keeps the pace without `step`; 0 where there is none to keep.
    pub fn tick_us(&self) -> i64 {
        (self.pace_us / self.reads()).ceil() as i64
    }
}
