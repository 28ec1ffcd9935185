//! Free sequence ids.

use crate::native::Id;

/// Stack of free ids.
#[derive(Debug)]
pub(super) struct Ids(Vec<Id>);

impl Ids {
    /// The ids from 0 to `count - 1`, all free.
    pub fn new(count: usize) -> Self {
        Self((0..count as Id).rev().collect())
    }

    /// Number of free ids.
    pub fn left(&self) -> usize {
        self.0.len()
    }

    pub fn take(&mut self) -> Option<Id> {
        self.0.pop()
    }

    pub fn release(&mut self, id: Id) {
        debug_assert!(!self.0.contains(&id), "{id} is free already");
        self.0.push(id);
    }

    /// Drops free ids until `count` are left.
    pub fn limit(&mut self, count: usize) {
        self.0.truncate(count);
    }
}
