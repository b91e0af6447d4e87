//! The order in which reservations are gone, with running sums: a B-tree whose nodes know the totals of their subtrees.
//!
//! ```text
//!              (last 20, total 5)  (last 70, total 4)
//!               /                                  \
//!        10: 2  20: 3                         40: 3  70: 1          the quantities up to 40: 5 + 3
//! ```
//!
//! All entries are equally deep, whatever callers insert and remove. A node that gets too many items splits, and one that
//! has none left is removed. Nodes with few items are not joined. So the depth grows with the logarithm of the number of
//! insertions, not of the entries: it is at most 22 after 2^64 insertions.

/// The position of a reservation in the index, which it keeps while it is there.
pub type Position = u32;

/// The order of the entries: by the time at which the reservation is gone, and then by position.
pub type Key = (u64, Position);

/// The most items of a node. One more still fits into the memory of a vector that has grown to 32.
const MAX_ITEMS: usize = 31;

/// The number of items that stay in a node when it splits. This is more than half of them, as most entries are added at the
/// end of the order, and then a node that has split gets no more.
const ITEMS_AFTER_SPLIT: usize = 24;

/// The sum of some reservations and, in the bits from [`ONE`] on, their number. Both are added at once. 2^32 quantities of
/// 63 bits do not reach these bits.
type Total = u128;

const ONE: Total = 1 << 96;

/// Returns the sum in a total.
fn quantity(total: Total) -> u128 {
    total & (ONE - 1)
}

/// What a node holds: only entries, or only nodes, none of which is empty.
#[derive(Debug)]
enum Item {
    /// The place of a reservation in the order, and its quantity.
    Entry(Key, u64),
    Node(Box<Node>),
}

impl Item {
    fn last(&self) -> Key {
        match self {
            Item::Entry(key, _) => *key,
            Item::Node(node) => node.last,
        }
    }

    fn total(&self) -> Total {
        match self {
            Item::Entry(_, quantity) => ONE.saturating_add(u128::from(*quantity)),
            Item::Node(node) => node.total,
        }
    }
}

fn sum(items: &[Item]) -> Total {
    items.iter().map(Item::total).fold(0, Total::saturating_add)
}

#[derive(Debug, Default)]
struct Node {
    last: Key,
    total: Total,
    items: Vec<Item>,
}

impl Node {
    fn new(items: Vec<Item>) -> Node {
        let last = items.last().map_or((0, 0), Item::last);
        Node { last, total: sum(&items), items }
    }

    /// Returns the index of the first item whose last entry is not before `key`.
    fn position(&self, key: Key) -> usize {
        self.items.partition_point(|item| item.last() < key)
    }

    /// Adds an entry. If the node splits, returns the part that comes after it.
    fn insert(&mut self, key: Key, quantity: u64) -> Option<Node> {
        let (mut at, last) = (self.position(key), self.items.len().saturating_sub(1));
        let entry = Item::Entry(key, quantity);
        self.last = self.last.max(key);
        self.total = self.total.saturating_add(entry.total());
        let new = match self.items.get_mut(at.min(last)) {
            Some(Item::Node(node)) => {
                at = at.min(last).saturating_add(1);
                Item::Node(Box::new(node.insert(key, quantity)?))
            }
            Some(Item::Entry(..)) | None => entry,
        };
        self.items.insert(at, new);
        if self.items.len() <= MAX_ITEMS {
            return None;
        }
        let rest = self.items.split_off(ITEMS_AFTER_SPLIT);
        *self = Node::new(std::mem::take(&mut self.items));
        Some(Node::new(rest))
    }

    /// Removes an entry, and returns its total.
    fn remove(&mut self, key: Key) -> Total {
        let at = self.position(key);
        let (removed, is_empty) = match self.items.get_mut(at) {
            Some(Item::Node(node)) => (node.remove(key), node.items.is_empty()),
            Some(entry) if entry.last() == key => (entry.total(), true),
            Some(Item::Entry(..)) | None => return 0,
        };
        if is_empty {
            self.items.remove(at);
            if self.items.len() < self.items.capacity() / 4 {
                self.items.shrink_to_fit();
            }
        }
        self.last = self.items.last().map_or((0, 0), Item::last);
        self.total = self.total.saturating_sub(removed);
        removed
    }

    /// Returns the total of the entries that are gone at `us`.
    fn total_gone(&self, us: u64) -> Total {
        let gone = self.items.partition_point(|item| item.last().0 <= us);
        let (gone, rest) = self.items.split_at(gone);
        let gone_of_next = match rest.first() {
            Some(Item::Node(node)) => node.total_gone(us),
            Some(Item::Entry(..)) | None => 0,
        };
        sum(gone).saturating_add(gone_of_next)
    }
}

/// Reservations in the order in which they are gone.
#[derive(Debug, Default)]
pub struct Tree {
    root: Node,
}

impl Tree {
    /// Creates a tree of these entries. This is much faster than inserting one after the other.
    pub fn new(entries: impl Iterator<Item = (Key, u64)>) -> Tree {
        let mut items: Vec<Item> =
            entries.map(|(key, quantity)| Item::Entry(key, quantity)).collect();
        items.sort_unstable_by_key(Item::last);
        while items.len() > MAX_ITEMS {
            let mut rest = items.into_iter();
            let nodes = std::iter::from_fn(|| {
                let group: Vec<Item> = rest.by_ref().take(ITEMS_AFTER_SPLIT).collect();
                (!group.is_empty()).then(|| Item::Node(Box::new(Node::new(group))))
            });
            items = nodes.collect();
        }
        Tree { root: Node::new(items) }
    }

    pub fn insert(&mut self, key: Key, quantity: u64) {
        if let Some(rest) = self.root.insert(key, quantity) {
            let first = std::mem::take(&mut self.root);
            self.root = Node::new([first, rest].map(|node| Item::Node(Box::new(node))).into());
        }
    }

    pub fn remove(&mut self, key: Key) {
        self.root.remove(key);
    }

    pub fn first(&self) -> Option<Key> {
        let mut node = &self.root;
        loop {
            match node.items.first()? {
                Item::Node(first) => node = first,
                Item::Entry(key, _) => return Some(*key),
            }
        }
    }

    /// Returns the time at which the last reservation is gone. 0 if there is none.
    pub fn last_gone_us(&self) -> u64 {
        self.root.last.0
    }

    /// Returns the sum and the number of the reservations that are gone at `us`.
    pub fn sum_and_count_gone(&self, us: u64) -> (u128, usize) {
        let total = self.root.total_gone(us);
        (quantity(total), (total / ONE) as usize)
    }

    /// Returns the first reservation for which `enough` is true: the time at which it is gone, and the sum of those before
    /// it. `enough` gets that time and the sum up to and including the reservation, and stays true once it is.
    pub fn first_where<E>(
        &self,
        mut enough: impl FnMut(u64, u128) -> Result<bool, E>,
    ) -> Result<Option<(u64, u128)>, E> {
        let (mut items, mut before) = (self.root.items.as_slice(), 0);
        if items.is_empty() || !enough(self.root.last.0, quantity(self.root.total))? {
            return Ok(None);
        }
        // From here on, `enough` is true for the last of `items`, and `before` is the total of all entries before them.
        loop {
            match (items.split_at(items.len() / 2), items) {
                (_, [Item::Node(node)]) => items = &node.items,
                (_, [Item::Entry((gone_us, _), _)]) => {
                    return Ok(Some((*gone_us, quantity(before))));
                }
                ((first @ [.., last], rest), _) => {
                    let with_first = before.saturating_add(sum(first));
                    if enough(last.last().0, quantity(with_first))? {
                        items = first;
                    } else {
                        (items, before) = (rest, with_first);
                    }
                }
                (([], _), _) => return Ok(None),
            }
        }
    }
}

#[cfg(test)]
impl Tree {
    /// Returns the depth of its entries, the number of its nodes, and the number of entries for which they have room.
    pub fn shape(&self) -> (usize, usize, usize) {
        let (mut row, mut depth, mut nodes, mut room) = (vec![&self.root], 0, 0, 0);
        while !row.is_empty() {
            depth += 1;
            nodes += row.len();
            room += row.iter().map(|node| node.items.capacity()).sum::<usize>();
            let items = row.iter().flat_map(|node| &node.items);
            row = items
                .filter_map(|item| if let Item::Node(node) = item { Some(&**node) } else { None })
                .collect();
        }
        (depth, nodes, room)
    }
}
