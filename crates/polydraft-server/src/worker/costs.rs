//! What steps cost, for adaptive trees: known, or measured between the steps of requests.
//!
//! Problem: the first answer is not to wait until everything is measured, and a request with a seed
//! is to get the same output before and after.
//! Method: parts of the measurement come between steps, one after another while nothing else is to
//! do. Until it is complete nothing is drafted for requests with an adaptive tree; one with a seed
//! waits for it.

use std::sync::{Arc, OnceLock};

use polydraft::policy::Costs;
use polydraft_engine::Engine;
use polydraft_runtime::Listener;
use polydraft_runtime::costs::Measuring;
use polydraft_runtime::message::Message;

use super::job::RequestParams;

/// Costs, or how they are measured.
pub enum CostsToUse {
    /// They are known.
    Known(Costs),
    /// They are being measured.
    Measuring(Box<Measuring>),
}

impl Default for CostsToUse {
    fn default() -> Self {
        Self::Known(Costs::default())
    }
}

/// Steps of requests between two parts.
const STEPS: usize = 4;

/// What goes to the log.
struct Log;

impl Listener for Log {
    fn note(&self, message: &Message) {
        log::info!("{message}");
    }

    fn detail(&self, message: &Message) {
        log::debug!("{message}");
    }
}

/// The costs on the engine's thread.
pub(super) struct StepCosts {
    /// The final ones, once they are known.
    known: Arc<OnceLock<Costs>>,
    /// The measurement, until it is complete.
    measuring: Option<Box<Measuring>>,
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

    /// The final costs, for those who build trees elsewhere.
    pub fn known(&self) -> Arc<OnceLock<Costs>> {
        self.known.clone()
    }

    /// Whether there is something left to measure.
    pub fn is_measuring(&self) -> bool {
        self.measuring.is_some()
    }

    /// A step of requests was made, or there was nothing to do: measures a part, if one is due.
    /// Whether the costs have become known by it.
    pub fn advance(&mut self, engine: &mut Engine, idle: bool) -> bool {
        self.steps += 1;
        let due = idle || self.steps >= STEPS;
        due && self.is_measuring() && {
            self.steps = 0;
            self.measure(engine)
        }
    }

    /// Measures a part; whether it was the last one.
    fn measure(&mut self, engine: &mut Engine) -> bool {
        let Some(measuring) = &mut self.measuring else { return true };
        match measuring.advance(engine) {
            Ok(true) => return false,
            Ok(false) => {}
            // What the models fail with, requests will fail with too, and say so.
            Err(error) => log::warn!("what steps cost was not measured: {error:#}"),
        }
        let costs = self.measuring.take().map(|measuring| measuring.finish(&Log)).transpose();
        let costs = costs.unwrap_or_else(|error| {
            log::warn!("what steps cost was not stored: {error:#}");
            None
        });
        self.known.get_or_init(|| costs.unwrap_or_default());
        true
    }

    /// Takes verifier and tree of a sequence; whether there are no other costs to come for them.
    /// Those of a request with a seed wait for the final costs.
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

    /// Verifier and tree of a sequence that runs, with the final costs; none if these are not
    /// known.
    pub fn final_speculation(
        &self,
        params: &RequestParams,
    ) -> Option<polydraft_engine::Speculation> {
        params.speculation.as_ref()?.with_costs(self.known.get()?)
    }
}
