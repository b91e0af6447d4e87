use std::thread::sleep;
use std::time::{Duration, Instant};

/// A deadline for events that are expected immediately, generous enough for a busy machine.
pub const SOON: Duration = Duration::from_secs(60);

/// Shortens `Duration::from_millis`.
pub fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

/// The factor by which deadlines are longer, `RATELIMIT_TEST_SLOWNESS`: 1 except under tools such as valgrind.
pub(super) fn slowness() -> u32 {
    let factor = |text: String| text.parse().expect("RATELIMIT_TEST_SLOWNESS is a number");
    std::env::var("RATELIMIT_TEST_SLOWNESS").map_or(1, factor)
}

/// Waits until `condition` holds; panics when it does not within `deadline`.
#[track_caller]
pub fn eventually(deadline: Duration, mut condition: impl FnMut() -> bool) {
    let deadline = deadline * slowness();
    let begin = Instant::now();
    // Checks again after the deadline: a busy machine may have slept through it.
    loop {
        let late = begin.elapsed() > deadline;
        if condition() {
            return;
        }
        assert!(!late, "not true within {deadline:?}");
        sleep(Duration::from_millis(1));
    }
}
