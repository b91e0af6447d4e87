//! BLOCK: calls that wait in the server, for each key in the order of LEAVE and then of arrival.
//!
//! ```text
//! join -> end -> answer -> forget
//! |       |      |         the server has let the client go; a grant that did not reach the client is given back
//! |       |      the server asks for the reply
//! |       granted, refused with an error, or timed out
//! a place in the line
//! ```
//!
//! CLIENT UNBLOCK leads from join to answer. For a client that disconnects, or that the server redirects, withdraw and
//! forget follow join.
//!
//! [`engine::line`] decides what to do next. Its transitions change the lines and return what has to be done; the files here
//! do it. To add another way to end a wait, add a transition to the engine and call it in work.rs, or in wait.rs if the
//! server ends the wait.

mod lines;
mod wait;
mod work;

pub use lines::{has_lines, longest_work_us, oldest_wait_ms, restart_timer, waiting};
pub use wait::{answer, command_of, forget, join, withdraw};
pub use work::serve_timer;
