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
//! ```text
//! registry.rs       the lines of this server, and questions about them
//! wait.rs           a single wait, from join to forget
//! work.rs           granting to the heads of lines, by commands and by the timer
//! ```
//!
//! [`engine::line`] decides what to do next. Its transitions change the lines and return what has to be done; the files here
//! do it. To add another way to end a wait, add a transition to the engine and call it in work.rs.

mod registry;
mod wait;
mod work;

pub use registry::{longest_work_us, oldest_wait_ms, restart_timer, waiting};
pub use wait::{answer, forget, withdraw};
pub use work::serve_timer;

use crate::redis::call::Call;
use crate::state::{server_window, KeyContext};
use commands::call::WaitQueue;
use commands::error::Error;
use engine::request::Request;
use registry::ask;

impl<'a> WaitQueue<'a> for Call<'a> {
    fn wake(&self, key: KeyContext<'a>) {
        work::wake(key, None);
    }

    fn release_and_wake(&self, key: KeyContext<'a>, ids: &[&[u8]]) -> Result<usize, Error> {
        let (released, emptied) = server_window::release(key, ids)?;
        work::wake(key, emptied);
        Ok(released)
    }

    fn is_barred(&self, key: KeyContext<'a>, leave: u64) -> bool {
        ask(|lines| lines.is_barred(key.db_key(), leave))
    }

    fn id_waits(&self, key: KeyContext<'a>, id: &[u8]) -> bool {
        ask(|lines| lines.id_waits(key.db_key(), id))
    }

    fn waiting_on(&self, key: KeyContext<'a>) -> u64 {
        u64::try_from(ask(|lines| lines.waiting_on(key.db_key()))).unwrap_or(u64::MAX)
    }

    fn may_block(&self) -> bool {
        self.ctx.may_block()
    }

    // Out of line, because most calls do not wait.
    #[cold]
    #[inline(never)]
    fn join(
        &self,
        key: KeyContext<'a>,
        request: &Request,
        block_ms: u64,
        wait_us: Option<u64>,
    ) -> Result<(), Error> {
        wait::join(self, key, request, block_ms, wait_us)
    }
}

/// Forgets everything before the module is unloaded. The server unloads it only while no call waits.
pub fn unload() {
    registry::forget_lines();
    wait::forget_secret();
}
