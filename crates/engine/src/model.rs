//! Single steps for tests, models and fuzz targets, which keep the state themselves. The product is built without it.

use crate::calendar::Zones;
use crate::decide::{read, Mode, Part, PartState, WindowState};
use crate::decision::{Ask, Decision};
use crate::memory::Zset;
use crate::refusal::Refusal;
use crate::request::{Limit, NewReservation, Request, WindowLimit};
use crate::reservation::Id;
use crate::reservations::{Reservations, SortedHolds};
use crate::rule::{Rule, RuleNow, RuleText};
use crate::settle::{self, Settling};
use crate::store::{BucketKey, EmptiedKey, Settlement, Store, WindowEdit, WindowKey};
use crate::throttle::{Bucket, BucketEdit, Rate, StoredBucket};
use crate::window::{EventEdit, WindowCount};
use std::cell::{RefCell, RefMut};
use std::convert::Infallible;
use std::slice;

pub mod window_world;

/// The start of tests in Unix microseconds: 21 November 2026, 01:16:39.544558 UTC. It is not the start of a millisecond or
/// of a period.
pub const START_US: u64 = 1_795_223_799_544_558;

/// Decides a request on one key, and writes the result. With `barred` a waiter comes first.
///
/// # Errors
///
/// Those of [`read`], [`Found::judge`](crate::Found::judge) and [`Judged::plan`](crate::Judged::plan).
pub fn decide<S: Store>(
    store: S,
    request: &Request,
    barred: bool,
    mode: Mode,
    new_id: impl FnMut() -> Id,
) -> Result<Decision, S::Error> {
    let mut part = Part::new(store, request, 0, barred);
    let plan = read(slice::from_mut(&mut part))?.judge()?.plan(mode, new_id)?;
    let decision = plan.decision();
    plan.write();
    Ok(decision)
}

/// Settles or renews a reservation. Returns whether it is held.
///
/// # Errors
///
/// Those of [`settle::plan`].
pub fn settle<S: Store>(mut store: S, id: &Id, settling: Settling) -> Result<bool, S::Error> {
    let mut window = store.window();
    let ids = [id.as_bytes()];
    let settlement = settle::plan(&store, &mut window, &ids, settling)?.write(window);
    if let Some(emptied) = settlement.emptied {
        emptied.delete();
    }
    Ok(settlement.number > 0)
}

/// Returns the bucket of `rate` at `now_us` Unix microseconds with the `stored` state. `None` if there is no key.
pub fn bucket(rate: &Rate, stored: Option<StoredBucket>, now_us: u64) -> Bucket<'_> {
    let mut bucket = Bucket::full(rate, now_us);
    if let Some(stored) = stored {
        bucket.set(stored);
    }
    bucket
}

/// Returns the decision of one call on the bucket `stored`, and the edit of the bucket.
///
/// # Errors
///
/// [`Refusal::DebtTooLong`].
pub fn throttle(
    rate: &Rate,
    stored: Option<StoredBucket>,
    now_us: u64,
    ask: &Ask,
) -> Result<(Decision, BucketEdit), Refusal> {
    let bucket = bucket(rate, stored, now_us);
    let verdict = bucket.judge(ask, false)?;
    let (verdict, after, edit) = match bucket.grant(ask, verdict) {
        (after, edit) if verdict.allowed() => (verdict, after, edit),
        _ => bucket.deny(ask, verdict, None),
    };
    Ok((after.decision(verdict), edit))
}

pub fn stored_after(stored: Option<StoredBucket>, edit: BucketEdit) -> Option<StoredBucket> {
    match edit {
        BucketEdit::Keep => stored,
        BucketEdit::Store(stored) => Some(stored),
        BucketEdit::Delete => None,
    }
}

/// A command with its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelCommand {
    /// RL.WINDOW
    Count,
    /// RL.WINDOW COUNTDENIED
    CountDenied,
    /// RL.ACQUIRE with a lease of this many milliseconds
    Hold(u64),
    /// RL.WINDOW_RO
    Look,
}

/// A call on the events of a window, next to leases that a model keeps itself.
#[derive(Clone, Copy, Debug)]
pub struct ModelCall {
    pub rule_now: RuleNow,
    /// The largest sum of counted events and held reservations at one time.
    pub limit: u64,
    /// The most entries of events that are live at one time.
    pub max_entries: u32,
    /// About how many entries from the future the call merges at most.
    pub max_healed: usize,
    pub ask: Ask,
    pub kind: ModelCommand,
    /// A waiter comes first.
    pub barred: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct ModelReply {
    pub decision: Decision,
    /// The sum of the counted events before the call.
    pub counted: u64,
    pub window_count: WindowCount,
    /// The edit that was written, if there was one.
    pub edit: Option<EventEdit>,
    /// The call was denied and counted.
    pub denial_counted: bool,
}

impl ModelCall {
    /// Makes the call on the events in `zset` and on `leases`.
    ///
    /// # Errors
    ///
    /// [`Refusal::Foreign`] and [`Refusal::SumTooLarge`].
    pub fn make(&self, zset: &mut Zset, leases: &SortedHolds) -> Result<ModelReply, Refusal> {
        let ModelCall { rule_now, limit, max_entries, max_healed, ask, kind, .. } = *self;
        // The rule and the period of the lease are the model's.
        let window = WindowLimit { limit, rule: Rule::Semaphore, max_entries };
        let limit = match kind {
            ModelCommand::Hold(lease_ms) => {
                let reserve = NewReservation {
                    lease_ms,
                    count_lapsed: false,
                    id: None,
                    max_reservations: u64::MAX,
                };
                Limit::Reserve(window, reserve)
            }
            ModelCommand::Count | ModelCommand::CountDenied | ModelCommand::Look => {
                Limit::Window(window)
            }
        };
        let count_denied = kind == ModelCommand::CountDenied;
        let request = Request { ask, count_denied, ..Request::new(limit) };
        let set = RefCell::new(std::mem::take(zset));
        let done = self.run(ModelKey { rule_now, max_healed, set: &set, leases }, &request);
        *zset = set.into_inner();
        done
    }

    fn run(&self, key: ModelKey, request: &Request) -> Result<ModelReply, Refusal> {
        let is_look = self.kind == ModelCommand::Look;
        let part = || Part::new(key, request, 0, self.barred);
        let new_id = || Id::from(&b"model"[..]);
        let mut looked = part();
        let plan = read(slice::from_mut(&mut looked))?.judge()?.plan(Mode::Look, new_id)?;
        let denies = !is_look && !self.barred && !plan.decision().allowed();
        let window = window_state(&looked)?;
        let counted = window.before.count.counted();
        let denial_counted = denies && window.counts_denial();
        drop(looked);
        let mut part = part();
        let mode = if is_look { Mode::Look } else { Mode::Final };
        let plan = read(slice::from_mut(&mut part))?.judge()?.plan(mode, new_id)?;
        let decision = plan.decision();
        plan.write();
        let window = window_state(&part)?;
        let events = window.change.as_ref().map(|change| change.events);
        Ok(ModelReply {
            decision,
            counted,
            window_count: events.map_or(window.before.count, |events| events.after),
            edit: events.map(|events| events.edit),
            denial_counted,
        })
    }
}

fn window_state<'p, 'm>(
    part: &'p Part<'m, ModelKey<'m>>,
) -> Result<&'p WindowState<'m, ModelKey<'m>>, Refusal> {
    match &part.state {
        PartState::Window(window) => Ok(window),
        PartState::Bucket(_) => Err(Refusal::NotWindow),
    }
}

#[derive(Clone, Copy)]
struct ModelKey<'m> {
    rule_now: RuleNow,
    max_healed: usize,
    set: &'m RefCell<Zset>,
    leases: &'m SortedHolds,
}

/// A window whose reservations are a model's.
struct ModelWindow<'m> {
    set: RefMut<'m, Zset>,
    leases: Reservations,
}

/// The bucket of a store that has none.
struct NoBucket;

impl<'m> Store for ModelKey<'m> {
    type Error = Refusal;
    type Bucket = NoBucket;
    type Window = ModelWindow<'m>;

    fn now_us(&self) -> u64 {
        self.rule_now.now_us()
    }

    fn zones<T>(&self, body: impl FnOnce(&mut Zones) -> T) -> T {
        body(&mut Zones::new())
    }

    fn rule_now(&self, _rule: &Rule) -> Option<RuleNow> {
        Some(self.rule_now)
    }

    fn expires_us(&self, _rule: &Rule, event_us: u64) -> Option<u64> {
        Some(self.rule_now.expires_us(event_us))
    }

    fn max_healed(&self) -> usize {
        self.max_healed
    }

    fn write_rule(&self, _rule: &Rule) -> RuleText {
        RuleText::from(&b"-"[..])
    }

    fn parse_rule(&self, _text: &[u8]) -> Option<Rule> {
        None
    }

    fn bucket(self) -> NoBucket {
        NoBucket
    }

    fn window(&mut self) -> ModelWindow<'m> {
        ModelWindow { set: self.set.borrow_mut(), leases: Reservations::from(self.leases.clone()) }
    }
}

impl BucketKey for NoBucket {
    type Error = Refusal;

    fn read(&mut self) -> Result<Option<StoredBucket>, Refusal> {
        Err(Refusal::NotBucket)
    }

    fn write(&mut self, _edit: BucketEdit) {}
}

impl WindowKey for ModelWindow<'_> {
    type Error = Refusal;
    type Events = Zset;
    type Emptied = Infallible;

    fn read(&mut self, _id: Option<&[u8]>) -> Result<(), Refusal> {
        Ok(())
    }

    fn reservations(&self) -> &Reservations {
        &self.leases
    }

    fn reservations_mut(&mut self) -> &mut Reservations {
        &mut self.leases
    }

    fn split(&mut self) -> (&mut Zset, &Reservations) {
        (&mut self.set, &self.leases)
    }

    fn write(&mut self, edit: WindowEdit) -> Settlement<Infallible> {
        self.set.apply(edit.events);
        Settlement { number: 0, emptied: None }
    }
}
