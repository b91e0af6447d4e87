//! An index of the reservations of one key: by id, and by the time until which they hold with running sums, so that a call
//! decides in O(log n) however many are held.
//!
//! The order by these ends is a treap (Aragon and Seidel, "Randomized search trees", 1989): a search tree by `(end, slot)`
//! that is a heap by random priorities, and so as deep as a random tree. Each node knows the sum of its subtree.
//! Callers choose ids and leases, so the priorities come from a secret: who knew them could order the leases so that the
//! tree is a chain. Nothing recurses along the tree, so that no depth overflows the stack.
//!
//! ```text
//!                end 40, sum 9
//!               /             \
//!      end 20, sum 5        end 70, sum 1        what lapses until 40: 5 + (9 - 5 - 1)
//! ```

use super::ban::Ban;
use super::calendar::Zones;
use super::held::{FirstEnd, Lease, Leases, SortedLeases};
use super::reservation::{Reservation, ReservationMember, Sight};
use super::slab::{NewSlots, Slab, Slot, NONE};
use super::store::Reservations;
use foldhash::quality::RandomState;
use hashbrown::hash_table;
use hashbrown::HashTable;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::sync::Arc;

#[derive(Debug)]
struct Node {
    id: Box<[u8]>,
    quantity: u64,
    lease_ms: u64,
    /// When it stops holding.
    gone_us: u64,
    /// When its lease ends.
    lease_end_us: u64,
    order_us: u64,
    /// One of [`Index::rules`].
    rule: Arc<[u8]>,
    priority: u32,
    left: Slot,
    right: Slot,
    /// The quantities of its subtree.
    sum: u128,
}

/// On which side of its parent a subtree is.
#[derive(Clone, Copy)]
enum Side {
    Left,
    Right,
}

/// The id of the reservation in a slot.
fn id_at(nodes: &Slab<Node>, slot: Slot) -> &[u8] {
    nodes.get(slot).map_or(&[], |node| &node.id)
}

impl Node {
    fn reservation(&self) -> Reservation<'_> {
        Reservation {
            id: &self.id,
            quantity: self.quantity,
            lease_ms: self.lease_ms,
            end_us: self.lease_end_us,
            gone_us: self.gone_us,
            order_us: self.order_us,
            rule: &self.rule,
        }
    }

    fn lease(&self) -> Lease {
        Lease { end_us: self.gone_us, quantity: self.quantity }
    }

    fn child(&self, side: Side) -> Slot {
        match side {
            Side::Left => self.left,
            Side::Right => self.right,
        }
    }
}

/// What a call needs that changes nothing, as most tries for those who wait do not. It fills one line of the processor's
/// cache: where many keys are tried in turn, each line costs more than the rest of the work on the index.
#[derive(Debug, Default)]
#[repr(align(64))]
struct IndexSummary {
    /// What all reservations hold.
    total: u128,
    /// The first that ends.
    first: Lease,
    /// The end of the last.
    last_end_us: u64,
    /// At least the latest start of a lease.
    latest_start_us: u64,
    /// How many reservations there are.
    len: usize,
    /// The ban beside them, which few keys have.
    ban: Option<Box<Ban>>,
}

const _: () = assert!(size_of::<IndexSummary>() == 64, "it fills one line");

/// The reservations of one key, dead and alive.
#[derive(Debug)]
pub struct Index {
    summary: IndexSummary,
    nodes: Slab<Node>,
    root: Slot,
    /// By the hash of the id, which has a secret: clients choose ids.
    by_id: HashTable<Slot>,
    /// The secret of the hashes and of the priorities, another one in each index.
    secret: RandomState,
    /// The rules that some reservation has.
    rules: BTreeSet<Arc<[u8]>>,
    /// The bytes of all ids.
    id_bytes: usize,
    /// At least the newest order of arrival.
    newest_order_us: Option<u64>,
    /// The ends of all leases, once a call asked how many of them run.
    lease_ends: Option<LeaseEnds>,
    /// The nodes that hold until the first and the last of all ends.
    first: Slot,
    last: Slot,
    /// The state of [`Index::next_priority`], never 0.
    random: u64,
}

impl Default for Index {
    fn default() -> Self {
        let secret = RandomState::default();
        Index {
            summary: IndexSummary::default(),
            nodes: Slab::new(),
            root: NONE,
            by_id: HashTable::new(),
            random: secret.hash_one("priorities") | 1,
            secret,
            rules: BTreeSet::new(),
            id_bytes: 0,
            newest_order_us: None,
            lease_ends: None,
            first: NONE,
            last: NONE,
        }
    }
}

impl Index {
    /// How many reservations there are.
    pub fn len(&self) -> usize {
        self.summary.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.summary.len == 0
    }

    /// About how many bytes it takes.
    pub fn bytes(&self) -> usize {
        /// What the allocator adds to an id.
        const PER_ID: usize = 16;
        /// A rule and its place in the set.
        const PER_RULE: usize = 64;
        /// A time and a number, in nodes that are at least half full.
        const PER_LEASE_END: usize = 32;
        let nodes = self.nodes.bytes();
        let ids = self.len().saturating_mul(PER_ID).saturating_add(self.id_bytes);
        let rules = self.rules.len().saturating_mul(PER_RULE);
        let by_id = self.by_id.allocation_size();
        let ends = self.lease_ends.as_ref().map_or(0, |ends| ends.at.len());
        let ends = ends.saturating_mul(PER_LEASE_END);
        [nodes, ids, rules, by_id, ends].into_iter().fold(0, usize::saturating_add)
    }

    /// The ban of the key.
    pub fn ban(&self) -> Option<Ban> {
        self.summary.ban.as_deref().copied()
    }

    /// Notes what became of the ban.
    pub fn set_ban(&mut self, ban: Option<Ban>) {
        self.summary.ban = ban.map(Box::new);
    }

    /// Adds a reservation. False, and nothing is added, if its id is there.
    pub fn insert(&mut self, one: &Reservation) -> bool {
        let Some(slot) = self.nodes.next_slot() else { return false };
        let Index { by_id, nodes, secret, .. } = self;
        let is_it = |slot: &Slot| id_at(nodes, *slot) == one.id;
        let hash = |slot: &Slot| secret.hash_one(id_at(nodes, *slot));
        match by_id.entry(secret.hash_one(one.id), is_it, hash) {
            hash_table::Entry::Occupied(_) => return false,
            hash_table::Entry::Vacant(place) => place.insert(slot),
        };
        let node = Node {
            id: one.id.into(),
            quantity: one.quantity,
            lease_ms: one.lease_ms,
            gone_us: one.gone_us,
            lease_end_us: one.end_us,
            order_us: one.order_us,
            rule: self.rule(one.rule),
            priority: self.next_priority(),
            left: NONE,
            right: NONE,
            sum: u128::from(one.quantity),
        };
        self.newest_order_us = self.newest_order_us.max(Some(one.order_us));
        let summary = &mut self.summary;
        summary.latest_start_us = summary.latest_start_us.max(one.start_us());
        summary.total = summary.total.saturating_add(u128::from(one.quantity));
        summary.len = summary.len.saturating_add(1);
        self.id_bytes = self.id_bytes.saturating_add(one.id.len());
        if let Some(ends) = &mut self.lease_ends {
            ends.insert(one.end_us);
        }
        self.nodes.insert(node);
        self.insert_node(slot);
        let (key, is_only) = ((one.gone_us, slot), self.first == NONE);
        if is_only || key < (self.summary.first.end_us, self.first) {
            self.first = slot;
            self.summary.first = lease(one);
        }
        if is_only || key > (self.summary.last_end_us, self.last) {
            self.last = slot;
            self.summary.last_end_us = one.gone_us;
        }
        true
    }

    /// Inserts a node without children into the tree. Walks down to the first node of a lower priority, splits the subtree
    /// there by the new node's key, and takes its place. As priorities are random, the walk and that subtree's depth are
    /// O(log n) on average.
    fn insert_node(&mut self, slot: Slot) {
        let Some(new) = self.node(slot) else { return };
        let (key, priority, quantity) = ((new.gone_us, slot), new.priority, new.sum);
        let (mut parent, mut at) = (None, self.root);
        while let Some(node) = self.node_mut(at).filter(|node| node.priority >= priority) {
            node.sum = node.sum.saturating_add(quantity);
            let side = if (node.gone_us, at) < key { Side::Right } else { Side::Left };
            parent = Some((at, side));
            at = node.child(side);
        }
        let (left, right) = self.split(at, key);
        if let Some(node) = self.node_mut(slot) {
            (node.left, node.right) = (left, right);
        }
        self.refresh(slot);
        self.set_child(parent, slot);
    }

    /// Removes a node from the tree. Its children take its place.
    fn remove_node(&mut self, slot: Slot) {
        let Some(old) = self.node(slot) else { return };
        let (key, quantity) = ((old.gone_us, slot), u128::from(old.quantity));
        let (left, right) = (old.left, old.right);
        let (mut parent, mut at) = (None, self.root);
        while let Some(node) = self.node_mut(at).filter(|_| at != slot) {
            node.sum = node.sum.saturating_sub(quantity);
            let side = if (node.gone_us, at) < key { Side::Right } else { Side::Left };
            parent = Some((at, side));
            at = node.child(side);
        }
        self.merge(parent, left, right);
    }

    /// Puts a subtree below a parent, or in the place of the root.
    fn set_child(&mut self, parent: Option<(Slot, Side)>, child: Slot) {
        let Some((parent, side)) = parent else {
            self.root = child;
            return;
        };
        match (self.node_mut(parent), side) {
            (Some(node), Side::Left) => node.left = child,
            (Some(node), Side::Right) => node.right = child,
            (None, _) => {}
        }
    }

    /// Removes the reservation `id`; whether it was there.
    pub fn remove(&mut self, id: &[u8]) -> bool {
        let Index { by_id, nodes, secret, .. } = self;
        let found = by_id.find_entry(secret.hash_one(id), |slot| id_at(nodes, *slot) == id);
        let Ok(found) = found else { return false };
        let (slot, _) = found.remove();
        self.remove_node(slot);
        if slot == self.first {
            self.first = self.outermost(Side::Left);
            self.summary.first = self.node(self.first).map(Node::lease).unwrap_or_default();
        }
        if slot == self.last {
            self.last = self.outermost(Side::Right);
            self.summary.last_end_us = self.node(self.last).map_or(0, |node| node.gone_us);
        }
        let node = self.nodes.remove(slot);
        self.summary.len = self.summary.len.saturating_sub(1);
        self.id_bytes = self.id_bytes.saturating_sub(id.len());
        if let Some(node) = node {
            self.summary.total = self.summary.total.saturating_sub(u128::from(node.quantity));
            if let Some(ends) = &mut self.lease_ends {
                ends.remove(node.lease_end_us);
            }
            // The other one is in the set.
            if Arc::strong_count(&node.rule) <= 2 {
                self.rules.remove(&node.rule);
            }
        }
        if let Some(slots) = self.nodes.compact() {
            self.renumber(&slots);
        }
        true
    }

    /// The reservation `id`, lapsed or not.
    pub fn get(&self, id: &[u8]) -> Option<Reservation<'_>> {
        let is_it = |slot: &Slot| id_at(&self.nodes, *slot) == id;
        self.reservation(*self.by_id.find(self.secret.hash_one(id), is_it)?)
    }

    /// All reservations, in any order.
    pub fn iter(&self) -> impl Iterator<Item = Reservation<'_>> {
        self.nodes.iter().map(Node::reservation)
    }

    /// How many have a lease that runs at `now_us`. Each end is passed once, as long as the clock goes on.
    pub fn running(&mut self, now_us: u64) -> usize {
        let nodes = &self.nodes;
        let ends = self.lease_ends.get_or_insert_with(|| {
            let mut ends = LeaseEnds::default();
            nodes.iter().for_each(|node| ends.insert(node.lease_end_us));
            ends
        });
        self.summary.len.saturating_sub(ends.ended(now_us))
    }

    /// Up to `most` reservations that hold nothing any more at `now_us`, the first to end first.
    pub fn lapsed(&self, now_us: u64, most: usize) -> Vec<Reservation<'_>> {
        let mut found = Vec::new();
        if !self.none_ended(now_us) {
            self.visit_lapsed(now_us, most, &mut found);
        }
        found
    }

    /// The first reservation to end, if it holds nothing any more at `now_us`.
    fn first_lapsed(&self, now_us: u64) -> Option<Reservation<'_>> {
        if self.none_ended(now_us) {
            return None;
        }
        self.reservation(self.first)
    }

    /// Whether all still hold at `us`.
    fn none_ended(&self, us: u64) -> bool {
        self.summary.len == 0 || self.summary.first.end_us > us
    }

    fn visit_lapsed<'a>(&'a self, now_us: u64, most: usize, found: &mut Vec<Reservation<'a>>) {
        // The nodes whose left subtrees are being visited, the nearest last.
        let (mut above, mut at) = (Vec::new(), self.root);
        while found.len() < most {
            while let Some(node) = self.node(at) {
                above.push(node);
                at = node.left;
            }
            let Some(node) = above.pop().filter(|node| node.gone_us <= now_us) else { return };
            found.push(node.reservation());
            at = node.right;
        }
    }

    /// Whether a lease ends later than one lease from `now_us`, because a clock went back. O(n) where that may be.
    pub fn has_future(&mut self, now_us: u64) -> bool {
        if self.summary.latest_start_us > now_us {
            self.find_latest_start();
        }
        self.summary.latest_start_us > now_us
    }

    /// Reservations may have gone since: of those that are left, when the last lease began.
    fn find_latest_start(&mut self) {
        self.summary.latest_start_us = self.iter().map(|one| one.start_us()).max().unwrap_or(0);
    }

    /// Up to `most` reservations whose lease ends later than one lease from `now_us`. O(n).
    pub fn future(&mut self, now_us: u64, most: usize) -> Vec<Reservation<'_>> {
        self.find_latest_start();
        self.iter().filter(|one| one.start_us() > now_us).take(most).collect()
    }

    /// The place of a new reservation in the order of arrival: `now_us`, or just behind the newest where that came in
    /// the same microsecond or before the clock went back.
    pub fn next_order_us(&self, now_us: u64) -> u64 {
        next_order_us(self.newest_order_us, now_us)
    }

    /// The leases that are live at `now_us`, if none is from the future.
    pub fn live(&self, now_us: u64) -> Live<'_> {
        let lapsed = self.sum_until(now_us);
        Live { index: self, now_us, lapsed }
    }

    /// The same as a list, as they are seen from now. O(n).
    pub fn listed(&self, now_us: u64, zones: &mut Zones) -> SortedLeases {
        let mut sight = Sight::at(now_us, zones);
        let live = self.iter().filter(|one| one.live(now_us));
        live.map(|one| lease(&sight.seen(&one))).collect()
    }

    /// The quantities of all leases that end at `us` or before.
    fn sum_until(&self, us: u64) -> u128 {
        let (mut sum, mut at) = (0u128, self.root);
        if self.none_ended(us) {
            return sum;
        }
        while let Some(node) = self.node(at) {
            if node.gone_us <= us {
                let right = self.sum(node.right);
                sum = sum.saturating_add(node.sum).saturating_sub(right);
                at = node.right;
            } else {
                at = node.left;
            }
        }
        sum
    }

    fn rule(&mut self, text: &[u8]) -> Arc<[u8]> {
        if let Some(known) = self.rules.get(text) {
            return Arc::clone(known);
        }
        let rule: Arc<[u8]> = text.into();
        self.rules.insert(Arc::clone(&rule));
        rule
    }

    /// Follows the nodes, which were moved together.
    fn renumber(&mut self, slots: &NewSlots) {
        for node in self.nodes.iter_mut() {
            (node.left, node.right) = (slots.of(node.left), slots.of(node.right));
        }
        self.by_id.iter_mut().for_each(|slot| *slot = slots.of(*slot));
        for slot in [&mut self.root, &mut self.first, &mut self.last] {
            *slot = slots.of(*slot);
        }
        let Index { by_id, nodes, secret, .. } = self;
        by_id.shrink_to_fit(|slot| secret.hash_one(id_at(nodes, *slot)));
    }

    /// Xorshift (Marsaglia, "Xorshift RNGs", 2003): priorities need no more, as nobody sees them.
    fn next_priority(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32) as u32
    }

    fn node(&self, slot: Slot) -> Option<&Node> {
        self.nodes.get(slot)
    }

    fn node_mut(&mut self, slot: Slot) -> Option<&mut Node> {
        self.nodes.get_mut(slot)
    }

    /// The node of the tree that lies furthest on this side.
    fn outermost(&self, side: Side) -> Slot {
        let (mut found, mut at) = (NONE, self.root);
        while let Some(node) = self.node(at) {
            (found, at) = (at, node.child(side));
        }
        found
    }

    fn reservation(&self, slot: Slot) -> Option<Reservation<'_>> {
        self.node(slot).map(Node::reservation)
    }

    fn sum(&self, slot: Slot) -> u128 {
        self.node(slot).map_or(0, |node| node.sum)
    }

    /// Sums up a node's subtree anew.
    fn refresh(&mut self, slot: Slot) {
        let Some(node) = self.node(slot) else { return };
        let sum = u128::from(node.quantity)
            .saturating_add(self.sum(node.left))
            .saturating_add(self.sum(node.right));
        if let Some(node) = self.node_mut(slot) {
            node.sum = sum;
        }
    }

    /// Splits a subtree into what lies before `key`, and the rest.
    ///
    /// On the way down each node goes to one of two chains, in which the child that is yet to be found points back up.
    /// On the way up those get their children.
    fn split(&mut self, root: Slot, key: (u64, Slot)) -> (Slot, Slot) {
        let (mut before, mut after, mut at) = (NONE, NONE, root);
        while let Some(node) = self.node_mut(at) {
            let (chain, open) = if (node.gone_us, at) < key {
                (&mut before, &mut node.right)
            } else {
                (&mut after, &mut node.left)
            };
            let next = std::mem::replace(open, *chain);
            *chain = at;
            at = next;
        }
        (self.close(before, Side::Right), self.close(after, Side::Left))
    }

    /// Makes a subtree of a chain that [`Index::split`] left, whose children on one side point up; returns its root.
    fn close(&mut self, lowest: Slot, side: Side) -> Slot {
        let (mut below, mut at) = (NONE, lowest);
        while let Some(node) = self.node_mut(at) {
            let open = match side {
                Side::Left => &mut node.left,
                Side::Right => &mut node.right,
            };
            let above = std::mem::replace(open, below);
            self.refresh(at);
            (below, at) = (at, above);
        }
        below
    }

    /// Joins two subtrees, of which all in the first lies before all in the second, and puts them below a parent.
    fn merge(&mut self, mut parent: Option<(Slot, Side)>, mut first: Slot, mut second: Slot) {
        let mut sum = self.sum(first).saturating_add(self.sum(second));
        while let (Some(one), Some(other)) = (self.node(first), self.node(second)) {
            let (top, side) = if one.priority >= other.priority {
                (first, Side::Right)
            } else {
                (second, Side::Left)
            };
            self.set_child(parent, top);
            parent = Some((top, side));
            let Some(node) = self.node_mut(top) else { return };
            // Its child on this side is joined with the other subtree, and that goes below it.
            let (before, below) = (std::mem::replace(&mut node.sum, sum), node.child(side));
            let kept = before.saturating_sub(self.sum(below));
            sum = sum.saturating_sub(kept);
            match side {
                Side::Left => second = below,
                Side::Right => first = below,
            }
        }
        self.set_child(parent, if first == NONE { second } else { first });
    }
}

/// The ends of all leases of a key, and how many of them lie behind one moment.
#[derive(Debug, Default)]
struct LeaseEnds {
    /// How many end at each time.
    at: BTreeMap<u64, usize>,
    as_of_us: u64,
    /// How many have ended by then.
    ended: usize,
}

impl LeaseEnds {
    fn insert(&mut self, end_us: u64) {
        let number = self.at.entry(end_us).or_default();
        *number = number.saturating_add(1);
        self.ended = self.ended.saturating_add(usize::from(end_us <= self.as_of_us));
    }

    fn remove(&mut self, end_us: u64) {
        if let Some(number) = self.at.get_mut(&end_us) {
            *number = number.saturating_sub(1);
            if *number == 0 {
                self.at.remove(&end_us);
            }
            self.ended = self.ended.saturating_sub(usize::from(end_us <= self.as_of_us));
        }
    }

    /// How many have ended at `now_us`.
    fn ended(&mut self, now_us: u64) -> usize {
        use std::ops::Bound::{Excluded, Included};
        let before_us = self.as_of_us;
        let between = |from, to| self.at.range((Excluded(from), Included(to))).map(|(_, n)| n);
        self.ended = match now_us.cmp(&before_us) {
            Ordering::Greater => self.ended.saturating_add(between(before_us, now_us).sum()),
            Ordering::Less => self.ended.saturating_sub(between(now_us, before_us).sum()),
            Ordering::Equal => self.ended,
        };
        self.as_of_us = now_us;
        self.ended
    }
}

/// What a reservation holds, as it is seen at one moment, and until when.
pub fn lease(seen: &Reservation) -> Lease {
    Lease { end_us: seen.gone_us, quantity: seen.quantity }
}

/// An index at one moment, for one call.
#[derive(Debug)]
pub struct HeldIndex {
    index: Box<Index>,
    now_us: u64,
    has_id: bool,
    /// The reservation of the id that was asked for, where it has lapsed: it makes room for a new one.
    lapsed_id: Option<Box<ReservationMember>>,
    /// Whether the index was changed.
    is_changed: bool,
    /// The live leases, where some are from the future: those as ending one lease from now, written anew or not.
    listed: Option<SortedLeases>,
}

/// The most lapsed reservations that a call drops, and the number from which denied calls drop them too.
pub const DROP_MOST: usize = 64;
/// The most reservations that a call writes anew after a clock went back.
pub const HEAL_MOST: usize = 256;

impl HeldIndex {
    /// The index at `now_us`, and whether `id` is held.
    pub fn at(
        mut index: Box<Index>,
        now_us: u64,
        id: Option<&[u8]>,
        zones: &mut Zones,
    ) -> HeldIndex {
        let has_future = index.has_future(now_us);
        let found = id.and_then(|id| index.get(id));
        let has_id = found.is_some_and(|one| one.live(now_us));
        let lapsed_id = found.filter(|one| !one.live(now_us)).map(|one| Box::new(one.member()));
        let listed = has_future.then(|| index.listed(now_us, zones));
        HeldIndex { index, now_us, has_id, lapsed_id, is_changed: false, listed }
    }

    /// The index itself.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The index, once the call is done.
    pub fn into_index(self) -> Box<Index> {
        self.index
    }

    /// Whether it was changed since it was made.
    pub fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// Notes what became of the ban.
    pub fn set_ban(&mut self, ban: Option<Ban>) {
        self.is_changed = true;
        self.index.set_ban(ban);
    }

    /// Until when the key is needed for them. What lies in the future and is not written anew may hold as long as it says,
    /// wherever the clock goes.
    pub fn needed_until_us(&self) -> Option<u64> {
        self.index.live(self.now_us).last_end_us()
    }

    /// How many have a lease that runs.
    pub fn running(&mut self) -> usize {
        // What it is asked for the first time makes it larger.
        self.is_changed |= self.index.lease_ends.is_none();
        self.index.running(self.now_us)
    }

    /// Notes that a reservation was removed.
    pub fn removed(&mut self, one: &Reservation, zones: &mut Zones) {
        if let Some(listed) = &mut self.listed {
            listed.remove(lease(&Sight::at(self.now_us, zones).seen(one)));
        }
        self.take(one.id);
    }

    /// Removes the reservation `id`; whether it was there.
    pub fn take(&mut self, id: &[u8]) -> bool {
        self.is_changed = true;
        self.index.remove(id)
    }

    /// Notes that a reservation was added.
    pub fn added(&mut self, one: &Reservation) {
        self.is_changed = true;
        self.index.insert(one);
        if let Some(listed) = &mut self.listed {
            listed.add(lease(one));
        }
    }

    /// Removes those that have lapsed, and starts those anew that are from the future: a bounded number of both. Shows each
    /// that goes to `cleaned`, with what takes its place: nothing where it has lapsed, itself where it is healed.
    pub fn clean(
        &mut self,
        zones: &mut Zones,
        mut cleaned: impl FnMut(&ReservationMember, Option<&ReservationMember>),
    ) {
        if let Some(old) = self.lapsed_id.take() {
            self.drop_lapsed(&old, &mut cleaned);
        }
        for _ in 0..DROP_MOST {
            let first = self.index.first_lapsed(self.now_us).map(|one| one.member());
            let Some(old) = first else { break };
            self.drop_lapsed(&old, &mut cleaned);
        }
        if self.listed.is_none() {
            return;
        }
        let future = self.index.future(self.now_us, HEAL_MOST);
        let old: Vec<ReservationMember> = future.iter().map(Reservation::member).collect();
        let mut sight = Sight::at(self.now_us, zones);
        for old in &old {
            let Some(one) = Reservation::decode(old.as_bytes()) else { continue };
            let new = sight.seen(&one);
            if self.take(one.id) {
                self.index.insert(&new);
                cleaned(old, Some(&new.member()));
            }
        }
    }

    fn drop_lapsed(
        &mut self,
        old: &ReservationMember,
        cleaned: &mut impl FnMut(&ReservationMember, Option<&ReservationMember>),
    ) {
        if Reservation::decode(old.as_bytes()).is_some_and(|old| self.take(old.id)) {
            cleaned(old, None);
        }
    }
}

impl Reservations for HeldIndex {
    fn has_id(&self) -> bool {
        self.has_id
    }

    fn reach(&self, most: u64) -> bool {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        if let Some(listed) = &self.listed {
            return listed.len() >= most;
        }
        // Only near the bound does it matter how many have lapsed, and no more of them than lie beyond it.
        let Some(beyond) = self.index.len().checked_sub(most) else { return false };
        self.index.lapsed(self.now_us, beyond.saturating_add(1)).len() <= beyond
    }

    fn live_len(&self) -> usize {
        match &self.listed {
            Some(listed) => listed.len(),
            None => {
                let lapsed = self.index.lapsed(self.now_us, usize::MAX).len();
                self.index.len().saturating_sub(lapsed)
            }
        }
    }

    fn next_order_us(&self, now_us: u64) -> u64 {
        self.index.next_order_us(now_us)
    }

    fn must_write(&self) -> bool {
        self.listed.is_some() || self.index.lapsed(self.now_us, DROP_MOST).len() >= DROP_MOST
    }
}

impl Leases for HeldIndex {
    fn total(&self) -> u128 {
        match &self.listed {
            Some(listed) => listed.total(),
            None => self.index.live(self.now_us).total(),
        }
    }

    fn last_end_us(&self) -> Option<u64> {
        match &self.listed {
            Some(listed) => listed.last_end_us(),
            None => self.index.live(self.now_us).last_end_us(),
        }
    }

    fn first_end<E>(
        &self,
        enough: impl FnMut(u64, u128) -> Result<bool, E>,
    ) -> Result<FirstEnd, E> {
        match &self.listed {
            Some(listed) => listed.first_end(enough),
            None => self.index.live(self.now_us).first_end(enough),
        }
    }
}

/// The place of a new reservation in the order of arrival, behind the newest.
pub fn next_order_us(newest_order_us: Option<u64>, now_us: u64) -> u64 {
    newest_order_us.map_or(0, |newest_us| newest_us.saturating_add(1)).max(now_us)
}

/// The leases of an index that are live at a moment.
#[derive(Debug)]
pub struct Live<'i> {
    index: &'i Index,
    now_us: u64,
    lapsed: u128,
}

impl Leases for Live<'_> {
    fn total(&self) -> u128 {
        self.index.summary.total.saturating_sub(self.lapsed)
    }

    fn last_end_us(&self) -> Option<u64> {
        // Of an empty index it is 0.
        Some(self.index.summary.last_end_us).filter(|end_us| *end_us > self.now_us)
    }

    fn first_end<E>(
        &self,
        mut enough: impl FnMut(u64, u128) -> Result<bool, E>,
    ) -> Result<FirstEnd, E> {
        let index = self.index;
        // Mostly the first lease is live and enough.
        let first = index.summary.first;
        if first.end_us > self.now_us && enough(first.end_us, u128::from(first.quantity))? {
            return Ok((Some(first.end_us), 0));
        }
        // What ends before the subtree at `at`, the lapsed included.
        let (mut before, mut at): (u128, Slot) = (0, index.root);
        let mut found = (None, self.total());
        while let Some(node) = index.node(at) {
            let until = before.saturating_add(index.sum(node.left));
            let with_it = until.saturating_add(u128::from(node.quantity));
            let live = node.gone_us > self.now_us;
            if live && enough(node.gone_us, with_it.saturating_sub(self.lapsed))? {
                found = (Some(node.gone_us), until.saturating_sub(self.lapsed));
                at = node.left;
            } else {
                before = with_it;
                at = node.right;
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests;
