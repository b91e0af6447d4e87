//! Tests that measure time. They are a crate of their own because crates run one after the other: no other test takes
//! the machine's time meanwhile. A file is a module: `cargo test --test timing stalls::`.

mod blocking_many;
mod blocking_time;
mod stalls;

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use support::{Conn, Server};

static MACHINE: RwLock<()> = RwLock::new(());

/// While this is held no other test runs.
fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Every other test holds this.
fn with_others() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

/// A server for such a test, and a connection to it.
fn connect_with_others() -> (RwLockReadGuard<'static, ()>, Server, Conn) {
    let guard = with_others();
    let (server, conn) = Server::connect();
    (guard, server, conn)
}
