//! Answers that later requests may refer to by their ids, as many as there is room for.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

/// Bytes of all stored answers with their conversations, about.
const MOST_BYTES: usize = 64 << 20;

/// One answer.
#[derive(Debug, Clone)]
pub struct Stored {
    /// The answer, as it was sent.
    pub object: Value,
    /// The conversation up to it, and what it said: items of an `input`.
    pub items: Vec<Value>,
}

/// The answers, the oldest first. Where there is no more room the oldest is dropped.
#[derive(Debug)]
pub struct Store {
    entries: Mutex<VecDeque<(String, usize, Stored)>>,
    most: usize,
}

impl Default for Store {
    fn default() -> Self {
        Self { entries: Mutex::default(), most: MOST_BYTES }
    }
}

impl Store {
    fn entries(&self) -> MutexGuard<'_, VecDeque<(String, usize, Stored)>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an answer.
    pub fn insert(&self, id: String, stored: Stored) {
        let items: usize = stored.items.iter().map(|item| item.to_string().len()).sum();
        let size = items + stored.object.to_string().len();
        let mut entries = self.entries();
        entries.push_back((id, size, stored));
        let mut total: usize = entries.iter().map(|(_, size, _)| size).sum();
        while total > self.most {
            let Some((_, size, _)) = entries.pop_front() else { break };
            total -= size;
        }
    }

    /// The answer of this id.
    pub fn get(&self, id: &str) -> Option<Stored> {
        self.entries().iter().find(|(known, ..)| known == id).map(|(.., stored)| stored.clone())
    }

    /// Drops the answer of this id; whether there was one.
    pub fn remove(&self, id: &str) -> bool {
        let mut entries = self.entries();
        let at = entries.iter().position(|(known, ..)| known == id);
        at.and_then(|at| entries.remove(at)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_make_room() {
        let store = Store { most: 100, ..Store::default() };
        let stored = || Stored { object: Value::from("x".repeat(30)), items: Vec::new() };
        ["a", "b", "c", "d"].into_iter().for_each(|id| store.insert(id.to_owned(), stored()));
        assert!(store.get("a").is_none() && store.get("b").is_some());
        assert!(store.remove("b") && !store.remove("b") && store.get("b").is_none());
    }
}
