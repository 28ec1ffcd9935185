//! Verifiers and trees of requests, built where a request is checked.
//!
//! Each sequence has its own. An adaptive tree needs the cost of steps. While that is still being
//! measured, the tree drafts nothing, and the engine thread replaces it by one with the costs once
//! they are known.

use polydraft::policy::Costs;
use polydraft_runtime::Speculation;

/// Verifiers and trees for the sequences of a prompt.
pub struct BuiltSpeculation {
    settings: Speculation,
    /// One entry per sequence, taken when it is opened.
    built: Vec<Option<polydraft_engine::Speculation>>,
    /// Whether an adaptive tree was built before the cost of steps was known.
    lacks_costs: bool,
}

impl BuiltSpeculation {
    /// Builds `count` verifiers and trees, with the cost of steps if it is known.
    ///
    /// # Errors
    /// Settings out of range; a verifier that is not exact for the tree.
    pub(super) fn new(
        mut settings: Speculation,
        costs: Option<&Costs>,
        count: usize,
    ) -> anyhow::Result<Self> {
        let adaptive = settings.tree.auto_mut();
        let lacks_costs = adaptive.is_some() && costs.is_none();
        if let Some(adaptive) = adaptive {
            adaptive.costs = costs.cloned().unwrap_or_else(Costs::without_drafts);
        }
        Self::with_settings(settings, lacks_costs, count)
    }

    /// Builds the same number of verifiers and trees for another prompt.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub(super) fn for_another_prompt(&self) -> anyhow::Result<Self> {
        Self::with_settings(self.settings.clone(), self.lacks_costs, self.built.len())
    }

    fn with_settings(
        settings: Speculation,
        lacks_costs: bool,
        count: usize,
    ) -> anyhow::Result<Self> {
        let built = (0..count).map(|_| settings.build().map(Some));
        let built = built.collect::<anyhow::Result<_>>()?;
        Ok(Self { settings, built, lacks_costs })
    }

    /// Takes the verifier and tree of this sequence.
    pub(super) fn take(&mut self, number: usize) -> Option<polydraft_engine::Speculation> {
        self.built.get_mut(number)?.take()
    }

    /// Whether an adaptive tree must be replaced once the cost of steps is known.
    pub(super) fn lacks_costs(&self) -> bool {
        self.lacks_costs
    }

    /// Builds a verifier and adaptive tree with the measured cost of steps. The settings are valid,
    /// so only unusable costs can fail; then nothing is drafted.
    pub(super) fn with_costs(&self, costs: &Costs) -> Option<polydraft_engine::Speculation> {
        let mut settings = self.settings.clone();
        settings.tree.auto_mut()?.costs = costs.clone();
        let built = settings.build();
        built.inspect_err(|error| log::error!("cannot use the measured costs: {error:#}")).ok()
    }
}

#[cfg(test)]
mod tests {
    use polydraft::Sampling;

    use super::*;

    fn settings(verifier: &str, tree: &str) -> Speculation {
        let (verifier, tree) = (verifier.parse().unwrap(), tree.parse().unwrap());
        Speculation::new(verifier, tree, Sampling::default())
    }

    #[test]
    fn each_sequence_takes_its_own_once() {
        let mut built = BuiltSpeculation::new(settings("token", "paths:1,4"), None, 2).unwrap();
        let mut others = built.for_another_prompt().unwrap();
        for built in [&mut built, &mut others] {
            assert!(!built.lacks_costs());
            assert!(built.take(1).is_some() && built.take(0).is_some());
            assert!(built.take(0).is_none() && built.take(1).is_none() && built.take(2).is_none());
        }
        assert!(BuiltSpeculation::new(settings("token", "3,2"), None, 1).is_err());
    }

    #[test]
    fn adaptive_trees_wait_for_costs() {
        let auto = || settings("token", "auto");
        let costs = Costs::default();
        assert!(!BuiltSpeculation::new(auto(), Some(&costs), 1).unwrap().lacks_costs());
        let mut early = BuiltSpeculation::new(auto(), None, 1).unwrap();
        assert!(early.lacks_costs() && early.for_another_prompt().unwrap().lacks_costs());
        assert!(early.take(0).is_some() && early.with_costs(&costs).is_some());
        let none = Costs { rejected: f64::NAN, ..Costs::default() };
        assert!(early.with_costs(&none).is_none(), "no costs");
    }
}
