//! A process of the proof in clients/python/tests/test_proof.py, which starts it with PROOF_SPEND in its environment.

use std::cell::Cell;
use std::fs::OpenOptions;
use std::io::Write;

use super::*;
use crate::transport::Servers;
use crate::{Decision, Period, Unreachable};

thread_local! {
    /// The last reading of the clock, in nanoseconds since 1970.
    static READ_NS: Cell<i64> = const { Cell::new(0) };
}

#[allow(unsafe_code)]
fn monotonic_ns() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is this function's own.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) }, 0);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Returns how far the wall clock is ahead of the clock that all processes of the machine have in common.
fn wall_ahead_ns() -> i64 {
    loop {
        let (before, wall, after) =
            (monotonic_ns(), since_1970_ns(SystemTime::now()), monotonic_ns());
        if after - before < 5_000 {
            return wall - before;
        }
    }
}

/// Local::take whose clock is recorded, to say on which reading it decided.
fn recorded(limiter: &Limiter, window: &Window, lease_ms: u64) -> Local {
    let terms = terms(b"proof", window, Duration::from_millis(lease_ms), 0).unwrap();
    let clock = Arc::new(|| {
        let now = SystemTime::now();
        READ_NS.set(since_1970_ns(now));
        now
    });
    let shared = Shared::new(limiter.core(), window, terms, Some(clock)).unwrap();
    Local { shared: Arc::new(shared) }
}

fn assert_became_replica(error: &Error) {
    assert_eq!(error.code(), Some("READONLY"), "{error}");
}

#[tokio::test]
#[ignore = "clients/python/tests/test_proof.py runs it: make test-clients"]
async fn a_process_spends_the_limit_of_the_proof() {
    let settings = std::env::var("PROOF_SPEND").expect("what to spend");
    let settings: serde_json::Value = serde_json::from_str(&settings).unwrap();
    let number = |name: &str| settings[name].as_f64().unwrap();
    let text = |name: &str| settings[name].as_str().unwrap();
    let server = format!("redis://127.0.0.1:{}/", number("port"));
    let limiter = Limiter::builder(Servers::open(server).unwrap())
        .unreachable(Unreachable::Deny)
        .deadline(Duration::from_millis(500))
        .build()
        .unwrap();
    let period: Period = text("period").parse().unwrap();
    let mut window = Window::new(number("limit") as u64, period);
    if settings["fixed"] == true {
        window = window.fixed();
    }
    let local = recorded(&limiter, &window, number("lease_ms") as u64);
    let (ahead_ns, until_ns) = (wall_ahead_ns(), (number("until") * 1e9) as i64);
    let mut spent = OpenOptions::new().create(true).append(true).open(text("file")).unwrap();
    let part = || {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).unwrap();
        (u64::from_le_bytes(bytes) >> 11) as f64 / (1u64 << 53) as f64
    };
    while monotonic_ns() < until_ns {
        let asked = [1, 1, 1, 1, 1, 1, 1, 2, 3][(part() * 9.0) as usize];
        match local.take(asked).await {
            Ok(Reply { decision: Decision::Allowed, .. }) => {
                let wall_ns = READ_NS.get();
                let seconds = |ns: i64| (ns as f64 / 1e9).to_le_bytes();
                let record = [seconds(wall_ns - ahead_ns), seconds(wall_ns), asked.to_le_bytes()];
                spent.write_all(record.as_flattened()).unwrap();
            }
            Ok(_) | Err(Error::Busy(_)) => {}
            Err(error) => assert_became_replica(&error),
        }
        let wait = -(1.0 - part()).ln() / number("per_second");
        tokio::time::sleep(Duration::from_secs_f64(wait.min(0.1))).await;
    }
    if let Err(error) = local.close().await {
        assert_became_replica(&error);
    }
}
