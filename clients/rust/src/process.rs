//! The id of this process, for what a forked child must not take over from its parent.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Once;

static ID: AtomicU32 = AtomicU32::new(0);

/// Returns the id of this process. [`watch`] must have been called.
///
/// This is a load, as getpid(2) is a system call and takes longer than a decision in the process.
#[inline]
pub(crate) fn id() -> u32 {
    ID.load(Ordering::Relaxed)
}

/// Keeps [`id`] true from now on, also in children that fork(2) makes.
pub(crate) fn watch() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        read_id();
        #[cfg(unix)]
        watch_forks();
    });
}

extern "C" fn read_id() {
    ID.store(std::process::id(), Ordering::Relaxed);
}

#[cfg(unix)]
#[allow(unsafe_code)]
fn watch_forks() {
    // SAFETY: `read_id` lives as long as the process, and does only what a child may do right after a fork: getpid(2) and a
    // store.
    let outcome = unsafe { libc::pthread_atfork(None, None, Some(read_id)) };
    // It fails only without memory for the list. A child that could go on with its parent's leases must not come to be.
    assert_eq!(outcome, 0, "no memory to watch for forks");
}
