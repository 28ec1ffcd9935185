//! Random decisions of a sequence that can be undone. A step that failed because of a neighbour is
//! tried again and must make the same decisions, so that a seed gives the same output in every
//! batch.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use polydraft::RandomSource;
use polydraft::random::Outcomes;
use polydraft_runtime::SeededRng;

/// Current state of the generator, and its state before the step. Clones share them.
#[derive(Clone)]
pub(super) struct ReversibleRng(Arc<Mutex<(SeededRng, SeededRng)>>);

impl ReversibleRng {
    pub fn new(random: SeededRng) -> Self {
        Self(Arc::new(Mutex::new((random.clone(), random))))
    }

    /// Locks the states. A panic while they are locked leaves numbers drawn, which `rewind` undoes.
    fn lock(&self) -> MutexGuard<'_, (SeededRng, SeededRng)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the state to return to.
    pub fn mark(&self) {
        let (current, marked) = &mut *self.lock();
        marked.clone_from(current);
    }

    /// Returns to the marked state.
    pub fn rewind(&self) {
        let (current, marked) = &mut *self.lock();
        current.clone_from(marked);
    }
}

impl RandomSource for ReversibleRng {
    fn coin(&mut self, probability: f64) -> bool {
        self.lock().0.coin(probability)
    }

    fn choose(&mut self, outcomes: &dyn Outcomes) -> usize {
        self.lock().0.choose(outcomes)
    }
}
