//! Policy wrapper that estimates the time of steps from costs.

use polydraft::Growth;
use polydraft::draft::{Draft, Form, Path};
use polydraft::policy::{Choices, CostEstimate, Costs, StepContext, Timed};
use polydraft::{Distribution, Outcome, Policy};

/// Wraps a policy; its [`choices`](Timed::choices) are time estimates from costs.
pub struct ByCosts {
    policy: Box<dyn Policy>,
    estimate: CostEstimate,
}

impl ByCosts {
    /// Wraps a policy with these costs.
    pub fn new(policy: Box<dyn Policy>, costs: Costs) -> Self {
        Self { policy, estimate: CostEstimate::new(costs) }
    }
}

impl Policy for ByCosts {
    fn may_grow(&self, path: &Path) -> bool {
        self.policy.may_grow(path)
    }

    fn draws(&self, path: &Path, probs: &Distribution) -> Option<Growth> {
        self.policy.draws(path, probs)
    }

    fn depth(&self) -> usize {
        self.policy.depth()
    }

    fn form(&self) -> Form {
        self.policy.form()
    }

    fn begin_step(&mut self, context: &StepContext) {
        self.estimate.context = *context;
        self.policy.begin_step(context);
    }

    fn observe(&mut self, draft: &Draft, outcome: &Outcome) {
        self.estimate.observe(draft, outcome);
        self.policy.observe(draft, outcome);
    }

    fn timed(&self) -> Option<&dyn Timed> {
        Some(self)
    }

    fn timed_mut(&mut self) -> Option<&mut dyn Timed> {
        Some(self)
    }
}

impl Timed for ByCosts {
    fn record_time(&mut self, seconds: f64, draft_seconds: f64) {
        self.estimate.record_time(seconds, draft_seconds);
        if let Some(policy) = self.policy.timed_mut() {
            policy.record_time(seconds, draft_seconds);
        }
    }

    fn choices(&self) -> &Choices {
        &self.estimate.choices
    }
}
