//! A sequence's random decisions, which can be taken back: a step that failed because of a
//! neighbour and is tried again must come to the same decisions, or a seed would not give the same
//! output in every batch.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use polydraft::RandomSource;
use polydraft::random::Outcomes;
use polydraft_runtime::SeededRng;

/// The rng, and its state before the step. A clone is a second handle of the same.
#[derive(Clone)]
pub(super) struct Reversible(Arc<Mutex<(SeededRng, SeededRng)>>);

impl Reversible {
    pub fn new(random: SeededRng) -> Self {
        Self(Arc::new(Mutex::new((random.clone(), random))))
    }

    /// A panic while it is locked leaves numbers drawn, which going back undoes.
    fn both(&self) -> MutexGuard<'_, (SeededRng, SeededRng)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From here on decisions can be taken back.
    pub fn mark(&self) {
        let (now, before) = &mut *self.both();
        before.clone_from(now);
    }

    /// Takes back what was decided since then.
    pub fn go_back(&self) {
        let (now, before) = &mut *self.both();
        now.clone_from(before);
    }
}

impl RandomSource for Reversible {
    fn coin(&mut self, probability: f64) -> bool {
        self.both().0.coin(probability)
    }

    fn choose(&mut self, outcomes: &dyn Outcomes) -> usize {
        self.both().0.choose(outcomes)
    }
}
