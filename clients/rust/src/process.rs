//! The id of this process, for what a forked child must not take over from its parent.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Once;

/// Zero if forks are not watched.
static ID: AtomicU32 = AtomicU32::new(0);

/// Returns the id of this process. After [`watch`] this is a load, as getpid(2) is a system call and takes longer than a
/// decision in the process.
#[inline]
pub(crate) fn id() -> u32 {
    match ID.load(Ordering::Relaxed) {
        0 => std::process::id(),
        id => id,
    }
}

/// Keeps [`id`] true from now on, also in children that fork(2) makes.
pub(crate) fn watch() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        if watch_forks() {
            read_id();
        }
    });
}

extern "C" fn read_id() {
    ID.store(std::process::id(), Ordering::Relaxed);
}

/// Returns false if there is no memory for the list of what is called after a fork.
#[cfg(unix)]
#[allow(unsafe_code)]
fn watch_forks() -> bool {
    // SAFETY: `read_id` lives as long as the process, and does only what a child may do right after a fork: getpid(2) and a
    // store.
    unsafe { libc::pthread_atfork(None, None, Some(read_id)) == 0 }
}

#[cfg(not(unix))]
fn watch_forks() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_known_even_if_forks_cannot_be_watched() {
        watch();
        assert_eq!(ID.swap(0, Ordering::Relaxed), std::process::id());
        assert_eq!(id(), std::process::id());
        read_id();
    }
}
