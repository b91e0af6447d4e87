use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::{self, sleep, JoinHandle};
use std::time::{Duration, Instant};

/// Measures the scheduling delay of this machine during a test, with two threads that touch no server.
/// One sleeps as a server does until its timer is due, and has the other wake it as a reply wakes a client.
pub struct Machine {
    over: Arc<AtomicBool>,
    late: Arc<Mutex<Vec<Duration>>>,
    threads: Vec<JoinHandle<()>>,
}

/// The length of each sleep.
const NAP: Duration = Duration::from_millis(5);

impl Machine {
    /// Begins to measure.
    pub fn watch() -> Machine {
        let (mut here, mut there) = UnixStream::pair().expect("a pair of sockets");
        let over = Arc::new(AtomicBool::new(false));
        let late = Arc::new(Mutex::new(Vec::new()));
        let (is_over, lates) = (Arc::clone(&over), Arc::clone(&late));
        let naps = thread::spawn(move || {
            while !is_over.load(SeqCst) {
                let due = Instant::now() + NAP;
                sleep(NAP);
                here.write_all(b"x").unwrap();
                here.read_exact(&mut [0]).unwrap();
                lates.lock().unwrap().push(Instant::now().saturating_duration_since(due));
            }
        });
        let echoes = thread::spawn(move || {
            let mut byte = [0];
            while there.read_exact(&mut byte).is_ok() && there.write_all(&byte).is_ok() {}
        });
        Machine { over, late, threads: vec![naps, echoes] }
    }

    /// The delays until now, the shortest first.
    fn delays(&self) -> Vec<Duration> {
        let mut late = self.late.lock().unwrap().clone();
        late.sort_unstable();
        late
    }

    /// The median of the delays until now.
    pub fn median(&self) -> Duration {
        let delays = self.delays();
        delays.get(delays.len() / 2).copied().unwrap_or_default()
    }

    /// The worst of the delays until now.
    pub fn worst(&self) -> Duration {
        self.delays().last().copied().unwrap_or_default()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.over.store(true, SeqCst);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Measures a delay this many times and asserts that the median is at most `most_ms` plus the machine's own median delay.
/// Tries five times, as other work on the machine may come and go.
#[track_caller]
pub fn assert_median_ms(most_ms: u64, times: usize, mut lateness: impl FnMut() -> Duration) {
    let mut seen = Vec::new();
    for _ in 0..5 {
        let machine = Machine::watch();
        let mut all: Vec<_> = (0..times).map(|_| lateness()).collect();
        all.sort_unstable();
        let (median, excuse) = (all[times / 2], machine.median());
        if median <= Duration::from_millis(most_ms) + excuse {
            return;
        }
        seen.push((median, excuse));
    }
    panic!("not within {most_ms} ms, plus what the machine was late: {seen:?}");
}

/// Runs a test that has to be quick. Repeats a failed attempt if the machine stalled for longer than `margin`.
#[track_caller]
pub fn unless_stalled(margin: Duration, attempt: impl Fn()) {
    for _ in 0..10 {
        let machine = Machine::watch();
        let Err(failure) = catch_unwind(AssertUnwindSafe(&attempt)) else { return };
        let worst = machine.worst();
        if worst <= margin {
            resume_unwind(failure);
        }
        eprintln!("again: the machine stalled for {worst:?}");
    }
    attempt();
}

/// Measures N times in turn, in 3 to 12 rounds, and asserts that `claimed` is true of the least of each. Other work on the
/// machine makes any of them slow at times, but none each time. One round alone would not do: if it made the time slow that
/// others are compared with, it would hide that they are slow.
#[track_caller]
pub fn assert_of_least<const N: usize>(
    mut measure: impl FnMut(usize) -> Duration,
    claimed: impl Fn([Duration; N]) -> bool,
) {
    let mut least = [Duration::MAX; N];
    for round in 1..=12 {
        for (which, least) in least.iter_mut().enumerate() {
            *least = (*least).min(measure(which));
        }
        if round >= 3 && claimed(least) {
            return eprintln!("the least of {round} rounds: {least:?}");
        }
    }
    panic!("it is not true of the least of twelve rounds: {least:?}");
}

/// Asserts that at least one of five measurements is no longer than `most`.
#[track_caller]
pub fn assert_takes(most: Duration, mut measure: impl FnMut() -> Duration) {
    let mut seen = Vec::new();
    for _ in 0..5 {
        let took = measure();
        if took <= most {
            return eprintln!("it takes {took:?}, and may take {most:?}");
        }
        seen.push(took);
    }
    panic!("not within {most:?}: {seen:?}");
}
