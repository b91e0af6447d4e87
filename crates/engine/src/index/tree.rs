//! A search tree whose nodes know the totals of their subtrees.
//!
//! It is a randomized binary search tree (Martínez and Roura, "Randomized binary search trees", 1998): each node of a
//! subtree is equally likely to be its root, whatever was inserted and removed before. Callers choose the keys, and one who
//! knew the random numbers could make the tree a chain, so they come from a secret. No function recurses along a tree whose
//! shape depends on callers, so its depth cannot overflow the stack.
//!
//! ```text
//!                key 40, total 9
//!               /               \
//!      key 20, total 5        key 70, total 1        the quantities up to 40: 5 + (9 - 5 - 1)
//! ```

use super::IndexedReservation;
use slab::Slab;

/// The position of a reservation, which it keeps while it is in the tree.
pub type Position = u32;

/// No position.
const NONE: Position = Position::MAX;

/// The order of the reservations: by the time at which they are gone, and then by position.
type Key = (u64, Position);

/// The sum of some reservations and, in the bits from [`ONE`] on, their number. Both are added at once. 2^32 quantities of
/// 63 bits do not reach these bits.
type Total = u128;

const ONE: Total = 1 << 96;

/// Returns the sum in a total.
fn quantity(total: Total) -> u128 {
    total & (ONE - 1)
}

/// Returns the number of reservations in a total.
fn number(total: Total) -> u32 {
    (total / ONE) as u32
}

#[derive(Debug)]
struct Node {
    reservation: IndexedReservation,
    left: Position,
    right: Position,
    /// The total of its subtree.
    total: Total,
}

/// The side of its parent on which a subtree is.
#[derive(Clone, Copy)]
pub enum Side {
    /// The reservations before the parent.
    Left,
    /// The reservations after the parent.
    Right,
}

impl Node {
    /// Creates a node without children.
    fn new(reservation: IndexedReservation) -> Node {
        let total = ONE.saturating_add(u128::from(reservation.quantity));
        Node { reservation, left: NONE, right: NONE, total }
    }

    fn child(&mut self, side: Side) -> &mut Position {
        match side {
            Side::Left => &mut self.left,
            Side::Right => &mut self.right,
        }
    }
}

/// A place in the tree for a subtree that is not known yet.
struct Gap {
    /// The parent. `None` for the root of the tree.
    parent: Option<(Position, Side)>,
    /// The total of the subtree.
    total: Total,
}

/// Reservations in the order in which they are gone, at fixed positions.
#[derive(Debug)]
pub struct Tree {
    nodes: Slab<Node>,
    root: Position,
    /// The state of the random numbers, never 0.
    random: u64,
}

impl Tree {
    /// Creates a tree without reservations. The shape of the tree follows from `secret`.
    pub fn new(secret: u64) -> Tree {
        Tree { nodes: Slab::new(), root: NONE, random: secret | 1 }
    }

    /// Returns the approximate size in bytes, without ids and rules.
    pub fn bytes(&self) -> usize {
        self.nodes.capacity().saturating_mul(size_of::<Node>())
    }

    /// Returns whether most of its memory is for reservations that were removed.
    pub fn is_sparse(&self) -> bool {
        /// A tree with room for this many is never sparse.
        const FEW: usize = 32;
        let room = self.nodes.capacity();
        room > FEW && self.nodes.len() < room / 4
    }

    /// Returns the reservation at a position.
    pub fn get(&self, position: Position) -> Option<&IndexedReservation> {
        self.node(position).map(|node| &node.reservation)
    }

    /// Returns all reservations, in any order.
    pub fn iter(&self) -> impl Iterator<Item = &IndexedReservation> {
        self.nodes.iter().map(|(_, node)| &node.reservation)
    }

    /// Returns the reservation that is gone first, or last.
    pub fn outermost(&self, side: Side) -> Option<&IndexedReservation> {
        let (mut found, mut at) = (None, self.root);
        while let Some(node) = self.node(at) {
            found = Some(&node.reservation);
            at = match side {
                Side::Left => node.left,
                Side::Right => node.right,
            };
        }
        found
    }

    /// Returns the sum and the number of the reservations that are gone at `us`.
    pub fn sum_and_count_gone(&self, us: u64) -> (u128, usize) {
        let total = self.total_before(self.root, (us, NONE));
        (quantity(total), number(total) as usize)
    }

    /// Returns the first reservation for which `enough` is true: the time at which it is gone, and the sum of those before
    /// it. `enough` gets that time and the sum up to and including the reservation, and stays true once it is.
    pub fn first_where<E>(
        &self,
        mut enough: impl FnMut(u64, u128) -> Result<bool, E>,
    ) -> Result<Option<(u64, u128)>, E> {
        let (mut before, mut at): (Total, Position) = (0, self.root);
        let mut found = None;
        while let Some(node) = self.node(at) {
            let gone_us = node.reservation.gone_us;
            let with_it = before.saturating_add(node.total).saturating_sub(self.total(node.right));
            if enough(gone_us, quantity(with_it))? {
                let held = u128::from(node.reservation.quantity);
                found = Some((gone_us, quantity(with_it).saturating_sub(held)));
                at = node.left;
            } else {
                before = with_it;
                at = node.right;
            }
        }
        Ok(found)
    }

    /// Adds a reservation that [`Tree::link`] will put in order, and returns its position. Returns `None`, and adds nothing,
    /// if the tree is full.
    pub fn push(&mut self, reservation: IndexedReservation) -> Option<Position> {
        let place = self.nodes.vacant_entry();
        let position = Position::try_from(place.key()).ok().filter(|at| *at != NONE)?;
        place.insert(Node::new(reservation));
        Some(position)
    }

    /// Puts all reservations that were pushed into an empty tree in order. This is several times as fast as inserting one
    /// after the other.
    pub fn link(&mut self) {
        let key = |(position, node): (usize, &Node)| {
            (node.reservation.gone_us, Position::try_from(position).unwrap_or(NONE))
        };
        let mut order: Vec<Key> = self.nodes.iter().map(key).collect();
        order.sort_unstable();
        self.root = self.link_balanced(&order);
    }

    /// Makes a subtree with half of these reservations on each side of its root, so that the recursion is not deep.
    fn link_balanced(&mut self, order: &[Key]) -> Position {
        let (before, rest) = order.split_at(order.len() / 2);
        let Some(((_, position), after)) = rest.split_first() else { return NONE };
        let (left, right) = (self.link_balanced(before), self.link_balanced(after));
        let below = self.total(left).saturating_add(self.total(right));
        if let Some(node) = self.node_mut(*position) {
            (node.left, node.right) = (left, right);
            node.total = node.total.saturating_add(below);
        }
        *position
    }

    /// Adds a reservation in order, and returns its position. Returns `None`, and adds nothing, if the tree is full.
    pub fn insert(&mut self, reservation: IndexedReservation) -> Option<Position> {
        let gone_us = reservation.gone_us;
        let position = self.push(reservation)?;
        let (key, added) = ((gone_us, position), self.total(position));
        // The new node becomes the root of a subtree with the same probability as any other node there.
        let (parent, at) = self.descend(key, added, |tree, at| {
            tree.random_below(number(tree.total(at)).saturating_add(1)) == 0
        });
        let below = self.total(at);
        self.split(at, key, position);
        *self.link_from(parent) = position;
        self.node_mut(position)?.total = added.saturating_add(below);
        Some(position)
    }

    /// Removes a reservation. Its children take its place.
    pub fn remove(&mut self, position: Position) -> Option<IndexedReservation> {
        let old = self.node(position)?;
        let (left, right, key) = (old.left, old.right, (old.reservation.gone_us, position));
        let below = self.total(left).saturating_add(self.total(right));
        let removed = old.total.saturating_sub(below);
        let (parent, _) = self.descend(key, removed.wrapping_neg(), |_, at| at == position);
        self.join(Gap { parent, total: below }, left, right);
        self.nodes.try_remove(position as usize).map(|node| node.reservation)
    }

    /// Walks from the root towards `key` until `stops` returns true, and adds `change` to all totals on the way. Returns the
    /// last link that it followed, and the position to which it leads.
    fn descend(
        &mut self,
        key: Key,
        change: Total,
        mut stops: impl FnMut(&mut Tree, Position) -> bool,
    ) -> (Option<(Position, Side)>, Position) {
        let (mut parent, mut at) = (None, self.root);
        while at != NONE && !stops(self, at) {
            let side = self.side(at, key);
            let Some(node) = self.node_mut(at) else { break };
            node.total = node.total.wrapping_add(change);
            parent = Some((at, side));
            at = *node.child(side);
        }
        (parent, at)
    }

    /// Divides a subtree into the nodes before `key` and the rest, and makes them the children of the node at `position`.
    fn split(&mut self, mut at: Position, key: Key, position: Position) {
        let total = self.total(at);
        let gap = |side, total| Gap { parent: Some((position, side)), total };
        let before = self.total_before(at, key);
        let mut left = gap(Side::Left, before);
        let mut right = gap(Side::Right, total.saturating_sub(before));
        while at != NONE {
            let side = self.side(at, key);
            let gap = match side {
                Side::Left => &mut right,
                Side::Right => &mut left,
            };
            at = self.fill(gap, at, side);
        }
        *self.link_from(left.parent) = NONE;
        *self.link_from(right.parent) = NONE;
    }

    /// Joins two subtrees and puts them into a gap. All of the first comes before all of the second.
    fn join(&mut self, mut gap: Gap, mut first: Position, mut second: Position) {
        while first != NONE && second != NONE {
            let number_of_first = number(self.total(first));
            if self.random_below(number(gap.total)) < number_of_first {
                first = self.fill(&mut gap, first, Side::Right);
            } else {
                second = self.fill(&mut gap, second, Side::Left);
            }
        }
        *self.link_from(gap.parent) = if first == NONE { second } else { first };
    }

    /// Puts a node and its child on the other side into a gap. The gap moves to the place of its child on this side, which
    /// is returned.
    fn fill(&mut self, gap: &mut Gap, at: Position, side: Side) -> Position {
        *self.link_from(gap.parent) = at;
        let Some(node) = self.node_mut(at) else { return NONE };
        let (child, old) = (*node.child(side), std::mem::replace(&mut node.total, gap.total));
        let filled = old.saturating_sub(self.total(child));
        *gap = Gap { parent: Some((at, side)), total: gap.total.saturating_sub(filled) };
        child
    }

    /// Returns the total of the nodes of a subtree before `key`.
    fn total_before(&self, mut at: Position, key: Key) -> Total {
        let mut before: Total = 0;
        while let Some(node) = self.node(at) {
            at = match self.side(at, key) {
                Side::Left => node.left,
                Side::Right => {
                    before = before.saturating_add(node.total);
                    before = before.saturating_sub(self.total(node.right));
                    node.right
                }
            };
        }
        before
    }

    /// Returns the side of a node on which `key` is.
    fn side(&self, at: Position, key: Key) -> Side {
        match self.node(at) {
            Some(node) if (node.reservation.gone_us, at) < key => Side::Right,
            _ => Side::Left,
        }
    }

    /// Returns the link to the child of a node, or to the root.
    fn link_from(&mut self, parent: Option<(Position, Side)>) -> &mut Position {
        let child =
            parent.and_then(|(at, side)| Some(self.nodes.get_mut(at as usize)?.child(side)));
        child.unwrap_or(&mut self.root)
    }

    fn total(&self, position: Position) -> Total {
        self.node(position).map_or(0, |node| node.total)
    }

    fn node(&self, position: Position) -> Option<&Node> {
        self.nodes.get(position as usize)
    }

    fn node_mut(&mut self, position: Position) -> Option<&mut Node> {
        self.nodes.get_mut(position as usize)
    }

    /// Returns a random number below `end`. Xorshift (Marsaglia, "Xorshift RNGs", 2003). It need not be strong, because
    /// nobody sees the numbers.
    fn random_below(&mut self, end: u32) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((self.random >> 32).wrapping_mul(end.into()) >> 32) as u32
    }
}

#[cfg(test)]
mod tests;
