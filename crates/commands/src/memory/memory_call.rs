//! The calls to a server in memory, as the commands see them.

use super::value::ValueBuilder;
use super::{db_key, top_keys, MemoryServer, Ticket};
use crate::arguments::Words;
use crate::call::ServerCall;
use crate::environment::Environment;
use crate::error::Error;
use crate::keyspace::{Inspection, Keyspace};
use crate::policies::{Policies, Policy, PolicyVerdict};
use crate::report::MAX_TOP_KEY;
use crate::settings::NumberSettings;
use crate::waiting::{WaitingCall, WaitingKeyspace};
use engine::calendar::Zone;
use engine::line::{deadline_us, NewWaiter};
use engine::memory::{Fields, MemoryKey, MemoryWindow};
use engine::reservation::{id_from_random, Id};
use engine::store::{Access, BucketKey, KeyState, Store, WindowKey};
use engine::throttle::Rate;
use engine::top_keys::TopRow;
use engine::{AwaitedLimit, DbKey};
use std::cell::{Cell, Ref};
use std::ops::Range;
use std::sync::Arc;

pub(super) struct MemoryCall<'a> {
    pub(super) server: &'a MemoryServer,
    words: &'a [&'a [u8]],
    reply: &'a ValueBuilder,
    pub(super) ticket: Cell<Option<Ticket>>,
}

impl<'a> MemoryCall<'a> {
    pub(super) fn new(
        server: &'a MemoryServer,
        words: &'a [&'a [u8]],
        reply: &'a ValueBuilder,
    ) -> MemoryCall<'a> {
        MemoryCall { server, words, reply, ticket: Cell::new(None) }
    }
}

impl Environment for &MemoryServer {
    fn numbers(&self) -> &NumberSettings {
        &self.numbers
    }

    fn scale_rate(&self, max_burst: u64, count: u64, period_ms: u64) -> Option<Rate> {
        self.share.scale_rate(max_burst, count, period_ms)
    }

    fn scale_leave(&self, leave: u64) -> u64 {
        self.share.scale_leave(leave)
    }

    fn scale_limit(&self, limit: u64) -> u64 {
        self.share.scale_limit(limit)
    }

    fn policies_only(&self) -> bool {
        self.policies_only.get()
    }

    fn chosen_timezone(&self) -> Option<Zone> {
        self.timezone
    }

    fn zone_by_name(&self, name: &[u8]) -> Option<Zone> {
        self.keys.zones(|zones| zones.zone_by_name(name))
    }

    fn policies(&self) -> Policies {
        self.policies.policies().clone()
    }

    fn policy(&self, name: &[u8]) -> Option<Arc<Policy>> {
        self.policies.policy_by_name(name)
    }
}

impl<'a> Words<'a> for MemoryCall<'a> {
    fn len(&self) -> usize {
        self.words.len()
    }

    fn word(&self, at: usize) -> Option<&'a [u8]> {
        self.words.get(at).copied()
    }
}

impl<'a> Keyspace for &'a MemoryServer {
    type Key = DbKey<'a>;
    type Store<'k>
        = MemoryKey<'a>
    where
        Self: 'k;

    fn store(&self, key: DbKey<'a>, _access: Access) -> MemoryKey<'a> {
        self.keys.key(key.name, self.clock.wall_us)
    }

    fn new_id(&self) -> Id {
        let mut random = [0; 16];
        (self.random.borrow_mut())(&mut random);
        Id::from(&id_from_random(random)[..])
    }

    fn inspect(&self, key: DbKey<'a>) -> Result<Option<Inspection<MemoryWindow<'a>>>, Error> {
        let mut store = self.store(key, Access::Read);
        let expires_at_ms = self.keys.expires_at_ms(key.name, self.clock.wall_us);
        let state = match store.bucket().read() {
            Ok(None) => return Ok(None),
            Ok(Some(stored)) => KeyState::Bucket(stored),
            Err(_) => {
                let mut window = store.window();
                window.read(None).map_err(|_| Error::NotLimit)?;
                KeyState::Window(window)
            }
        };
        Ok(Some((state, expires_at_ms)))
    }

    fn count_applied(&self, _number: u64) {}

    fn count_released(&self, _number: u64) {}

    fn count_policy(&self, id: u64, verdict: PolicyVerdict) {
        self.policies.count(id, verdict);
    }

    fn note_denial(&self, key: DbKey) {
        let name = key.name.get(..MAX_TOP_KEY).unwrap_or(key.name);
        self.most_denied.borrow_mut().add(DbKey { name, ..key }, self.clock.wall_us);
    }

    fn most_denied(&self, now_us: u64, count: usize) -> Vec<TopRow> {
        self.most_denied.borrow_mut().top(now_us, count)
    }

    fn forget_denials(&self) {
        self.most_denied.replace(top_keys(&self.numbers));
    }
}

impl<'a> ServerCall<'a> for MemoryCall<'a> {
    type Key = DbKey<'a>;
    type Keyspace = &'a MemoryServer;
    type Environment = &'a MemoryServer;
    type Hash = Option<Ref<'a, Fields>>;
    type Sink = &'a ValueBuilder;

    fn keyspace(&self) -> &'a MemoryServer {
        self.server
    }

    fn keyspace_for_all(&self, _words: Range<usize>) -> Result<&'a MemoryServer, Error> {
        Ok(self.server)
    }

    fn environment(&self) -> &'a MemoryServer {
        self.server
    }

    fn sink(&self) -> &'a ValueBuilder {
        self.reply
    }

    fn now_us(&self) -> u64 {
        self.server.clock.wall_us
    }

    fn key(&self, at: usize, _now_us: u64) -> Option<DbKey<'a>> {
        self.word(at).map(db_key)
    }

    fn open_hash(&self, key: DbKey<'a>) -> Result<Option<Ref<'a, Fields>>, Error> {
        Ok(self.server.keys.hash(key.name, self.server.clock.wall_us)?)
    }

    fn field(&self, hash: &Self::Hash, name: &[u8]) -> Option<impl AsRef<[u8]>> {
        hash.as_ref()?.get(name)
    }

    fn may_block(&self) -> bool {
        true
    }

    fn join(
        &self,
        key: DbKey<'a>,
        call: WaitingCall,
        block_ms: u64,
        AwaitedLimit { index, wait_us }: AwaitedLimit,
    ) -> Result<(), Error> {
        let max_waiters = self.server.numbers.max_waiters.get();
        let call = Arc::new(call);
        let turn = call.turn(index).ok_or(Error::internal())?;
        let admitted = self.server.change_lines(|lines, now_us| {
            let ticket = lines.admit(max_waiters)?;
            let deadline_us = deadline_us(now_us, block_ms);
            let (ids, handle) = (call.ids(), ());
            let new_waiter =
                NewWaiter { call: call.clone(), turn, ids, handle, deadline_us, wait_us };
            lines.join(ticket, key, new_waiter, now_us);
            Some(ticket)
        });
        self.ticket.set(Some(admitted.ok_or(Error::TooManyWaiters)?));
        Ok(())
    }
}
