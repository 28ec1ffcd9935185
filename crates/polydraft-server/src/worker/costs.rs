//! Cost of steps for adaptive trees: known, or measured between the steps of requests.
//!
//! Problem: the first answer should not wait until everything is measured, and a request with a
//! seed must get the same output before and after.
//! Method: parts of the measurement run between steps, and back to back while the engine is idle.
//! Until it is complete, requests with an adaptive tree draft nothing; those with a seed wait for
//! it.

use std::sync::{Arc, OnceLock};

use polydraft::policy::Costs;
use polydraft_engine::Engine;
use polydraft_runtime::Listener;
use polydraft_runtime::costs::PendingCosts;
use polydraft_runtime::message::Message;

use super::job::RequestParams;

/// Source of the cost of steps.
pub enum CostsToUse {
    /// Known costs.
    Known(Costs),
    /// A measurement that is still running.
    Measuring(Box<PendingCosts>),
}

impl Default for CostsToUse {
    fn default() -> Self {
        Self::Known(Costs::default())
    }
}

/// Steps of requests between two parts of the measurement.
const STEPS_BETWEEN_PARTS: usize = 4;

/// Sends messages to the log.
struct LogListener;

impl Listener for LogListener {
    fn note(&self, message: &Message) {
        log::info!("{message}");
    }

    fn detail(&self, message: &Message) {
        log::debug!("{message}");
    }
}

/// Cost of steps, owned by the engine thread.
pub(super) struct StepCosts {
    /// Final costs, once they are known.
    known: Arc<OnceLock<Costs>>,
    /// The measurement, until it is complete.
    measuring: Option<Box<PendingCosts>>,
    /// Steps since the last part.
    steps: usize,
}

impl StepCosts {
    pub fn new(costs: CostsToUse) -> Self {
        let (known, measuring) = match costs {
            CostsToUse::Known(costs) => (OnceLock::from(costs), None),
            CostsToUse::Measuring(measuring) => (OnceLock::new(), Some(measuring)),
        };
        Self { known: Arc::new(known), measuring, steps: 0 }
    }

    /// Handle on the final costs, for builders of trees outside this thread.
    pub fn known(&self) -> Arc<OnceLock<Costs>> {
        self.known.clone()
    }

    /// Whether a part is left to measure.
    pub fn is_measuring(&self) -> bool {
        self.measuring.is_some()
    }

    /// Measures a part if one is due: the engine is idle, or enough steps were made. Returns
    /// whether the final costs have just become known.
    pub fn advance(&mut self, engine: &mut Engine, idle: bool) -> bool {
        self.steps += 1;
        let is_due = idle || self.steps >= STEPS_BETWEEN_PARTS;
        is_due && self.is_measuring() && {
            self.steps = 0;
            self.measure(engine)
        }
    }

    /// Measures a part. Returns whether it was the last one.
    fn measure(&mut self, engine: &mut Engine) -> bool {
        let Some(measuring) = &mut self.measuring else { return true };
        match measuring.advance(engine) {
            Ok(true) => return false,
            Ok(false) => {}
            // Requests will fail with the same error, and report it.
            Err(error) => log::warn!("cannot measure the cost of steps: {error:#}"),
        }
        let costs =
            self.measuring.take().map(|measuring| measuring.finish(&LogListener)).transpose();
        let costs = costs.unwrap_or_else(|error| {
            log::warn!("cannot store the cost of steps: {error:#}");
            None
        });
        self.known.get_or_init(|| costs.unwrap_or_default());
        true
    }

    /// Takes the verifier and tree of a sequence. The returned flag is true if they already have
    /// the final costs. For a request with a seed, completes the measurement first.
    pub fn take_speculation(
        &mut self,
        params: &mut RequestParams,
        number: usize,
        engine: &mut Engine,
    ) -> (Option<polydraft_engine::Speculation>, bool) {
        let Some(speculation) = &mut params.speculation else { return (None, true) };
        let built = speculation.take(number);
        if !speculation.lacks_costs() {
            return (built, true);
        }
        while params.seeded && self.is_measuring() {
            self.measure(engine);
        }
        match self.known.get() {
            Some(costs) => (speculation.with_costs(costs).or(built), true),
            None => (built, false),
        }
    }

    /// Builds the verifier and tree of a running sequence with the final costs; `None` if these are
    /// not known.
    pub fn final_speculation(
        &self,
        params: &RequestParams,
    ) -> Option<polydraft_engine::Speculation> {
        params.speculation.as_ref()?.with_costs(self.known.get()?)
    }
}
