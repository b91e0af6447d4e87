//! A list of values that keep their positions.

/// Where a [`Slab`] keeps a value, as long as it does.
pub type Position = u32;

/// No position.
pub const NONE: Position = Position::MAX;

/// A slab of up to this length is not compacted.
const FEW: usize = 32;

/// Values at fixed positions. The position of a removed value is used again.
#[derive(Debug)]
pub struct Slab<T> {
    values: Vec<Option<T>>,
    free: Vec<Position>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab::new()
    }
}

impl<T> Slab<T> {
    /// No values.
    pub const fn new() -> Slab<T> {
        Slab { values: Vec::new(), free: Vec::new() }
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.values.len().saturating_sub(self.free.len())
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// About how many bytes it takes, without what its values allocate.
    pub fn bytes(&self) -> usize {
        self.values.capacity().saturating_mul(size_of::<Option<T>>())
    }

    /// The position of the next value. `None` if the slab is full.
    pub fn next_position(&self) -> Option<Position> {
        match self.free.last() {
            Some(position) => Some(*position),
            None => Position::try_from(self.values.len()).ok().filter(|position| *position != NONE),
        }
    }

    /// Adds a value at [`Slab::next_position`]. Does nothing if the slab is full.
    pub fn insert(&mut self, value: T) {
        let Some(position) = self.next_position() else { return };
        match self.values.get_mut(position as usize) {
            Some(place) => {
                *place = Some(value);
                self.free.pop();
            }
            None => self.values.push(Some(value)),
        }
    }

    /// The value at this position.
    #[inline]
    pub fn get(&self, position: Position) -> Option<&T> {
        self.values.get(position as usize)?.as_ref()
    }

    /// The value at this position, mutably.
    #[inline]
    pub fn get_mut(&mut self, position: Position) -> Option<&mut T> {
        self.values.get_mut(position as usize)?.as_mut()
    }

    /// Removes the value at this position, and returns it.
    pub fn remove(&mut self, position: Position) -> Option<T> {
        let value = self.values.get_mut(position as usize)?.take()?;
        self.free.push(position);
        Some(value)
    }

    /// All values, in the order of their positions.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.values.iter().flatten()
    }

    /// All values, mutably, in the order of their positions.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.values.iter_mut().flatten()
    }

    /// Moves the values together, in their order, if most positions are free, and returns their new positions. This gives back
    /// the memory of removed values. O(n), after that many removals.
    pub fn compact(&mut self) -> Option<NewPositions> {
        let (len, places) = (self.len(), self.values.len());
        if places <= FEW || len >= places / 4 {
            return None;
        }
        let mut positions = vec![NONE; places];
        let mut kept = Vec::with_capacity(len);
        for (position, value) in positions.iter_mut().zip(self.values.drain(..)) {
            if value.is_some() {
                *position = Position::try_from(kept.len()).unwrap_or(NONE);
                kept.push(value);
            }
        }
        (self.values, self.free) = (kept, Vec::new());
        Some(NewPositions(positions))
    }
}

/// Where values are after [`Slab::compact`].
#[derive(Debug)]
pub struct NewPositions(Vec<Position>);

impl NewPositions {
    /// The new position of the value that was at `old`, or [`NONE`].
    pub fn get(&self, old: Position) -> Position {
        self.0.get(old as usize).copied().unwrap_or(NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_keeps_its_position_until_most_others_are_gone() {
        let mut slab = Slab::new();
        for value in 0..200 {
            assert_eq!(slab.next_position(), Some(value));
            slab.insert(value);
        }
        assert!((0..150).all(|position| slab.remove(position) == Some(position)));
        assert!(slab.remove(7).is_none() && slab.get(7).is_none() && slab.get(NONE).is_none());
        assert!(slab.compact().is_none(), "a quarter is left");
        assert_eq!(slab.remove(199), Some(199));
        let bytes = slab.bytes();
        let positions = slab.compact().unwrap();
        assert_eq!(
            (positions.get(150), positions.get(198), positions.get(199), positions.get(0)),
            (0, 48, NONE, NONE)
        );
        assert!(slab.iter().copied().eq(150..199));
        assert!(slab.len() == 49 && slab.bytes() < bytes && slab.next_position() == Some(49));
        assert_eq!(slab.get_mut(48).copied(), Some(198));
    }

    #[test]
    fn positions_are_used_again() {
        let mut slab = Slab::default();
        "abc".chars().for_each(|value| slab.insert(value));
        slab.remove(1);
        assert_eq!(slab.next_position(), Some(1));
        slab.insert('d');
        assert!(slab.iter().copied().eq("adc".chars()) && !slab.is_empty());
        slab.iter_mut().for_each(|value| *value = 'x');
        assert!(slab.iter().all(|value| *value == 'x') && slab.compact().is_none());
    }
}
