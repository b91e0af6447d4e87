use super::*;
use engine::reservation::Reservation;

fn index(reservations: usize) -> Box<Index> {
    let mut index = Box::<Index>::default();
    for number in 0..reservations as u64 {
        let id = number.to_string();
        let (id, rule) = (id.as_bytes(), &b"-"[..]);
        let (quantity, lease_ms, lease_end_us, arrival_us) = (1, 1, number, number);
        let gone_us = lease_end_us;
        let one = Reservation { id, quantity, lease_ms, lease_end_us, gone_us, arrival_us, rule };
        assert!(index.insert(&one));
    }
    index
}

fn finding(reservations: usize) -> Finding {
    Finding::Index(index(reservations))
}

/// The number of reservations in the index of a key that is taken out.
fn taken(all: &mut Indexes, db: i32, key: &[u8], len: usize) -> Option<usize> {
    match all.take(db, key, len)? {
        Finding::Index(index) => Some(index.len()),
        Finding::Foreign => panic!("foreign"),
    }
}

fn key(number: usize) -> Vec<u8> {
    format!("key:{number}").into_bytes()
}

/// Puts an index in, and checks the bound.
fn put(all: &mut Indexes, number: usize, reservations: usize) {
    all.put(0, &key(number), finding(reservations), reservations, reservations, true);
    assert!(all.small_reservations <= all.max_in_small);
}

fn has(all: &Indexes, number: usize) -> bool {
    let key = key(number);
    all.tables.iter().flatten().any(|entry| entry.belongs_to(0, &key))
}

/// The keys of the small indexes, the least recently used first.
fn listed(all: &Indexes) -> Vec<Vec<u8>> {
    let key_at = |(last_use, hash): (&u64, &u64)| {
        let found = |table: &HashTable<IndexEntry>| {
            table.find(*hash, |entry| entry.use_number == *last_use).map(|entry| entry.key.to_vec())
        };
        all.tables.iter().find_map(found).unwrap()
    };
    all.lru.iter().map(key_at).collect()
}

#[test]
fn the_least_recently_used_small_indexes_are_dropped() {
    let fit = 9;
    let mut all = Indexes::new(fit * SMALL);
    (0..fit).for_each(|number| put(&mut all, number, SMALL));
    assert_eq!((all.len, all.small_reservations), (fit, fit * SMALL));
    // The first is used again, so the second is now the oldest.
    assert!(taken(&mut all, 0, &key(0), SMALL).is_some());
    put(&mut all, 0, SMALL);
    put(&mut all, fit, SMALL);
    assert!(has(&all, 0) && !has(&all, 1) && has(&all, 2) && has(&all, fit));
    assert_eq!(all.len, fit);
    // A short index replaces a longer one, and only one is dropped.
    put(&mut all, fit + 1, 8);
    assert!(!has(&all, 2) && has(&all, 3));
    put(&mut all, fit + 2, SMALL - 8);
    assert!(has(&all, 3));
}

/// When one bound held for all indexes, each call read one of seventeen keys of 65,535 again.
#[test]
fn large_indexes_are_not_dropped_for_others() {
    let (large, fit) = (3, 9);
    let mut all = Indexes::new(fit * SMALL);
    (0..large).for_each(|number| put(&mut all, number, 2 * fit * SMALL));
    (large..50).for_each(|number| put(&mut all, number, SMALL));
    assert_eq!(all.len, large + fit);
    for number in 0..large {
        assert!(taken(&mut all, 0, &key(number), 2 * fit * SMALL).is_some(), "{number}");
        put(&mut all, number, 2 * fit * SMALL);
    }
    // One that has become small may be dropped, and one that has become large stays.
    put(&mut all, 0, 8);
    put(&mut all, 49, SMALL + 1);
    (50..99).for_each(|number| put(&mut all, number, SMALL));
    assert!(!has(&all, 0) && has(&all, 1) && has(&all, 49) && !has(&all, 50));
}

#[test]
fn small_indexes_are_ordered_by_use_whatever_is_added_and_removed() {
    let (mut all, mut model) = (Indexes::new(MAX_IN_SMALL), Vec::<(usize, usize)>::new());
    let mut random = 1_u64;
    for _ in 0..5_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let number = (random >> 40) as usize % 300;
        model.retain(|(other, _)| *other != number);
        match (random >> 33) % 64 {
            0 => {
                // Most are dropped at once, so that the table shrinks.
                for (other, _) in model.drain(model.len().min(9)..) {
                    all.remove(0, &key(other));
                }
                all.remove(0, &key(number));
            }
            1..=20 => {
                all.remove(0, &key(number));
            }
            some => {
                let reservations = if some < 24 { SMALL + 1 } else { 8 + some as usize % 5 };
                put(&mut all, number, reservations);
                model.push((number, reservations));
            }
        }
        let small = || model.iter().filter(|(_, reservations)| *reservations <= SMALL);
        assert_eq!(listed(&all), small().map(|(other, _)| key(*other)).collect::<Vec<_>>());
        assert_eq!(all.small_reservations, small().map(|(_, many)| many).sum::<usize>());
        assert_eq!(all.len, model.len());
        let room: usize = all.tables.iter().map(HashTable::allocation_size).sum();
        assert!(room <= 2 * PER_KEY * (16 * TABLES + 8 * model.len()));
        assert!(model.iter().all(|(other, _)| has(&all, *other)));
    }
    for (number, _) in &model {
        all.remove(0, &key(*number));
    }
    assert_eq!((all.len, all.bytes, all.small_reservations), (0, 0, 0));
}

/// One table of 114,688 indexes took 14 ms to grow.
#[test]
fn a_table_that_grows_moves_few_indexes() {
    const NUMBER: usize = 20_000;
    let mut all = Indexes::new(MAX_IN_SMALL);
    (0..NUMBER).for_each(|number| all.put(0, &key(number), Finding::Foreign, 8, 12, true));
    assert_eq!(all.len, NUMBER);
    let longest = all.tables.iter().map(HashTable::len).max().unwrap();
    assert!(longest < NUMBER / 32, "{longest}");
}

#[test]
fn an_unchanged_index_that_is_put_back_is_the_most_recently_used() {
    let mut all = Indexes::new(MAX_IN_SMALL);
    (0..3).for_each(|number| put(&mut all, number, 9));
    let bytes = all.bytes;
    let index = all.take(0, &key(0), 9).unwrap();
    all.put(0, &key(0), index, 9, 12, false);
    assert_eq!(listed(&all), [key(1), key(2), key(0)]);
    assert_eq!((all.bytes, taken(&mut all, 0, &key(0), 12)), (bytes, Some(9)));
}

#[test]
fn an_index_belongs_to_one_database_and_to_a_number_of_elements() {
    let mut all = Indexes::new(MAX_IN_SMALL);
    all.put(0, b"k", finding(9), 9, 12, true);
    assert_eq!(taken(&mut all, 0, b"k", 12), Some(9));
    assert!(taken(&mut all, 0, b"k", 12).is_none(), "it is out");
    for changed in [9, 11] {
        all.put(1, b"k", finding(10), 10, 10, true);
        assert!(taken(&mut all, 1, b"k", changed).is_none(), "the set was changed");
        assert!(taken(&mut all, 1, b"k", 10).is_none(), "and so it was dropped");
    }
    assert_eq!(all.len, 1);
}

#[test]
fn a_foreign_entry_is_remembered_until_the_set_changes() {
    let mut all = Indexes::new(MAX_IN_SMALL);
    all.put(0, b"k", Finding::Foreign, 9, 12, true);
    for _ in 0..2 {
        assert!(matches!(all.take(0, b"k", 12), Some(Finding::Foreign)));
    }
    assert!(taken(&mut all, 0, b"k", 11).is_none());
    assert_eq!((all.len, all.bytes, all.small_reservations), (0, 0, 0));
}

#[test]
fn an_index_goes_with_its_value_unless_the_new_name_was_touched_since() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Touched {
        Nothing,
        /// The new name, before the value has left the old one.
        Before,
        /// The new name, after that.
        After,
        AnotherKey,
    }
    for touched in [Touched::Nothing, Touched::Before, Touched::After, Touched::AnotherKey] {
        // Keys whose hashes share a position count as one.
        let mut all = loop {
            let all = Indexes::new(MAX_IN_SMALL);
            let keys = [(0, &b"old"[..]), (1, b"new"), (1, b"other")];
            let [old, new, other] =
                keys.map(|key| all.secret.hash_one(key) as usize % TOUCHED_KEYS);
            if new != old && new != other {
                break all;
            }
        };
        all.touch(1, b"new");
        all.put(0, b"old", finding(9), 9, 12, true);
        let bytes = all.bytes;
        if touched == Touched::Before {
            all.touch(1, b"new");
        }
        all.leaving = all.remove(0, b"old");
        match touched {
            Touched::After => {
                // As each call does.
                assert!(taken(&mut all, 1, b"new", 12).is_none());
                all.put(1, b"new", finding(8), 8, 12, true);
            }
            Touched::AnotherKey => all.put(1, b"other", finding(8), 8, 12, true),
            Touched::Nothing | Touched::Before => {}
        }
        all.remove(1, b"other");
        let is_right = [Touched::Nothing, Touched::AnotherKey].contains(&touched);
        assert_eq!(all.receive(1, b"new"), is_right, "{touched:?}");
        assert_eq!(taken(&mut all, 1, b"new", 12), is_right.then_some(9));
        assert_eq!((all.bytes, all.small_reservations), if is_right { (bytes, 9) } else { (0, 0) });
        assert!(!all.receive(1, b"new"), "it has arrived");
    }
}
