//! What the tests of the index need to see and to shape.

use super::*;

impl Tree {
    /// How many nodes lie on the longest way down, and on all of them together.
    pub fn depth(&self) -> (usize, usize) {
        let (mut deepest, mut all, mut row) = (0, 0, vec![self.root]);
        while row.iter().any(|position| *position != NONE) {
            let nodes: Vec<&Node> =
                row.iter().filter_map(|position| self.node(*position)).collect();
            deepest += 1;
            all += deepest * nodes.len();
            row = nodes.iter().flat_map(|node| [node.left, node.right]).collect();
        }
        (deepest, all)
    }

    /// Makes a chain of reservations whose positions are in their order: the deepest is the first, or the last.
    pub fn make_chain(&mut self, side: Side) {
        let number = self.nodes.len() as Position;
        self.root = NONE;
        for rank in 0..number {
            let position = match side {
                Side::Left => rank,
                Side::Right => number - 1 - rank,
            };
            let (below, total) = (self.root, self.total(self.root));
            let node = self.node_mut(position).unwrap();
            (node.left, node.right) = (NONE, NONE);
            *node.child(side) = below;
            node.total = total + ONE + u128::from(node.reservation.quantity);
            self.root = position;
        }
    }
}
