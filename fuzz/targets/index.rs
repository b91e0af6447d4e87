//! Any insertions and removals in an index of reservations, compared with a plain list of them.
#![no_main]

use arbitrary::Arbitrary;
use engine::calendar::Zones;
use engine::index::Index;
use engine::reservation::{Reservation, ReservationRef, ReservationView, YEAR_MS};
use libfuzzer_sys::fuzz_target;
use std::convert::Infallible;

#[derive(Arbitrary, Debug)]
struct IndexInput {
    steps: Vec<FuzzedStep>,
    now_us: u64,
    least: u64,
}

#[derive(Arbitrary, Debug)]
enum FuzzedStep {
    Insert { id: u8, quantity: u64, shift: u8, lease_ms: u32, end_us: u16, rule: u8, after_us: u16 },
    Remove { id: u8 },
    RemoveBut { few: u8 },
    Heal,
}

#[derive(Clone, Debug)]
struct FuzzedReservation {
    id: [u8; 1],
    quantity: u64,
    lease_ms: u64,
    /// When it stops holding, and how long after the end of its lease that is.
    end_us: u64,
    after_us: u64,
    order_us: u64,
    rule: [u8; 1],
}

const START_US: u64 = 1_795_223_799_544_558;

impl FuzzedReservation {
    fn reservation(&self) -> ReservationRef<'_> {
        Reservation {
            id: &self.id,
            quantity: self.quantity,
            lease_ms: self.lease_ms,
            lease_end_us: self.end_us - self.after_us,
            gone_us: self.end_us,
            order_us: self.order_us,
            rule: &self.rule,
        }
    }
}

fn sum(list: &[FuzzedReservation], counts: impl Fn(u64) -> bool) -> u128 {
    list.iter().filter(|one| counts(one.end_us)).map(|one| u128::from(one.quantity)).sum()
}

fn agree(index: &mut Index, list: &mut [FuzzedReservation], now_us: u64, least: u128) {
    list.sort_by_key(|one| one.id);
    assert_eq!(index.len(), list.len());
    let mut held: Vec<_> = index.iter().collect();
    held.sort_by_key(|one| one.id);
    for (one, own) in held.iter().zip(&*list) {
        assert_eq!((one.id, one.quantity, one.gone_us), (&own.id[..], own.quantity, own.end_us));
        assert_eq!((one.lease_ms, one.rule), (own.lease_ms, &own.rule[..]));
    }
    let future = |one: &&FuzzedReservation| one.reservation().start_us() > now_us;
    assert_eq!(index.has_future(now_us), list.iter().any(|one| future(&one)));
    assert_eq!(index.future(now_us, usize::MAX).len(), list.iter().filter(future).count());
    let gone = list.iter().filter(|one| one.end_us <= now_us).count();
    assert_eq!(index.len() - index.live(now_us).len(), gone);

    for us in [now_us, now_us + 9_000, now_us - 9_000, now_us] {
        let runs = list.iter().filter(|one| one.reservation().runs(us));
        assert_eq!(index.running(us), runs.count());
    }

    let live = index.live(now_us);
    assert_eq!(live.total(), sum(list, |end_us| end_us > now_us));
    let ends = || list.iter().map(|one| one.end_us).filter(|us| *us > now_us);
    assert_eq!(live.last_gone_us(), ends().max());
    let gone_by = |us: u64| sum(list, |end_us| end_us > now_us && end_us <= us);
    let expected = ends().filter(|end_us| gone_by(*end_us) >= least).min();
    let found = live.first_gone(|_, gone| Ok::<_, Infallible>(gone >= least));
    let (end_us, before) = found.unwrap_or_else(|never| match never {});
    assert_eq!(end_us, expected);
    match end_us {
        None => assert_eq!(before, live.total()),
        Some(end_us) => assert!((gone_by(end_us - 1)..gone_by(end_us)).contains(&before)),
    }
}

fuzz_target!(|input: IndexInput| {
    let (mut index, mut list) = (Index::default(), Vec::<FuzzedReservation>::new());
    let now_us = START_US + input.now_us % 80_000;
    for step in input.steps.iter().take(300) {
        match *step {
            FuzzedStep::Insert { id, quantity, shift, lease_ms, end_us, rule, after_us } => {
                let quantity = (quantity >> (shift % 64)).clamp(1, i64::MAX as u64);
                let lease_ms = u64::from(lease_ms).clamp(1, YEAR_MS);
                let (end_us, after_us) = (START_US + u64::from(end_us), u64::from(after_us));
                let (order_us, end_us) = (end_us, end_us + after_us);
                let one = FuzzedReservation {
                    id: [id],
                    quantity,
                    lease_ms,
                    end_us,
                    after_us,
                    order_us,
                    rule: [rule],
                };
                let held = list.iter().any(|other| other.id == one.id);
                assert_eq!(index.insert(&one.reservation()), !held);
                if !held {
                    list.push(one);
                }
            }
            FuzzedStep::Remove { id } => {
                let at = list.iter().position(|one| one.id == [id]);
                assert_eq!(index.remove(&[id]), at.is_some());
                at.map(|at| list.remove(at));
            }
            FuzzedStep::RemoveBut { few } => {
                for one in list.drain(usize::from(few % 16).min(list.len())..) {
                    assert!(index.remove(&one.id));
                }
            }
            FuzzedStep::Heal => {
                for one in list.iter_mut().filter(|one| one.reservation().start_us() > now_us) {
                    let seen =
                        ReservationView::at(now_us, &mut Zones::new()).see(&one.reservation());
                    (one.end_us, one.after_us) = (seen.gone_us, seen.gone_us - seen.lease_end_us);
                    assert!(index.remove(&one.id) && index.insert(&one.reservation()));
                }
            }
        }
    }
    agree(&mut index, &mut list, now_us, u128::from(input.least).max(1));
    let small = u128::from(input.least % 16).max(1);
    agree(&mut index, &mut list, now_us, small);
});
