//! The calls of this server, as the commands see them.

use crate::environment::ServerEnvironment;
use crate::keys::ServerKeys;
use crate::redis::call::Call;
use crate::redis::clock;
use crate::redis::context::Context;
use crate::redis::spread::{spread, Spread};
use crate::state::reservations::ReadBudget;
use crate::state::KeyContext;
use commands::call::{ServerCall, Words};
use commands::error::Error;
use std::ops::Range;

impl<'a> Words<'a> for Call<'a> {
    fn len(&self) -> usize {
        Call::len(self)
    }

    fn word(&self, at: usize) -> Option<&'a [u8]> {
        self.argument(at)
    }
}

impl<'a> ServerCall<'a> for Call<'a> {
    type Key = KeyContext<'a>;
    type Keys = ServerKeys<'a, 'a>;
    type Environment = ServerEnvironment;
    type Sink = Context<'a>;

    fn keys(&self) -> ServerKeys<'a, 'a> {
        ServerKeys::default()
    }

    fn keys_of_several(&self, words: Range<usize>) -> Result<ServerKeys<'a, 'a>, Error> {
        match spread(self, words) {
            Spread::Together => {}
            Spread::AcrossSlots => return Err(Error::CrossSlot),
            Spread::AcrossNodes => return Err(Error::TryAgain),
        }
        ReadBudget::refill();
        Ok(ServerKeys { of_several: true, ..ServerKeys::default() })
    }

    fn environment(&self) -> ServerEnvironment {
        ServerEnvironment
    }

    fn sink(&self) -> Context<'a> {
        self.ctx
    }

    fn now_us(&self) -> u64 {
        clock::command_time_us()
    }

    fn key(&self, at: usize, now_us: u64) -> Option<KeyContext<'a>> {
        Some(KeyContext { ctx: self.ctx, name: self.key_at(at)?, now_us })
    }
}
