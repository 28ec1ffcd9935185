//! The leaf rule: draft deeper only where earlier tokens are likely to be accepted.
//!
//! Problem: a path of fixed depth keeps drafting where an earlier token is likely to be rejected.
//! The draft's own distributions show where: a confident draft is mostly accepted.
//! Source: ours (`docs/theory.md`, leaf rule). The expected acceptance at a node with the draft's
//! distribution q is estimated as 1 − κ·Σ q(1 − q), at temperature 0 as 1 − κ(1 − q) with its
//! token's q at temperature 1; a node grows while the product of these from the root to it, its own
//! included, is at least θ. The decision depends on distributions, never on drawn tokens' own
//! probabilities, so it is exact.
//! Complexity: one pass over the draft's support at every node. Deviations: none.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Policy, PolicyKind, PolicySettings, StepContext};
use crate::draft::{Draft, Form, Path};
use crate::drafting::Growth;
use crate::verify::Outcome;
use crate::{Distribution, Error, Result};

/// Another policy's tree, cut where the expected acceptance falls below a threshold. Typed
/// `θ,TREE`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The smallest product of expected acceptances at which a node grows (θ), from 0 to 1. Default
    /// 0.2.
    pub below: f64,
    /// Fraction of the disagreement of two draws that counts as rejection (κ), from 0 to 1. Default
    /// 0.5.
    pub factor: f64,
    /// The policy whose tree is cut. Default: paths:2,8.
    #[serde(rename = "of")]
    pub policy: Box<PolicyKind>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { below: 0.2, factor: 0.5, policy: Box::new(PolicyKind::paths(2, 8)) }
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{},{}", self.below, self.policy)
    }
}

impl PolicySettings for Settings {
    fn configure(&mut self, text: &str) -> Result<()> {
        let expected = "a number and a tree such as stop-below:0.2,paths:2,8";
        let invalid = || Error::Setting { setting: "tree", expected, got: format!("{text:?}") };
        let (below, policy) = text.split_once(',').ok_or_else(invalid)?;
        self.below = below.trim().parse().map_err(|_| invalid())?;
        *self.policy = policy.parse()?;
        Ok(())
    }

    fn build(&self) -> Result<Box<dyn Policy>> {
        for (setting, value) in [("stop-below", self.below), ("factor of stop-below", self.factor)]
        {
            if !(0.0..=1.0).contains(&value) {
                return Err(Error::Setting {
                    setting,
                    expected: "from 0 to 1",
                    got: format!("{value:?}"),
                });
            }
        }
        if matches!(*self.policy, PolicyKind::StopBelow(_)) {
            let (operation, expected) = ("stop-below", "a tree that is not cut already".to_owned());
            return Err(Error::Unsupported { operation, expected, got: self.policy.to_string() });
        }
        Ok(Box::new(CutPolicy {
            below: self.below,
            factor: self.factor,
            policy: self.policy.build()?,
        }))
    }

    fn describe(&self) -> String {
        format!("{}, cut below {}", self.policy.describe(), self.below)
    }

    fn nodes(&self) -> f64 {
        self.policy.nodes()
    }

    fn max_draws(&self, vocabulary: usize) -> f64 {
        self.policy.max_draws(vocabulary)
    }
}

struct CutPolicy {
    below: f64,
    factor: f64,
    policy: Box<dyn Policy>,
}

impl CutPolicy {
    /// The expected acceptance at a node, by the draft's confidence there.
    fn acceptance(&self, confidence: f64) -> f64 {
        1.0 - self.factor * (1.0 - confidence)
    }

    /// The product of expected acceptances over the nodes before the end of `path`.
    fn reach_probability(&self, path: &Path) -> f64 {
        path.confidence().map(|confidence| self.acceptance(confidence)).product()
    }
}

impl Policy for CutPolicy {
    fn may_grow(&self, path: &Path) -> bool {
        self.policy.may_grow(path) && self.reach_probability(path) >= self.below
    }

    fn draws(&self, path: &Path, probs: &Distribution) -> Option<Growth> {
        let probability = self.reach_probability(path) * self.acceptance(probs.confidence());
        if probability < self.below { None } else { self.policy.draws(path, probs) }
    }

    fn depth(&self) -> usize {
        self.policy.depth()
    }

    fn form(&self) -> Form {
        self.policy.form()
    }

    fn begin_step(&mut self, context: &StepContext) {
        self.policy.begin_step(context);
    }

    fn observe(&mut self, draft: &Draft, outcome: &Outcome) {
        self.policy.observe(draft, outcome);
    }

    fn timed(&self) -> Option<&dyn super::Timed> {
        self.policy.timed()
    }

    fn timed_mut(&mut self) -> Option<&mut dyn super::Timed> {
        self.policy.timed_mut()
    }
}
