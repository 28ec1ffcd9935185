//! The distribution of the token that priorities select at one node.
//!
//! Problem: divide a segment of priorities among the tokens of a draft, and provide the
//! distribution of the selected token, the priorities of a drafted token, and the residual of the
//! target after the selection.
//! Source: ours (`super`); the segment is all of [0, 1] for a token-level rule, and the node's
//! share in nested priority verification.
//! Complexity: as in `super`; one pass over the support for the residual.
//! Deviations: none.

use super::plan::{Detail, Plan};
use super::shares::Profile;
use super::{Form, Settings};
use crate::priorities::WeightedInterval;
use crate::{Distribution, Token};

/// The shares of all tokens of one node. Preparing another node reuses the memory.
///
/// Every method must be given the distributions that it was prepared with.
#[derive(Debug)]
pub(crate) struct Selection {
    plan: Plan,
    /// The target's probabilities of the tokens stored in the draft, where the two distributions
    /// are stored differently.
    target: Vec<f64>,
}

impl Selection {
    pub fn new() -> Self {
        Self { plan: Plan::new(), target: Vec::new() }
    }

    /// Divides `profile`, a segment of length and mass 1, among the draft's tokens. `scale` times
    /// the target can be used, `scale` from 0 to 1.
    pub fn prepare(
        &mut self,
        target: &Distribution,
        draft: &Distribution,
        profile: &impl Profile,
        scale: f64,
        settings: &Settings,
    ) {
        let exact = match settings.form {
            Form::Auto => draft.support_size() <= settings.exact_up_to,
            Form::Exact => true,
            Form::Pooled => false,
        };
        let threshold = if exact { 0.0 } else { settings.individual_above };
        let target = match (target.dense(), draft.dense()) {
            (Some(target), Some(_)) => target,
            (_, Some(_)) => {
                self.target.clear();
                self.target.resize(draft.vocabulary(), 0.0);
                target.support().for_each(|(token, p)| self.target[token as usize] = p);
                &self.target
            }
            (_, None) => {
                self.target.clear();
                self.target
                    .extend(draft.stored_tokens().iter().map(|&token| target.probability(token)));
                &self.target
            }
        };
        let Settings { negligible, choice, layout, .. } = *settings;
        let detail = Detail { threshold, negligible, choice, layout, scale };
        self.plan.prepare(target, draft.stored(), profile, detail);
    }

    /// The probability that a token is selected.
    pub fn probability(&self, target: &Distribution, draft: &Distribution, token: Token) -> f64 {
        draft.position(token).map_or(0.0, |position| {
            self.plan.mass(position, target.probability(token), draft.stored()[position])
        })
    }

    /// The distribution of the priority of a draft of this token, within the segment; the intervals
    /// may overlap. Empty for a token that is never drafted.
    pub fn intervals(
        &self,
        target: &Distribution,
        draft: &Distribution,
        token: Token,
    ) -> impl Iterator<Item = WeightedInterval> + '_ {
        let position = draft.position(token).filter(|position| draft.stored()[*position] > 0.0);
        let (p, q) =
            (target.probability(token), position.map_or(0.0, |position| draft.stored()[position]));
        position.into_iter().flat_map(move |position| self.plan.intervals(position, p, q))
    }

    /// Σ (`scale`·target − selection)+ over the vocabulary.
    pub fn residual_mass(&self, target: &Distribution, draft: &Distribution, scale: f64) -> f64 {
        let p = match (target.dense(), draft.dense()) {
            (Some(p), Some(_)) => p,
            _ => &self.target,
        };
        self.plan.residual_mass(p, draft.stored(), scale) + scale * target.mass_outside(draft)
    }
}
