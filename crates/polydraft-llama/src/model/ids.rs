//! Which ids are free.

use crate::native::Id;

#[derive(Debug)]
pub(super) struct Ids(Vec<Id>);

impl Ids {
    /// Those from 0 on.
    pub fn new(count: usize) -> Self {
        Self((0..count as Id).rev().collect())
    }

    pub fn left(&self) -> usize {
        self.0.len()
    }

    pub fn take(&mut self) -> Option<Id> {
        self.0.pop()
    }

    pub fn give(&mut self, id: Id) {
        debug_assert!(!self.0.contains(&id), "{id} is free already");
        self.0.push(id);
    }

    /// No more than so many.
    pub fn leave(&mut self, count: usize) {
        self.0.truncate(count);
    }
}
