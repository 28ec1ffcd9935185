//! Table of open sequences.

use std::iter::{Enumerate, FilterMap};
use std::ops::{Index, IndexMut};
use std::slice;

use crate::Sequence;

/// The state of a model or a drafter for each open sequence. A new sequence gets the lowest free
/// number.
///
/// ```
/// use polydraft_engine::Slots;
///
/// let mut slots = Slots::default();
/// let (first, second) = (slots.open("first"), slots.open("second"));
/// assert_eq!(slots.close(first), Some("first"));
/// assert_eq!((slots.len(), slots[second]), (1, "second"));
/// assert_eq!(slots.open("third"), first);
/// ```
#[derive(Debug, Clone)]
pub struct Slots<T> {
    /// States by number; `None` where the slot is free.
    slots: Vec<Option<T>>,
}

/// Iterator of [`Slots::iter_mut`]. An opaque type would borrow the table to the end of its scope;
/// several of the states may be in use at once.
pub type IterMut<'a, T> = FilterMap<
    Enumerate<slice::IterMut<'a, Option<T>>>,
    fn((usize, &'a mut Option<T>)) -> Option<(Sequence, &'a mut T)>,
>;

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { slots: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// Opens a sequence.
    pub fn open(&mut self, state: T) -> Sequence {
        let free = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        match self.slots.get_mut(free) {
            Some(slot) => *slot = Some(state),
            None => self.slots.push(Some(state)),
        }
        Sequence::new(free as u32)
    }

    /// Frees a slot and returns its state; `None` if it was free.
    pub fn close(&mut self, sequence: Sequence) -> Option<T> {
        self.slots.get_mut(sequence.number())?.take()
    }

    /// Returns the number of open sequences.
    pub fn len(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// Returns whether no sequence is open.
    pub fn is_empty(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }

    /// Returns the state of a sequence, if it is open.
    pub fn get(&self, sequence: Sequence) -> Option<&T> {
        self.slots.get(sequence.number())?.as_ref()
    }

    /// Returns the state of a sequence, mutably, if it is open.
    pub fn get_mut(&mut self, sequence: Sequence) -> Option<&mut T> {
        self.slots.get_mut(sequence.number())?.as_mut()
    }

    /// Returns the open sequences in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (Sequence, &T)> {
        let numbered = self.slots.iter().enumerate();
        numbered.filter_map(|(number, slot)| Some((Sequence::new(number as u32), slot.as_ref()?)))
    }

    /// Returns the open sequences, mutably, in the order of their numbers.
    pub fn iter_mut(&mut self) -> IterMut<'_, T> {
        let open = |(number, slot)| Some((Sequence::new(number as u32), Option::as_mut(slot)?));
        self.slots.iter_mut().enumerate().filter_map(open)
    }
}

impl<T> Index<Sequence> for Slots<T> {
    type Output = T;

    /// # Panics
    /// If the sequence is not open, which is a mistake of the caller.
    fn index(&self, sequence: Sequence) -> &T {
        self.get(sequence).unwrap_or_else(|| not_open(sequence))
    }
}

impl<T> IndexMut<Sequence> for Slots<T> {
    fn index_mut(&mut self, sequence: Sequence) -> &mut T {
        self.get_mut(sequence).unwrap_or_else(|| not_open(sequence))
    }
}

fn not_open(sequence: Sequence) -> ! {
    panic!("expected an open sequence, got number {}", sequence.number())
}
