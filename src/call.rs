//! A call on the server, as the commands see it.

use crate::blocking;
use crate::environment::{policies, ServerEnvironment};
use crate::observe::{self, ServerNotes};
use crate::redis::call::Call;
use crate::redis::clock;
use crate::redis::context::Context;
use crate::redis::spread::{spread, Spread};
use crate::state::reservations::ReadBudget;
use crate::state::window::EmptiedKey;
use crate::state::{inspect, new_id, window, KeyContext, ServerKey};
use crate::stats;
use commands::call::{ServerCall, Words};
use commands::decide::Keyspace;
use commands::error::Error;
use commands::inspect::KeyContents;
use commands::policies::ListedPolicy;
use engine::decide::Mode;
use engine::heavy::HeavyRow;
use engine::request::Request;
use engine::reservation::{HeldReservation, Id};
use engine::settle::Applied;
use std::ops::Range;

impl<'a> Words<'a> for Call<'a> {
    fn len(&self) -> usize {
        Call::len(self)
    }
    fn word(&self, at: usize) -> Option<&'a [u8]> {
        self.argument(at)
    }
}

impl<'a> Keyspace for Call<'a> {
    type Key = KeyContext<'a>;
    type Store = ServerKey<'a, 'a>;
    fn store(&self, key: KeyContext<'a>, mode: Mode) -> ServerKey<'a, 'a> {
        ServerKey::in_mode(key, mode)
    }

    fn new_id(&self) -> Id {
        new_id()
    }
    fn count_dropped(&self, number: usize) {
        stats::count_lapsed(number);
    }
}

impl<'a> ServerCall<'a> for Call<'a> {
    type Environment = ServerEnvironment;
    type Sink = Context<'a>;
    type Emptied = Option<EmptiedKey<'a>>;
    type Notes = ServerNotes;
    fn environment(&self) -> ServerEnvironment {
        ServerEnvironment
    }
    fn sink(&self) -> Context<'a> {
        self.context()
    }
    fn now_us(&self) -> u64 {
        clock::command_time_us()
    }
    fn key(&self, at: usize, now_us: u64) -> Option<KeyContext<'a>> {
        Some(KeyContext { ctx: self.context(), name: self.key_at(at)?, now_us })
    }

    fn check_keys(&self, keys: Range<usize>) -> Result<(), Error> {
        ReadBudget::refill();
        match spread(self, keys) {
            Spread::Together => Ok(()),
            Spread::AcrossSlots => Err(Error::CrossSlot),
            Spread::AcrossNodes => Err(Error::TryAgain),
        }
    }
    fn store_of_several(&self, key: KeyContext<'a>, mode: Mode) -> ServerKey<'a, 'a> {
        ServerKey { of_several: true, ..ServerKey::in_mode(key, mode) }
    }

    fn release(
        &self,
        key: KeyContext<'a>,
        ids: &[&[u8]],
    ) -> Result<(usize, Option<EmptiedKey<'a>>), Error> {
        window::release(key, ids)
    }

    fn held(&self, key: KeyContext<'a>) -> Result<Vec<HeldReservation>, Error> {
        window::list_held(key)
    }

    fn contents(&self, key: KeyContext<'a>) -> Result<KeyContents, Error> {
        inspect::contents(key)
    }
    fn wake(&self, key: KeyContext<'a>) {
        blocking::wake(key, None);
    }
    fn wake_after(&self, key: KeyContext<'a>, emptied: Option<EmptiedKey<'a>>) {
        blocking::wake(key, emptied);
    }
    fn is_barred(&self, key: KeyContext<'a>, leave: u64) -> bool {
        blocking::is_barred(key, leave)
    }
    fn id_waits(&self, key: KeyContext<'a>, id: &[u8]) -> bool {
        blocking::id_waits(key, id)
    }

    fn waiting_on(&self, key: KeyContext<'a>) -> u64 {
        blocking::waiting_on(key)
    }

    fn may_block(&self) -> bool {
        self.context().may_block()
    }

    // Kept out of the way of the many calls that do not wait.
    #[cold]
    #[inline(never)]
    fn join(
        &self,
        key: KeyContext<'a>,
        request: &Request,
        block_ms: u64,
        wait_us: Option<u64>,
    ) -> Result<(), Error> {
        blocking::join(self, key, request, block_ms, wait_us)
    }
    fn notes(&self) -> ServerNotes {
        ServerNotes
    }

    fn count_settled(&self, how: Applied, number: u64) {
        match how {
            Applied::NotHeld => {}
            Applied::Released => stats::RELEASED.add(number),
            Applied::Counted => stats::APPLIED.add(number),
        }
    }

    fn policies(&self) -> Vec<ListedPolicy> {
        policies(|table| table.list())
    }

    fn most_denied(&self, most: usize) -> Vec<HeavyRow> {
        observe::most_denied(clock::command_time_us(), most)
    }

    fn forget_denied(&self) {
        observe::forget_top();
    }
}
