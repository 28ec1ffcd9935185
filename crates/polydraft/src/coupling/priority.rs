//! Priority coupling: the optimal rule for i.i.d. drafts, for any number of them and any
//! vocabulary.
//!
//! Problem: n i.i.d. drafts from q; emit y ~ p, which is one of the drafts as often as any rule can
//! achieve.
//! Source: ours. Every draft gets an independent priority in [0, 1] whose distribution depends only
//! on its token and is uniform overall; the draft of highest priority is selected, and single-draft
//! speculative sampling against the distribution m of the selection decides (the canonical form of
//! Khisti et al. 2025, theorem 1). Token i's priorities fill a set of length q_i; m_i is the mass
//! of that set under the density n·z^(n−1). Every distribution m that any selection can have is
//! reached this way, in particular the best one.
//! Complexity: exact form O(V log V); pooled form two passes over the support and a table of some
//! hundred entries, or as many as its bound on the loss of acceptance requires; O(n) to emit
//! (expected).
//! Deviations: (1) pooled form: tokens of small probability share the entries of a grid of ratios
//! (`grid`); (2) m is computed from the sets actually laid out, so that pooling and rounding cost
//! acceptance, never the distribution; (3) n = 1 is single-draft speculative sampling.

mod grid;
mod masses;
mod plan;
mod pool;
mod profile;
pub(crate) mod selection;
pub mod shares;

use super::canonical::{Canonical, Selector};
use super::{Problem, Rule, RuleSettings};
use crate::drafting::{Drafting, Draws};
use crate::priorities::Priorities;
use crate::random::RandomSource;
use crate::{Error, Result, Token};
pub use masses::Choice;
use selection::Selection;
use serde::{Deserialize, Serialize};
use shares::{Highest, Layout};

/// Precision of the acceptance. The distribution is always exact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// Exact for a small support of the draft, pooled for a large one.
    #[default]
    Auto,
    /// Every token individually: the optimum.
    Exact,
    /// Tokens of small probability pooled: near-linear time, nearly optimal.
    Pooled,
}

/// Settings of the rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Exact or pooled. Default: auto.
    pub form: Form,
    /// The largest support, in tokens, that `auto` handles exactly. Default 256.
    pub exact_up_to: usize,
    /// Pooled form: tokens with a larger draft probability than this are handled individually, from
    /// 0 to 1. Default 1/256.
    pub individual_above: f64,
    /// Pooled form: the maximum acceptance lost at a node, from 0 to 1. Default 1e-7.
    pub negligible: f64,
    /// Choice among the distributions of the selected token that are equally good at one node. It
    /// affects the tokens drawn below. Default: balanced.
    pub choice: Choice,
    /// Choice among the priorities that are equally good at one node. It affects nested priority
    /// verification, and slightly walks with three draws or more. Default: spread.
    pub layout: Layout,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            form: Form::Auto,
            exact_up_to: 256,
            individual_above: 1.0 / 256.0,
            negligible: 1e-7,
            choice: Choice::Balanced,
            layout: Layout::Spread,
        }
    }
}

impl RuleSettings for Settings {
    fn build(&self) -> Result<Box<dyn Rule>> {
        self.validate()?;
        let (settings, selection) = (self.clone(), Selection::new());
        Ok(Box::new(Canonical(Priority { settings, selection, priorities: Priorities::new() })))
    }
}

impl Settings {
    /// Checks that every setting is in range.
    ///
    /// # Errors
    /// A setting out of range.
    pub fn validate(&self) -> Result<()> {
        let invalid = |setting, expected, value: f64| {
            Err(Error::Setting { setting, expected, got: value.to_string() })
        };
        if !(self.individual_above > 0.0 && self.individual_above <= 1.0) {
            return invalid("individual_above", "above 0, at most 1", self.individual_above);
        }
        if !(0.0..=1.0).contains(&self.negligible) {
            return invalid("negligible", "from 0 to 1", self.negligible);
        }
        Ok(())
    }
}

struct Priority {
    settings: Settings,
    selection: Selection,
    priorities: Priorities,
}

impl Priority {
    fn prioritise(&mut self, problem: &Problem, drafts: &[Token]) {
        self.priorities.clear();
        for &token in drafts {
            // A token that is never drawn gets no intervals, and the lowest priority.
            self.priorities.push(self.selection.intervals(
                problem.target,
                problem.proposal.distribution(0),
                token,
            ));
        }
    }
}

impl Selector for Priority {
    fn name(&self) -> &'static str {
        "priority"
    }

    fn supports(&self, draws: Draws) -> Result<()> {
        draws.require(
            self.name(),
            if draws.count == 1 { &Drafting::DRAWN } else { &[Drafting::Iid] },
        )
    }

    fn prepare(&mut self, problem: &Problem) -> Result<()> {
        if problem.proposal.count() > 1 {
            let profile = Highest::new(problem.proposal.count());
            self.selection.prepare(
                problem.target,
                problem.proposal.distribution(0),
                &profile,
                1.0,
                &self.settings,
            );
        }
        Ok(())
    }

    fn select(&mut self, problem: &Problem, drafts: &[Token], rng: &mut dyn RandomSource) -> usize {
        self.prioritise(problem, drafts);
        rng.choose(&self.priorities)
    }

    fn selection(&mut self, problem: &Problem, drafts: &[Token]) -> Vec<f64> {
        self.prioritise(problem, drafts);
        self.priorities.win_probabilities()
    }

    fn selected(&self, problem: &Problem, token: Token) -> f64 {
        let draft = problem.proposal.distribution(0);
        if problem.proposal.count() == 1 {
            return draft.probability(token);
        }
        self.selection.probability(problem.target, draft, token)
    }
}

#[cfg(test)]
mod tests;
