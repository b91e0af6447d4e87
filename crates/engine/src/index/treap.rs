//! A search tree whose nodes know the sum of their subtrees.
//!
//! It is a treap (Aragon and Seidel, "Randomized search trees", 1989): a search tree by `(key, position)` that is a heap by random
//! priorities, and so as deep as a random tree. Callers choose the keys, so the priorities come from a secret: who knew
//! them could order the keys so that the tree is a chain. Nothing recurses along the tree, so that no depth overflows the
//! stack.
//!
//! ```text
//!                key 40, sum 9
//!               /             \
//!      key 20, sum 5        key 70, sum 1        the weights up to 40: 5 + (9 - 5 - 1)
//! ```

use crate::slab::{NewPositions, Position, Slab, NONE};

/// A value of a [`Treap`]. Neither number changes while it is in there.
pub trait Weighted {
    /// Its place in the order. Several values may have the same.
    fn key(&self) -> u64;
    /// What it adds to the sums.
    fn weight(&self) -> u64;
}

#[derive(Debug)]
struct Node<T> {
    value: T,
    priority: u32,
    left: Position,
    right: Position,
    /// The weights of its subtree.
    sum: u128,
}

/// On which side of its parent a subtree is.
#[derive(Clone, Copy)]
pub enum Side {
    /// The values before the parent.
    Left,
    /// The values after it.
    Right,
}

impl<T> Node<T> {
    fn child(&self, side: Side) -> Position {
        match side {
            Side::Left => self.left,
            Side::Right => self.right,
        }
    }
}

/// Values in the order of their keys, at fixed positions.
#[derive(Debug)]
pub struct Treap<T> {
    nodes: Slab<Node<T>>,
    root: Position,
    /// The keys and positions of the first and the last value.
    ends: Option<((u64, Position), (u64, Position))>,
    /// The state of [`Treap::next_priority`], never 0.
    random: u64,
}

impl<T: Weighted> Treap<T> {
    /// No values. The priorities follow from `secret`.
    pub fn new(secret: u64) -> Treap<T> {
        Treap { nodes: Slab::new(), root: NONE, ends: None, random: secret | 1 }
    }

    /// About how many bytes it takes, without what the values keep elsewhere.
    pub fn bytes(&self) -> usize {
        self.nodes.bytes()
    }

    /// The value at a position.
    pub fn get(&self, position: Position) -> Option<&T> {
        self.node(position).map(|node| &node.value)
    }

    /// All values, in any order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.nodes.iter().map(|node| &node.value)
    }

    /// The position of the first value.
    pub fn first(&self) -> Option<Position> {
        self.ends.map(|((_, position), _)| position)
    }

    /// The position of the last value.
    pub fn last(&self) -> Option<Position> {
        self.ends.map(|(_, (_, position))| position)
    }

    /// The position of the next value. `None` if the treap is full.
    pub fn next_position(&self) -> Option<Position> {
        self.nodes.next_position()
    }

    /// Adds a value at [`Treap::next_position`]. Does nothing if the treap is full.
    pub fn insert(&mut self, value: T) {
        let Some(position) = self.next_position() else { return };
        let (key, sum) = ((value.key(), position), u128::from(value.weight()));
        let priority = self.next_priority();
        self.nodes.insert(Node { value, priority, left: NONE, right: NONE, sum });
        self.insert_node(position);
        let (first, last) = self.ends.unwrap_or((key, key));
        self.ends = Some((first.min(key), last.max(key)));
    }

    /// Adds a value at [`Treap::next_position`] without its order, which [`Treap::link`] finds for all values.
    pub fn push(&mut self, value: T) {
        let sum = u128::from(value.weight());
        let priority = self.next_priority();
        self.nodes.insert(Node { value, priority, left: NONE, right: NONE, sum });
    }

    /// Orders all values that were pushed into an empty treap. Sorts them once and builds the tree from left to right, which
    /// is several times as fast as inserting each.
    ///
    /// The nodes on the way from the root to the last one lie on a stack. A new node goes below the last one with a higher
    /// priority, and takes what lay there as its left subtree: that is complete, so its sums are known.
    pub fn link(&mut self) {
        let mut order: Vec<(u64, Position)> = (0..)
            .zip(self.nodes.iter())
            .map(|(position, node)| (node.value.key(), position))
            .collect();
        order.sort_unstable();
        self.ends = order.first().copied().zip(order.last().copied());
        let mut path: Vec<(u32, Position)> = Vec::new();
        for (_, position) in order {
            let Some(priority) = self.node(position).map(|node| node.priority) else { continue };
            let mut left = NONE;
            while let Some((_, last)) = path.last().copied().filter(|(other, _)| *other < priority)
            {
                path.pop();
                self.refresh(last);
                left = last;
            }
            if let Some(node) = self.node_mut(position) {
                node.left = left;
            }
            self.set_child(path.last().map(|(_, above)| (*above, Side::Right)), position);
            path.push((priority, position));
        }
        while let Some((_, last)) = path.pop() {
            self.refresh(last);
        }
    }

    /// Removes a value. If few are left of many, they are moved together, and their new positions are returned too.
    pub fn remove(&mut self, position: Position) -> Option<(T, Option<NewPositions>)> {
        self.remove_node(position);
        if self.first() == Some(position) || self.last() == Some(position) {
            self.ends = self.outermost(Side::Left).zip(self.outermost(Side::Right));
        }
        let node = self.nodes.remove(position)?;
        let positions = self.nodes.compact();
        if let Some(positions) = &positions {
            self.renumber(positions);
        }
        Some((node.value, positions))
    }

    /// The weights of all values up to `key`.
    pub fn sum_until(&self, key: u64) -> u128 {
        let (mut sum, mut at) = (0u128, self.root);
        while let Some(node) = self.node(at) {
            if node.value.key() <= key {
                let right = self.sum(node.right);
                sum = sum.saturating_add(node.sum).saturating_sub(right);
                at = node.right;
            } else {
                at = node.left;
            }
        }
        sum
    }

    /// The key of the first value for which `enough` is true of its key and of the weights up to and with it, and the weights
    /// before it. `enough` stays true once it is.
    pub fn first_where<E>(
        &self,
        mut enough: impl FnMut(u64, u128) -> Result<bool, E>,
    ) -> Result<Option<(u64, u128)>, E> {
        // The weights before the subtree at `at`.
        let (mut before, mut at): (u128, Position) = (0, self.root);
        let mut found = None;
        while let Some(node) = self.node(at) {
            let (key, until) = (node.value.key(), before.saturating_add(self.sum(node.left)));
            let with_it = until.saturating_add(u128::from(node.value.weight()));
            if enough(key, with_it)? {
                found = Some((key, until));
                at = node.left;
            } else {
                before = with_it;
                at = node.right;
            }
        }
        Ok(found)
    }

    /// The values up to `key`, in their order.
    pub fn until(&self, key: u64) -> Until<'_, T> {
        Until { treap: self, key, above: Vec::new(), at: self.root }
    }

    /// Inserts a node without children into the tree. Walks down to the first node of a lower priority, splits the subtree
    /// there by the new node's key, and takes its place. As priorities are random, the walk and that subtree's depth are
    /// O(log n) on average.
    fn insert_node(&mut self, position: Position) {
        let Some(new) = self.node(position) else { return };
        let (key, priority, weight) = ((new.value.key(), position), new.priority, new.sum);
        let (mut parent, mut at) = (None, self.root);
        while let Some(node) = self.node_mut(at).filter(|node| node.priority >= priority) {
            node.sum = node.sum.saturating_add(weight);
            let side = if (node.value.key(), at) < key { Side::Right } else { Side::Left };
            parent = Some((at, side));
            at = node.child(side);
        }
        let (left, right) = self.split(at, key);
        if let Some(node) = self.node_mut(position) {
            (node.left, node.right) = (left, right);
        }
        self.refresh(position);
        self.set_child(parent, position);
    }

    /// Removes a node from the tree. Its children take its place.
    fn remove_node(&mut self, position: Position) {
        let Some(old) = self.node(position) else { return };
        let (key, weight) = ((old.value.key(), position), u128::from(old.value.weight()));
        let (left, right) = (old.left, old.right);
        let (mut parent, mut at) = (None, self.root);
        while let Some(node) = self.node_mut(at).filter(|_| at != position) {
            node.sum = node.sum.saturating_sub(weight);
            let side = if (node.value.key(), at) < key { Side::Right } else { Side::Left };
            parent = Some((at, side));
            at = node.child(side);
        }
        self.merge(parent, left, right);
    }

    /// Puts a subtree below a parent, or in the place of the root.
    fn set_child(&mut self, parent: Option<(Position, Side)>, child: Position) {
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

    /// Splits a subtree into the values before `key` and the rest.
    ///
    /// On the way down each node goes to one of two chains, in which the child that is yet to be found points back up.
    /// On the way up those get their children.
    fn split(&mut self, root: Position, key: (u64, Position)) -> (Position, Position) {
        let (mut before, mut after, mut at) = (NONE, NONE, root);
        while let Some(node) = self.node_mut(at) {
            let (chain, open) = if (node.value.key(), at) < key {
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

    /// Makes a subtree of a chain that [`Treap::split`] left, whose children on one side point up; returns its root.
    fn close(&mut self, lowest: Position, side: Side) -> Position {
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

    /// Joins two subtrees and puts them below a parent. All values of the first come before those of the second.
    fn merge(
        &mut self,
        mut parent: Option<(Position, Side)>,
        mut first: Position,
        mut second: Position,
    ) {
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

    /// Follows the nodes, which were moved together.
    fn renumber(&mut self, positions: &NewPositions) {
        for node in self.nodes.iter_mut() {
            (node.left, node.right) = (positions.get(node.left), positions.get(node.right));
        }
        self.root = positions.get(self.root);
        if let Some(((_, first), (_, last))) = &mut self.ends {
            (*first, *last) = (positions.get(*first), positions.get(*last));
        }
    }

    /// Updates the sum of a node's subtree.
    fn refresh(&mut self, position: Position) {
        let Some(node) = self.node(position) else { return };
        let sum = u128::from(node.value.weight())
            .saturating_add(self.sum(node.left))
            .saturating_add(self.sum(node.right));
        if let Some(node) = self.node_mut(position) {
            node.sum = sum;
        }
    }

    /// The key and position of the outermost value on this side.
    fn outermost(&self, side: Side) -> Option<(u64, Position)> {
        let (mut found, mut at) = (None, self.root);
        while let Some(node) = self.node(at) {
            found = Some((node.value.key(), at));
            at = node.child(side);
        }
        found
    }

    fn sum(&self, position: Position) -> u128 {
        self.node(position).map_or(0, |node| node.sum)
    }

    fn node(&self, position: Position) -> Option<&Node<T>> {
        self.nodes.get(position)
    }

    fn node_mut(&mut self, position: Position) -> Option<&mut Node<T>> {
        self.nodes.get_mut(position)
    }

    /// Xorshift (Marsaglia, "Xorshift RNGs", 2003): priorities need no more, as nobody sees them.
    fn next_priority(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32) as u32
    }
}

/// The values of a [`Treap`] up to a key, in their order.
pub struct Until<'t, T> {
    treap: &'t Treap<T>,
    key: u64,
    /// The nodes whose left subtrees are being visited, the nearest last.
    above: Vec<&'t Node<T>>,
    at: Position,
}

impl<'t, T: Weighted> Iterator for Until<'t, T> {
    type Item = &'t T;

    fn next(&mut self) -> Option<&'t T> {
        while let Some(node) = self.treap.node(self.at) {
            self.above.push(node);
            self.at = node.left;
        }
        let node = self.above.pop()?;
        if node.value.key() > self.key {
            self.above.clear();
            return None;
        }
        self.at = node.right;
        Some(&node.value)
    }
}

#[cfg(test)]
impl<T: Weighted> Treap<T> {
    /// How many nodes lie on the longest way down, and on all of them together.
    pub fn depth(&self) -> (usize, usize) {
        let (mut deepest, mut all, mut row) = (0, 0, vec![self.root]);
        while row.iter().any(|position| *position != NONE) {
            let nodes: Vec<&Node<T>> =
                row.iter().filter_map(|position| self.node(*position)).collect();
            deepest += 1;
            all += deepest * nodes.len();
            row = nodes.iter().flat_map(|node| [node.left, node.right]).collect();
        }
        (deepest, all)
    }

    /// Makes a chain of values of weight 1 whose positions are in the order of their keys: the deepest is the first, or the last.
    pub fn make_chain(&mut self, side: Side) {
        let (mut below, number) = (NONE, self.nodes.len() as Position);
        for rank in 0..number {
            let position = match side {
                Side::Left => rank,
                Side::Right => number - 1 - rank,
            };
            let node = self.node_mut(position).unwrap();
            (node.left, node.right) = match side {
                Side::Left => (below, NONE),
                Side::Right => (NONE, below),
            };
            (node.priority, node.sum) = (rank, u128::from(rank) + 1);
            below = position;
        }
        self.root = below;
    }
}
