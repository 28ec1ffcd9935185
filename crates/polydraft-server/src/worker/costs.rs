//! Costs of steps for adaptive trees, learned from finished sequences without a seed.
//!
//! A request with a seed gets costs that nothing learned has an influence on, so that the seed
//! gives the same output under any load.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use polydraft::policy::{Auto, Choices};
use polydraft_runtime::costs::StepCosts;

/// Shortest time between two writes of the learned costs.
const STORE_INTERVAL: Duration = Duration::from_secs(30);

/// Costs of steps, shared by the engine thread and the builders of trees.
#[derive(Debug, Clone)]
pub struct SharedCosts(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    costs: StepCosts,
    /// Whether something was learned since the costs were stored.
    is_changed: bool,
    stored_at: Instant,
}

impl SharedCosts {
    pub(super) fn new(costs: StepCosts) -> Self {
        let state = State { costs, is_changed: false, stored_at: Instant::now() };
        Self(Arc::new(Mutex::new(state)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the costs of an adaptive tree.
    pub(super) fn apply(&self, tree: &mut Auto, is_seeded: bool) {
        self.lock().costs.apply(tree, is_seeded);
    }

    /// Learns from a finished sequence without a seed, and stores what was learned now and then.
    pub(super) fn learn(&self, choices: &Choices) {
        let mut state = self.lock();
        state.costs.learn(choices);
        state.is_changed = true;
        let is_due = state.stored_at.elapsed() >= STORE_INTERVAL;
        drop(state);
        if is_due {
            self.store();
        }
    }

    /// Stores what was learned.
    pub(super) fn store(&self) {
        let mut state = self.lock();
        if std::mem::take(&mut state.is_changed) {
            state.costs.store();
            state.stored_at = Instant::now();
        }
    }
}

impl Default for SharedCosts {
    fn default() -> Self {
        Self::new(StepCosts::default())
    }
}
