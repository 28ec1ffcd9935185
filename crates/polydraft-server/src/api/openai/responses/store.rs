//! Store of answers by id, limited in size. Later requests may continue them.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

/// Approximate maximum bytes of all stored answers with their conversations.
const MAX_BYTES: usize = 64 << 20;

/// A stored answer.
#[derive(Debug, Clone)]
pub struct Stored {
    /// The answer as it was sent.
    pub object: Value,
    /// The conversation up to it and its output, as items of an `input`.
    pub items: Vec<Value>,
}

/// Stored answers, oldest first. When full, the oldest is evicted.
#[derive(Debug)]
pub struct Store {
    entries: Mutex<VecDeque<(String, usize, Stored)>>,
    max_bytes: usize,
}

impl Default for Store {
    fn default() -> Self {
        Self { entries: Mutex::default(), max_bytes: MAX_BYTES }
    }
}

impl Store {
    fn entries(&self) -> MutexGuard<'_, VecDeque<(String, usize, Stored)>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an answer.
    pub fn insert(&self, id: String, stored: Stored) {
        let items: usize = stored.items.iter().map(|item| item.to_string().len()).sum();
        let size = items + stored.object.to_string().len();
        let mut entries = self.entries();
        entries.push_back((id, size, stored));
        let mut total: usize = entries.iter().map(|(_, size, _)| size).sum();
        while total > self.max_bytes {
            let Some((_, size, _)) = entries.pop_front() else { break };
            total -= size;
        }
    }

    /// Returns the answer of this id.
    pub fn get(&self, id: &str) -> Option<Stored> {
        self.entries().iter().find(|(known, ..)| known == id).map(|(.., stored)| stored.clone())
    }

    /// Removes the answer of this id. Returns whether it was stored.
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
    fn evicts_oldest_answers_first() {
        let store = Store { max_bytes: 100, ..Store::default() };
        let stored = || Stored { object: Value::from("x".repeat(30)), items: Vec::new() };
        ["a", "b", "c", "d"].into_iter().for_each(|id| store.insert(id.to_owned(), stored()));
        assert!(store.get("a").is_none() && store.get("b").is_some());
        assert!(store.remove("b") && !store.remove("b") && store.get("b").is_none());
    }
}
