//! What steps cost, for adaptive trees: known, or measured between the steps of requests.
//!
//! Problem: the first answer is not to wait until everything is measured, and a request with a seed
//! is to get the same output before and after.
//! Method: parts of the measurement come between steps, one after another while nothing else is to
//! do. Until it is complete nothing is drafted for requests with an adaptive tree; one with a seed
//! waits for it.

use polydraft::policy::Costs;
use polydraft_engine::Engine;
use polydraft_runtime::costs::Measuring;
use polydraft_runtime::message::Message;
use polydraft_runtime::{Listener, Speculation};

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
    costs: CostsToUse,
    /// Steps since the last part.
    steps: usize,
}

impl StepCosts {
    pub fn new(costs: CostsToUse) -> Self {
        Self { costs, steps: 0 }
    }

    /// Whether there is something left to measure.
    pub fn is_measuring(&self) -> bool {
        matches!(self.costs, CostsToUse::Measuring(_))
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
        let CostsToUse::Measuring(measuring) = &mut self.costs else { return true };
        match measuring.advance(engine) {
            Ok(true) => return false,
            Ok(false) => {}
            // What the models fail with, requests will fail with too, and say so.
            Err(error) => log::warn!("what steps cost was not measured: {error:#}"),
        }
        let costs = std::mem::take(&mut self.costs);
        if let CostsToUse::Measuring(measuring) = costs {
            match measuring.finish(&Log) {
                Ok(costs) => self.costs = CostsToUse::Known(costs),
                Err(error) => log::warn!("what steps cost was not stored: {error:#}"),
            }
        }
        true
    }

    /// Gives an adaptive tree the costs; where they are to be the final ones, once they are.
    /// Whether they are final.
    pub fn give(
        &mut self,
        speculation: &mut Speculation,
        to_last: bool,
        engine: &mut Engine,
    ) -> bool {
        let Some(auto) = speculation.tree.auto_mut() else { return true };
        while to_last && self.is_measuring() {
            self.measure(engine);
        }
        match &self.costs {
            CostsToUse::Known(costs) => auto.costs = costs.clone(),
            CostsToUse::Measuring(_) => auto.costs = Costs::without_drafts(),
        }
        !self.is_measuring()
    }
}
