//! Compares the index with a list that is searched from end to end.

use super::*;
use crate::calendar::Zones;
use crate::period::YEAR_MS;
use crate::properties::{cases, START_US};
use crate::reservation::ReservationView;
use crate::reservations::{Reservations, MAX_GONE_DROPPED, MAX_HEALED_LEASES};
use proptest::prelude::*;
use std::convert::Infallible;

/// One reservation of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Own {
    id: Vec<u8>,
    quantity: u64,
    lease_ms: u64,
    /// The time at which it stops holding.
    gone_us: u64,
    /// The time between the end of its lease and then.
    after_us: u64,
    arrival_us: u64,
    rule: Vec<u8>,
}

impl Own {
    fn new(id: u64, quantity: u64, gone_us: u64) -> Own {
        let id = id.to_string().into_bytes();
        let rule = b"60s".to_vec();
        Own { id, quantity, lease_ms: 1, gone_us, after_us: 0, arrival_us: gone_us, rule }
    }

    fn of(one: &ReservationRef) -> Own {
        let Reservation { id, quantity, lease_ms, lease_end_us, gone_us, arrival_us, rule } = *one;
        let (id, rule, after_us) = (id.to_vec(), rule.to_vec(), gone_us - lease_end_us);
        Own { id, quantity, lease_ms, gone_us, after_us, arrival_us, rule }
    }

    fn member(&self) -> Vec<u8> {
        self.reservation().member().as_bytes().to_vec()
    }

    fn reservation(&self) -> ReservationRef<'_> {
        let Own { id, quantity, lease_ms, gone_us, after_us, arrival_us, rule } = self;
        Reservation {
            id,
            quantity: *quantity,
            lease_ms: *lease_ms,
            lease_end_us: gone_us - after_us,
            gone_us: *gone_us,
            arrival_us: *arrival_us,
            rule,
        }
    }
}

/// Returns the index of the reservation with this id that counts. There are several if another program has written the id.
fn first_with_id(list: &[Own], id: &[u8]) -> Option<usize> {
    (0..list.len()).filter(|at| list[*at].id == id).min_by_key(|at| list[*at].member())
}

fn sum<'a>(list: impl IntoIterator<Item = &'a Own>) -> u128 {
    list.into_iter().map(|one| u128::from(one.quantity)).sum()
}

/// Searches for the first reservation at which `least` or more is gone or which is gone at `from_us` or later. Returns the
/// number of reservations that were looked at, too.
fn find_enough_gone(
    search: impl FnOnce(
        &mut dyn FnMut(u64, u128) -> Result<bool, Infallible>,
    ) -> Result<EnoughGone, Infallible>,
    least: u128,
    from_us: u64,
) -> (EnoughGone, usize) {
    let mut asked = 0;
    let Ok(found) = search(&mut |gone_us, gone| {
        asked += 1;
        Ok(gone >= least || gone_us >= from_us)
    });
    (found, asked)
}

/// Checks what was found in these reservations, which are live.
fn agree_on_first(live: &[Own], least: u128, from_us: u64, gone_us: Option<u64>, gone: u128) {
    let sum_by = |us: u64| sum(live.iter().filter(|one| one.gone_us <= us));
    let enough = |gone_us: u64| sum_by(gone_us) >= least || gone_us >= from_us;
    let expected = live.iter().map(|one| one.gone_us).filter(|gone_us| enough(*gone_us)).min();
    assert_eq!(gone_us, expected);
    match expected {
        None => assert_eq!(gone, sum(live)),
        // Reservations that are gone at the same time may come in any order.
        Some(gone_us) => {
            assert!((sum_by(gone_us - 1)..sum_by(gone_us)).contains(&gone));
            assert!(gone < least || gone == sum_by(gone_us - 1));
        }
    }
}

/// Checks that the index and the list agree about everything that can be asked.
fn agree(index: &mut Index, list: &[Own], now_us: u64, least: u128, from_us: u64) {
    let future = |one: &Own| one.reservation().start_us() > now_us;
    assert_eq!(index.separate_future(now_us), list.iter().any(future));
    assert_eq!(index.len(), list.len());
    let sorted = |mut list: Vec<Own>| {
        list.sort_by_key(Own::member);
        list
    };
    assert_eq!(sorted(index.iter().map(|one| Own::of(&one)).collect()), sorted(list.to_vec()));
    for one in list {
        let first = first_with_id(list, &one.id).map(|at| &list[at]);
        assert_eq!(index.get(&one.id).as_ref().map(Own::of).as_ref(), first);
    }

    let gone = || list.iter().map(|one| one.gone_us).filter(|us| *us <= now_us);
    assert_eq!(index.first_gone_by(now_us).map(|one| one.gone_us), gone().min());

    let running = |now_us: u64| list.iter().filter(|one| one.reservation().runs(now_us)).count();
    for us in [now_us, now_us + 2_000, now_us - 2_000, from_us.min(now_us + 9_000), now_us] {
        assert_eq!(index.count_running(us), running(us));
    }

    // The live reservations that are not from the future.
    let all: Vec<Own> = list.iter().filter(|one| future(one)).cloned().collect();
    assert_eq!(sorted(index.future().map(|one| Own::of(&one)).collect()), sorted(all));
    let live = list.iter().filter(|one| one.gone_us > now_us && !future(one));
    let live: Vec<&Own> = live.collect();
    let leases = index.live(now_us);
    assert_eq!((leases.len(), leases.total()), (live.len(), sum(live.iter().copied())));
    assert_eq!(leases.last_gone_us(), live.iter().map(|one| one.gone_us).max());
    let (gone_us, gone) =
        find_enough_gone(|enough| leases.find_enough_gone(enough), least, from_us).0;
    let live: Vec<Own> = live.into_iter().cloned().collect();
    agree_on_first(&live, least, from_us, gone_us, gone);

    // After the clock was set back.
    let zones = &mut Zones::new();
    let held = Reservations::from_index(Box::new(std::mem::take(index)), now_us, None, zones);
    let seen: Vec<Own> = list
        .iter()
        .map(|one| Own::of(&ReservationView::at(now_us, zones).see(&one.reservation())))
        .filter(|one| one.gone_us > now_us)
        .collect();
    assert_eq!((held.live_len(), held.total()), (seen.len(), sum(&seen)));
    assert_eq!(held.last_gone_us(), seen.iter().map(|one| one.gone_us).max());
    let (gone_us, gone) =
        find_enough_gone(|enough| held.find_enough_gone(enough), least, from_us).0;
    agree_on_first(&seen, least, from_us, gone_us, gone);
    *index = *held.into_index().unwrap_or_default();
}

/// What is done to both.
#[derive(Clone, Debug)]
enum IndexStep {
    Insert {
        id: u64,
        quantity: u64,
        lease_ms: u64,
        gone_us: u64,
        rule: u64,
        /// It holds for one period more.
        counts: bool,
    },
    Remove(u64),
    /// Removes all but a few.
    RemoveMany(usize),
    /// Those from the future end one lease from now, as a call writes them.
    Heal,
}

/// Some ids come often, as another program may write them.
fn id() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..60, 0u64..3]
}

fn steps() -> impl Strategy<Value = Vec<IndexStep>> {
    let quantity =
        prop_oneof![8 => 1u64..9, 1 => (1u64 << 60)..(1 << 63), 1 => Just(i64::MAX as u64)];
    let lease_ms = prop_oneof![8 => 1u64..5, 1 => 1..=YEAR_MS];
    let gone_us = prop_oneof![6 => 0u64..20_000, 1 => Just(0), 1 => 0u64..u64::MAX / 2 - START_US];
    let insert = (id(), quantity, lease_ms, gone_us, 0u64..4, any::<bool>()).prop_map(
        |(id, quantity, lease_ms, gone_us, rule, counts)| {
            let gone_us = START_US - 10_000 + gone_us;
            IndexStep::Insert { id, quantity, lease_ms, gone_us, rule, counts }
        },
    );
    let step = prop_oneof![
        12 => insert,
        6 => id().prop_map(IndexStep::Remove),
        1 => (0usize..10).prop_map(IndexStep::RemoveMany),
        1 => Just(IndexStep::Heal),
    ];
    proptest::collection::vec(step, 1..150)
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn the_index_answers_as_the_list_does(
        steps in steps(),
        now_us in START_US - 12_000..START_US + 12_000,
        least in prop_oneof![8 => 1u128..60, 1 => 1u128..1 << 66],
        from_us in prop_oneof![Just(u64::MAX), START_US - 12_000..START_US + 12_000],
    ) {
        let (mut index, mut list) = (Index::default(), Vec::<Own>::new());
        for (number, step) in steps.into_iter().enumerate() {
            // The clock goes forward and back.
            let now_us = now_us + [0, 4_000, 0, 2_000][number % 4];
            match step {
                IndexStep::Insert { id, quantity, lease_ms, gone_us, rule, counts } => {
                    let after_us = if counts { (rule + 1) * 1_000 } else { 0 };
                    let rule = format!("{}ms", rule + 1).into_bytes();
                    let arrival_us = START_US + number as u64;
                    let owned = Own::new(id, quantity, gone_us + after_us);
                    let one = Own { lease_ms, after_us, arrival_us, rule, ..owned };
                    prop_assert!(index.insert(&one.reservation()));
                    prop_assert!(!index.insert(&one.reservation()), "twice");
                    prop_assert!(index.next_arrival_us(0) > arrival_us);
                    list.push(one);
                }
                IndexStep::Remove(id) => {
                    let id = id.to_string().into_bytes();
                    let removed = first_with_id(&list, &id).map(|at| list.remove(at).member());
                    let found = index.remove(&id).map(|one| one.member().as_bytes().to_vec());
                    prop_assert_eq!(found, removed);
                }
                IndexStep::RemoveMany(kept) => {
                    for one in list.drain(kept.min(list.len())..) {
                        prop_assert!(index.remove_exactly(&one.reservation()).is_some());
                    }
                }
                IndexStep::Heal => {
                    let zones = &mut Zones::new();
                    for one in list.iter_mut().filter(|one| one.reservation().is_from_future(now_us)) {
                        prop_assert!(index.remove_exactly(&one.reservation()).is_some());
                        *one = Own::of(&ReservationView::at(now_us, zones).see(&one.reservation()));
                        let after_us = one.lease_ms * 1_000 + one.after_us;
                        prop_assert_eq!(one.gone_us, now_us + after_us);
                        prop_assert!(index.insert(&one.reservation()));
                    }
                }
            }
            agree(&mut index, &list, now_us, least, from_us);
        }
        let mut built = built(&list);
        agree(&mut built, &list, now_us, least, from_us);
        // It works on as any index does.
        let newest_us = list.iter().map(|one| one.arrival_us).max();
        prop_assert_eq!(built.next_arrival_us(0), newest_us.map_or(0, |newest_us| newest_us + 1));
        while let Some(one) = list.pop() {
            prop_assert!(built.remove_exactly(&one.reservation()).is_some());
            agree(&mut built, &list, now_us, least, from_us);
        }
    }
}

impl Index {
    /// Returns the number of rules.
    fn rules(&self) -> usize {
        self.rules.len()
    }
}

/// Returns an index of all of these, built at once.
fn built(list: &[Own]) -> Index {
    let mut builder = IndexBuilder::default();
    for one in list {
        assert!(builder.add(&one.reservation()) && !builder.add(&one.reservation()));
    }
    *builder.build()
}

fn filled(number: u64) -> Index {
    let mut index = Index::default();
    for id in 0..number {
        assert!(index.insert(&Own::new(id, 1, START_US + id).reservation()));
    }
    index
}

#[test]
fn a_search_does_not_find_what_is_gone_at_this_very_moment() {
    let index = built(&[Own::new(1, 2, START_US + 5), Own::new(2, 3, START_US + 9)]);
    for (now_us, found) in [
        (START_US + 4, (Some(START_US + 5), 0)),
        (START_US + 5, (Some(START_US + 9), 0)),
        (START_US + 9, (None, 0)),
    ] {
        assert_eq!(
            find_enough_gone(|enough| index.live(now_us).find_enough_gone(enough), 1, u64::MAX).0,
            found
        );
        let last_us = Some(START_US + 9).filter(|_| now_us < START_US + 9);
        assert_eq!(index.live(now_us).last_gone_us(), last_us);
    }
}

#[test]
fn a_call_sees_what_is_live_and_drops_what_is_gone() {
    const GONE: u64 = 2 * MAX_GONE_DROPPED as u64;
    let now_us = START_US + 1_000;
    let mut list: Vec<Own> = (0..GONE).map(|id| Own::new(id, 1, START_US + id)).collect();
    let live = |id, arrival_us| Own { arrival_us, ..Own::new(id, 1, now_us + 1_000) };
    list.extend([live(GONE, START_US + 9), live(GONE + 1, START_US + 8)]);
    let last = (GONE - 1).to_string();
    let zones = &mut Zones::new();
    let mut held =
        Reservations::from_index(Box::new(built(&list)), now_us, Some(last.as_bytes()), zones);
    assert!(!held.is_changed() && !held.is_id_held());
    let live = held.list_live();
    let ids: Vec<&[u8]> = live.iter().map(|one| one.id.as_bytes()).collect();
    assert_eq!(ids, [list[GONE as usize + 1].id.as_slice(), &list[GONE as usize].id]);
    assert_eq!(held.live_len(), 2);
    // The index collects the ends of all leases when it is first asked how many run.
    let before = held.index().unwrap().bytes();
    assert_eq!(held.count_running(), 2);
    assert!(held.is_changed());
    assert!(held.index().unwrap().bytes() >= before + 16 * list.len());
    let index = held.into_index().unwrap();
    let mut held = Reservations::from_index(index, now_us, Some(last.as_bytes()), zones);
    assert_eq!((held.count_running(), held.is_changed()), (2, false));
    // It drops the reservation with that id, and then those that were gone first.
    let mut dropped = Vec::new();
    held.clean(zones, MAX_HEALED_LEASES, &mut |old, new| {
        assert!(new.is_none());
        dropped.push(Reservation::decode(old.as_bytes()).unwrap().id.to_vec());
    });
    let expected = std::iter::once(last.into_bytes());
    let expected = expected.chain(list.iter().take(MAX_GONE_DROPPED).map(|one| one.id.clone()));
    assert!(held.is_changed() && dropped.into_iter().eq(expected));
    // One that is live is held, and stays.
    let id = list[GONE as usize].id.clone();
    let mut held =
        Reservations::from_index(Box::new(built(&list[GONE as usize..])), now_us, Some(&id), zones);
    held.clean(zones, MAX_HEALED_LEASES, &mut |_, _| panic!("nothing is gone"));
    assert!(held.is_id_held() && held.find_live(&id).is_some());
}

#[test]
fn a_search_looks_at_few_of_many() {
    // Leases of one length end in their order of arrival, for which a plain tree would be a list.
    const NUMBER: u64 = 20_000;
    let index = filled(NUMBER);
    for least in [1, 2, 777, 10_000, 19_999, 20_000] {
        let (found, asked) = find_enough_gone(
            |enough| index.live(START_US - 1).find_enough_gone(enough),
            least,
            u64::MAX,
        );
        assert_eq!(found, (Some(START_US + least as u64 - 1), least - 1));
        assert!(asked <= 60, "{asked} were looked at");
    }
    let (found, _) = find_enough_gone(
        |enough| index.live(START_US - 1).find_enough_gone(enough),
        20_001,
        u64::MAX,
    );
    assert_eq!(found, (None, 20_000));
}

/// Callers choose leases and ids, but whatever they choose, no tree is deep or takes much memory.
#[test]
fn no_order_of_ends_makes_the_tree_deep_or_large() {
    const NUMBER: u64 = 61_000;
    // In order, in reverse order, from both ends, and all over.
    let orders: [fn(u64) -> u64; 4] = [
        |id| id,
        |id| NUMBER - id,
        |id| if id % 2 == 0 { id } else { 2 * NUMBER - id },
        |id| id * 40_503 % NUMBER,
    ];
    for (which, order) in orders.iter().enumerate() {
        let all: Vec<Own> =
            (0..NUMBER).map(|id| Own::new(id, 1, START_US + 1 + order(id))).collect();
        assert_eq!(built(&all).order.shape().0, 4, "built {which}");
        let mut index = Index::default();
        for one in &all {
            assert!(index.insert(&one.reservation()));
        }
        let (depth, nodes, room) = index.order.shape();
        assert!(depth <= 6 && nodes <= all.len() / 6, "{which}: {depth} deep, {nodes} nodes");
        assert!(room <= 2 * all.len(), "{which}: room for {room}");
        assert!(index.live(u64::MAX).is_empty());
        // Two of 32 stay, so that most of the tree is empty, and no node is.
        let stays = |end_us: u64| (end_us - START_US) % 32 < 2;
        for one in all.iter().filter(|one| !stays(one.gone_us)) {
            assert!(index.remove(&one.id).is_some());
        }
        let (depth, _, room) = index.order.shape();
        assert!(depth <= 6 && room <= 5 * index.len(), "{which}: {depth} deep, room for {room}");
        assert_eq!(index.live(0).total(), index.len() as u128);
        for one in all.iter().filter(|one| stays(one.gone_us)) {
            assert!(index.remove(&one.id).is_some());
        }
        assert_eq!(index.order.first(), None);
        assert_eq!(index.live(0).total(), 0);
    }
}

#[test]
fn many_that_are_settled_at_once_are_settled_as_one_after_the_other() {
    const NUMBER: u64 = 5_000;
    let now_us = START_US + 100;
    for settled in [1_000, 1_100, 2_000, 4_990, NUMBER] {
        // Some are gone by then, some are from the future, and one id is there twice.
        let own = |id| Own { lease_ms: 1 + id % 3, ..Own::new(id, 1, START_US + id) };
        let mut list: Vec<Own> = (0..NUMBER).map(own).collect();
        list.push(Own { quantity: 2, ..own(700) });
        let (mut index, mut other) = (built(&list), built(&list));
        let ids: Vec<Vec<u8>> =
            (0..settled).chain([3, 700, NUMBER]).map(|id| id.to_string().into_bytes()).collect();
        let ids: Vec<&[u8]> = ids.iter().map(Vec::as_slice).collect();
        index.separate_future(now_us);
        let settle = |index: &mut Index, ids: &[&[u8]]| {
            let mut settled = Settled::new();
            index.settle(ids, now_us, &mut settled);
            settled.iter().map(|one| one.member().as_bytes().to_vec()).collect::<Vec<_>>()
        };
        let all_at_once = settle(&mut index, &ids);
        let one_by_one: Vec<_> = ids.iter().flat_map(|id| settle(&mut other, &[id])).collect();
        assert_eq!(all_at_once.len() as u64, settled - 101 + 1);
        assert_eq!(all_at_once, one_by_one);
        list.retain(|one| !all_at_once.contains(&one.member()));
        agree(&mut index, &list, now_us, 777, u64::MAX);
    }
}

#[test]
fn an_order_is_behind_the_newest_and_not_before_now() {
    let mut index = Index::default();
    assert_eq!(index.next_arrival_us(START_US), START_US);
    assert_eq!(index.next_arrival_us(0), 0);
    assert!(index.insert(&Own::new(1, 1, START_US).reservation()));
    for (now_us, arrival_us) in [
        (0, START_US + 1),
        (START_US, START_US + 1),
        (START_US + 1, START_US + 1),
        (START_US + 9, START_US + 9),
    ] {
        assert_eq!(index.next_arrival_us(now_us), arrival_us);
    }
    let last = Own { arrival_us: u64::MAX, ..Own::new(2, 1, START_US) };
    assert!(index.insert(&last.reservation()));
    assert_eq!(index.next_arrival_us(START_US), u64::MAX);
}

#[test]
fn removed_reservations_take_no_memory() {
    const NUMBER: u64 = 4_000;
    let mut index = filled(NUMBER);
    let (small, large) = (filled(8).bytes(), index.bytes());
    assert!(large > 100 * small);
    assert!(large >= NUMBER as usize * std::mem::size_of::<IndexedReservation>());
    for left in (8..NUMBER).rev() {
        let before = index.bytes();
        assert!(index.remove(left.to_string().as_bytes()).is_some());
        assert!(index.bytes() <= before, "a removal takes memory");
    }
    assert_eq!(index.len(), 8);
    assert!(
        index.bytes() <= 8 * small,
        "{} bytes for eight, {small} if they were alone",
        index.bytes()
    );
    // They are still in order.
    let (found, _) =
        find_enough_gone(|enough| index.live(START_US).find_enough_gone(enough), 3, u64::MAX);
    assert_eq!(found, (Some(START_US + 3), 2));
    assert_eq!(index.len() - index.live(START_US + 2).len(), 3);
}

/// If every rule that was ever used stayed in a list, each new reservation would search all of them.
#[test]
fn rules_that_nobody_uses_are_forgotten() {
    let mut index = filled(8);
    let before = index.bytes();
    let mut rule = |number: u64| {
        let rule = format!("{number}ms").into_bytes();
        let one = Own { rule, ..Own::new(9, 1, START_US) };
        assert!(index.insert(&one.reservation()));
        assert_eq!(index.get(b"9").unwrap().rule, one.rule);
        assert!(index.remove(b"9").is_some());
        index.rules()
    };
    for number in 1..=1_000 {
        assert_eq!(rule(number), 1);
    }
    assert_eq!(index.get(b"7").unwrap().rule, b"60s");
    assert!(index.bytes() <= before + 1_000);
}
