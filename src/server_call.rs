//! The calls of this server and the sinks of their replies, as the commands see them.

use crate::blocking;
use crate::environment::ServerEnvironment;
use crate::redis::call::Call;
use crate::redis::clock;
use crate::redis::context::Context;
use crate::redis::spread::{spread, Spread};
use crate::state::{KeyContext, ServerKeyspace};
use commands::arguments::Words;
use commands::call::ServerCall;
use commands::error::Error;
use commands::reply::{ReplySink, TakeCall};
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
    type Keyspace = ServerKeyspace<'a>;
    type Environment = ServerEnvironment;
    type Sink = Context<'a>;

    fn keyspace(&self) -> ServerKeyspace<'a> {
        ServerKeyspace::default()
    }

    fn keyspace_for_all(&self, words: Range<usize>) -> Result<ServerKeyspace<'a>, Error> {
        let keys = words.len();
        match spread(self, words) {
            Spread::Together => Ok(ServerKeyspace::for_keys(keys)),
            Spread::AcrossSlots => Err(Error::CrossSlot),
            Spread::AcrossNodes => Err(Error::SlotMigrating),
        }
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

    fn may_block(&self) -> bool {
        self.ctx.may_block()
    }

    fn join(
        &self,
        key: KeyContext<'a>,
        take_call: &TakeCall,
        block_ms: u64,
        wait_us: u64,
    ) -> Result<(), Error> {
        blocking::join(self, key, take_call, block_ms, wait_us)
    }
}

impl ReplySink for Context<'_> {
    fn array(&self, len: usize) {
        self.reply_array(len);
    }

    fn map(&self, fields: usize) {
        self.reply_map(fields);
    }

    fn integer(&self, value: i64) {
        self.reply_integer(value);
    }

    fn text(&self, text: &[u8]) {
        self.reply_text(text);
    }

    fn nil(&self) {
        self.reply_nil();
    }
}
