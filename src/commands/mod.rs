//! The commands: arguments in, reply out. What is decided is in [`engine`], what is stored in [`crate::state`].

pub mod all;
mod arguments;
pub mod definitions;
pub mod inspect;
pub mod reply;
pub mod report;
pub mod settle;
pub mod take;

use crate::error::Error;
use crate::redis::call::Call;
use crate::redis::clock;
use crate::state::KeyContext;
use engine::event::LAST_US;

/// The key of `call`, which is its first argument, at the time of the command.
fn key_ctx<'c>(call: &Call<'c>) -> Result<KeyContext<'c>, Error> {
    let name = call.key_at(1).ok_or(Error::Arity)?;
    Ok(KeyContext { ctx: call.context(), name, now_us: now_us()? })
}

/// The time of the running command, in Unix microseconds.
fn now_us() -> Result<u64, Error> {
    let now_us = clock::command_time_us();
    // Later times are no exact scores.
    if now_us > LAST_US {
        return Err(Error::Clock);
    }
    Ok(now_us)
}
