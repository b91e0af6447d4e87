//! BLOCK: calls that wait in the server, for each key in the order of LEAVE and then of arrival.
//!
//! ```text
//! join -> end -> answer -> forget
//! |       |      |         the server has let the client go; a grant of which the client was not notified is given back
//! |       |      the server asks what to reply
//! |       granted, refused with an error, or its time is up
//! a place in the line
//! ```
//!
//! CLIENT UNBLOCK leads from join to answer. A client that is gone, or that the server sent elsewhere, goes from join
//! to forget, by way of withdraw.
//!
//! ```text
//! registry.rs       who waits: the lines of this server, and questions about them
//! wait.rs           one wait, from join to forget
//! work.rs           granting to the heads of lines, by commands and by the timer
//! ```
//!
//! What to do next is decided in [`engine::line`]. Its transitions change the lines and say what is to be done; the files
//! here do that. To add something that ends a wait: a transition in the engine, and in work.rs a call of it.

mod registry;
mod wait;
mod work;

pub use registry::{
    id_waits, is_barred, longest_work_us, oldest_wait_ms, restart_timer, waiting, waiting_on,
};
pub use wait::{answer, forget, join, withdraw};
pub use work::{serve_timer, wake};

/// Forgets everything, before the module goes: the server lets it go only when nobody waits.
pub fn unload() {
    registry::forget_lines();
    wait::forget_secret();
}
