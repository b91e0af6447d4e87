//! The calls of this server, the settings that they refer to and the sinks of their replies, as the commands see them.

use crate::keys::{KeyContext, ServerKeyspace};
use crate::redis::call::Call;
use crate::redis::clock;
use crate::redis::context::Context;
use crate::redis::key::{KeyValue, ReadKey};
use crate::redis::spread::{spread, Spread};
use crate::state::State;
use crate::waiting;
use commands::arguments::Words;
use commands::call::ServerCall;
use commands::environment::Environment;
use commands::error::Error;
use commands::policies::{Policies, Policy};
use commands::reply::ReplySink;
use commands::settings::NumberSettings;
use commands::waiting::WaitingCall;
use engine::calendar::Zone;
use engine::AwaitedLimit;
use std::ops::Range;
use std::sync::Arc;

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
    type Environment = &'static State;
    type Hash = ReadKey<'a>;
    type Sink = Context<'a>;

    fn keyspace(&self) -> ServerKeyspace<'a> {
        ServerKeyspace::new(State::get())
    }

    fn keyspace_for_all(&self, words: Range<usize>) -> Result<ServerKeyspace<'a>, Error> {
        let keys = words.len();
        match spread(self, words) {
            Spread::Together => Ok(self.keyspace().for_keys(keys)),
            Spread::AcrossSlots => Err(Error::CrossSlot),
            Spread::AcrossNodes => Err(Error::SlotMigrating),
        }
    }

    fn environment(&self) -> &'static State {
        State::get()
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

    fn open_hash(&self, key_ctx: KeyContext<'a>) -> Result<ReadKey<'a>, Error> {
        let key = ReadKey::open(key_ctx.ctx, key_ctx.name);
        match key.value() {
            KeyValue::Empty | KeyValue::Hash => Ok(key),
            _ => Err(Error::NotHash),
        }
    }

    fn field(&self, hash: &ReadKey<'a>, name: &[u8]) -> Option<impl AsRef<[u8]>> {
        hash.field(name)
    }

    fn may_block(&self) -> bool {
        self.ctx.may_block()
    }

    fn join(
        &self,
        key: KeyContext<'a>,
        waiting_call: WaitingCall,
        block_ms: u64,
        awaited: AwaitedLimit,
    ) -> Result<(), Error> {
        waiting::join(State::get(), self, key, waiting_call, block_ms, awaited)
    }
}

impl Environment for &State {
    fn numbers(&self) -> &NumberSettings {
        &self.numbers
    }

    fn policies_only(&self) -> bool {
        self.policies_only.get()
    }

    fn chosen_timezone(&self) -> Option<Zone> {
        self.timezone.get()
    }

    fn zone_by_name(&self, name: &[u8]) -> Option<Zone> {
        self.zones.with(|zones| zones.zone_by_name(name))
    }

    fn policies(&self) -> Policies {
        self.policies.with(|table| table.policies().clone())
    }

    fn policy(&self, name: &[u8]) -> Option<Arc<Policy>> {
        self.policies.with(|table| table.policy_by_name(name))
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
