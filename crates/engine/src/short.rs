//! Lists that are seldom long, of values too large to be moved.

use std::ops::{Deref, DerefMut};

/// A list that allocates nothing up to `N` values, each of which is set in its place. A longer one lies in memory of its own
/// as a whole. A `smallvec` is better where values are small: it need not make `N` of them, but moves each that it takes.
#[derive(Debug)]
pub struct ShortList<T, const N: usize> {
    first: [T; N],
    /// How many of `first` there are, unless there are more.
    len: usize,
    /// All values, where there are more than `N`.
    all: Vec<T>,
}

impl<T: Default, const N: usize> Default for ShortList<T, N> {
    fn default() -> Self {
        ShortList::new()
    }
}

impl<T: Default, const N: usize> ShortList<T, N> {
    /// No values.
    pub fn new() -> ShortList<T, N> {
        ShortList { first: std::array::from_fn(|_| T::default()), len: 0, all: Vec::new() }
    }

    /// Adds a value that is yet to be set, and returns its place.
    #[inline]
    pub fn add(&mut self) -> Option<&mut T> {
        if self.len == N {
            return self.add_further();
        }
        let place = self.first.get_mut(self.len);
        self.len = self.len.saturating_add(1);
        place
    }

    #[cold]
    fn add_further(&mut self) -> Option<&mut T> {
        if self.all.is_empty() {
            self.all.extend(self.first.iter_mut().map(std::mem::take));
        }
        self.all.push(T::default());
        self.all.last_mut()
    }
}

impl<T, const N: usize> Deref for ShortList<T, N> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self.all.is_empty() {
            true => self.first.get(..self.len).unwrap_or_default(),
            false => &self.all,
        }
    }
}

impl<T, const N: usize> DerefMut for ShortList<T, N> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self.all.is_empty() {
            true => self.first.get_mut(..self.len).unwrap_or_default(),
            false => &mut self.all,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_in_order_however_long_it_grows() {
        let mut list = ShortList::<u32, 3>::new();
        for len in 0..9 {
            assert_eq!(list.len(), len as usize);
            assert!(list.iter().copied().eq(0..len));
            *list.add().unwrap() = len;
        }
        list.iter_mut().for_each(|value| *value += 1);
        assert!(list.iter().copied().eq(1..10));
    }
}
