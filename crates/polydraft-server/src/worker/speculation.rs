//! Verifiers and trees of requests, built where a request is checked. Each sequence has its own.

use polydraft_runtime::Speculation;

use super::costs::SharedCosts;

/// Verifiers and trees for the sequences of a prompt.
pub struct BuiltSpeculation {
    settings: Speculation,
    /// One entry per sequence, taken when it is opened.
    built: Vec<Option<polydraft_engine::Speculation>>,
}

impl BuiltSpeculation {
    /// Builds `count` verifiers and trees, an adaptive one with the costs of steps.
    ///
    /// # Errors
    /// Settings out of range; a verifier that is not exact for the tree.
    pub(super) fn new(
        mut settings: Speculation,
        costs: &SharedCosts,
        is_seeded: bool,
        count: usize,
    ) -> anyhow::Result<Self> {
        if let Some(adaptive) = settings.tree.auto_mut() {
            costs.apply(adaptive, is_seeded);
        }
        Self::with_settings(settings, count)
    }

    /// Builds the same number of verifiers and trees for another prompt.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub(super) fn for_another_prompt(&self) -> anyhow::Result<Self> {
        Self::with_settings(self.settings.clone(), self.built.len())
    }

    fn with_settings(settings: Speculation, count: usize) -> anyhow::Result<Self> {
        let built = (0..count).map(|_| settings.build().map(Some));
        let built = built.collect::<anyhow::Result<_>>()?;
        Ok(Self { settings, built })
    }

    /// Takes the verifier and tree of this sequence.
    pub(super) fn take(&mut self, number: usize) -> Option<polydraft_engine::Speculation> {
        self.built.get_mut(number)?.take()
    }
}

#[cfg(test)]
mod tests {
    use polydraft::Sampling;
    use polydraft::policy::{Auto, Choices};
    use polydraft_runtime::costs::StepCosts;

    use super::*;

    fn settings(verifier: &str, tree: &str) -> Speculation {
        let (verifier, tree) = (verifier.parse().unwrap(), tree.parse().unwrap());
        Speculation::new(verifier, tree, Sampling::default())
    }

    #[test]
    fn each_sequence_takes_its_own_once() {
        let (costs, tree) = (SharedCosts::default(), settings("token", "paths:1,4"));
        let mut built = BuiltSpeculation::new(tree, &costs, true, 2).unwrap();
        let mut others = built.for_another_prompt().unwrap();
        for built in [&mut built, &mut others] {
            assert!(built.take(1).is_some() && built.take(0).is_some());
            assert!(built.take(0).is_none() && built.take(1).is_none() && built.take(2).is_none());
        }
        assert!(BuiltSpeculation::new(settings("token", "3,2"), &costs, true, 1).is_err());
    }

    /// Learned costs are for requests without a seed only.
    #[test]
    fn a_seed_keeps_the_costs_of_adaptive_trees() {
        let mut auto = Auto::default();
        let costs = SharedCosts::new(StepCosts::learning(auto.costs.clone()));
        let mut costs_of = |is_seeded| {
            costs.apply(&mut auto, is_seeded);
            (auto.costs.clone(), auto.times_plain)
        };
        let (before, unseeded) = (costs_of(true), costs_of(false));
        costs.learn(&Choices { steps: 9, verified: 100, rejected: 3, ..Choices::default() });
        assert_eq!(costs_of(true), before);
        assert_ne!(costs_of(false), unseeded);
        assert!(!before.1 && unseeded.1);
    }
}
