//! Values by number, in one list.

/// Names a value of a [`Slab`] for as long as it stays.
pub type Slot = u32;

/// Names no value.
pub const NONE: Slot = Slot::MAX;

/// A slab is not made shorter below this length.
const FEW: usize = 32;

/// Values, each with a number. The number of a removed value is used again.
#[derive(Debug)]
pub struct Slab<T> {
    values: Vec<Option<T>>,
    free: Vec<Slot>,
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

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.values.len().saturating_sub(self.free.len())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// About how many bytes it takes, without what the values keep elsewhere.
    pub fn bytes(&self) -> usize {
        self.values.capacity().saturating_mul(size_of::<Option<T>>())
    }

    /// The number that the next value gets; `None` where there are as many as can be numbered.
    pub fn next_slot(&self) -> Option<Slot> {
        match self.free.last() {
            Some(slot) => Some(*slot),
            None => Slot::try_from(self.values.len()).ok().filter(|slot| *slot != NONE),
        }
    }

    /// Adds a value, which gets the number that [`Slab::next_slot`] says. Nothing where that says `None`.
    pub fn insert(&mut self, value: T) {
        let Some(slot) = self.next_slot() else { return };
        match self.values.get_mut(slot as usize) {
            Some(place) => {
                *place = Some(value);
                self.free.pop();
            }
            None => self.values.push(Some(value)),
        }
    }

    /// The value of this number.
    #[inline]
    pub fn get(&self, slot: Slot) -> Option<&T> {
        self.values.get(slot as usize)?.as_ref()
    }

    /// The value of this number, to change it.
    #[inline]
    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut T> {
        self.values.get_mut(slot as usize)?.as_mut()
    }

    /// Takes a value out.
    pub fn remove(&mut self, slot: Slot) -> Option<T> {
        let value = self.values.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(value)
    }

    /// All values, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.values.iter().flatten()
    }

    /// The same, to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.values.iter_mut().flatten()
    }

    /// Moves the values together, in their order, where most numbers are free, so that no memory is kept for what was
    /// removed. Returns the new numbers. O(n), after as many removals.
    pub fn compact(&mut self) -> Option<NewSlots> {
        let (len, places) = (self.len(), self.values.len());
        if places <= FEW || len >= places / 4 {
            return None;
        }
        let mut slots = vec![NONE; places];
        let mut kept = Vec::with_capacity(len);
        for (slot, value) in slots.iter_mut().zip(self.values.drain(..)) {
            if value.is_some() {
                *slot = Slot::try_from(kept.len()).unwrap_or(NONE);
                kept.push(value);
            }
        }
        (self.values, self.free) = (kept, Vec::new());
        Some(NewSlots(slots))
    }
}

/// The numbers that values got when they were moved together, by the old ones.
#[derive(Debug)]
pub struct NewSlots(Vec<Slot>);

impl NewSlots {
    /// The new number of the value that had this one; [`NONE`] for none.
    pub fn of(&self, old: Slot) -> Slot {
        self.0.get(old as usize).copied().unwrap_or(NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_keeps_its_number_until_most_others_are_gone() {
        let mut slab = Slab::new();
        for value in 0..200 {
            assert_eq!(slab.next_slot(), Some(value));
            slab.insert(value);
        }
        assert!((0..150).all(|slot| slab.remove(slot) == Some(slot)));
        assert!(slab.remove(7).is_none() && slab.get(7).is_none() && slab.get(NONE).is_none());
        assert!(slab.compact().is_none(), "a quarter is left");
        assert_eq!(slab.remove(199), Some(199));
        let bytes = slab.bytes();
        let slots = slab.compact().unwrap();
        assert_eq!((slots.of(150), slots.of(198), slots.of(199), slots.of(0)), (0, 48, NONE, NONE));
        assert!(slab.iter().copied().eq(150..199));
        assert!(slab.len() == 49 && slab.bytes() < bytes && slab.next_slot() == Some(49));
        assert_eq!(slab.get_mut(48).copied(), Some(198));
    }

    #[test]
    fn numbers_are_given_again() {
        let mut slab = Slab::default();
        "abc".chars().for_each(|value| slab.insert(value));
        slab.remove(1);
        assert_eq!(slab.next_slot(), Some(1));
        slab.insert('d');
        assert!(slab.iter().copied().eq("adc".chars()) && !slab.is_empty());
        slab.iter_mut().for_each(|value| *value = 'x');
        assert!(slab.iter().all(|value| *value == 'x') && slab.compact().is_none());
    }
}
