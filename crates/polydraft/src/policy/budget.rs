//! Budgets of distinct tokens.
//!
//! Problem: at low entropy independent draws repeat, and a repeat costs no node of the tree: draw
//! as many as are expected to give so many distinct tokens.
//! Source: ours (`docs/theory.md`, fewer wasted draws).
//! Complexity: a handful of passes over the draft's support at every node. Deviations: none.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{DRAWS_PER_DISTINCT, Described, LIMIT, Policy, joined, level_sizes, list, within};
use crate::draft::{Form, Path};
use crate::drafting::{Draws, Growth, count_within};
use crate::{Distribution, Error, Result};

/// Distinct tokens at a node by its depth. Typed `2,1.5`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Expected distinct tokens at a node, the root's first, at least 1 each. Default 2, 1.5.
    pub distinct: Vec<f64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { distinct: vec![2.0, 1.5] }
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}", joined(&self.distinct))
    }
}

impl Settings {
    fn counts(&self) -> impl Iterator<Item = usize> + '_ {
        self.distinct.iter().map(|&distinct| most_within(distinct))
    }
}

/// Draws that a budget allows at most.
fn most_within(distinct: f64) -> usize {
    DRAWS_PER_DISTINCT * distinct.ceil() as usize
}

impl Described for Settings {
    fn configure(&mut self, text: &str) -> Result<()> {
        self.distinct = list(text, "distinct tokens per level such as budget:2,1.5")?;
        Ok(())
    }

    fn build(&self) -> Result<Box<dyn Policy>> {
        within("depth of the tree", self.distinct.len())?;
        match self.distinct.iter().find(|d| !(**d >= 1.0 && **d <= LIMIT as f64)) {
            None => Ok(Box::new(self.clone())),
            Some(got) => {
                let (setting, expected) = ("distinct tokens per node", "from 1 to 4096");
                Err(Error::Setting { setting, expected, got: format!("{got:?}") })
            }
        }
    }

    fn describe(&self) -> String {
        format!("budgets {}", joined(&self.distinct))
    }

    fn nodes(&self) -> f64 {
        self.distinct.iter().fold((1.0, 0.0), |(level, nodes), d| (level * d, nodes + level * d)).1
    }

    fn most_draws(&self, vocabulary: usize) -> f64 {
        level_sizes(self.counts(), vocabulary).1
    }
}

impl Policy for Settings {
    fn draws(&self, path: &Path, probs: &Distribution) -> Option<Growth> {
        let budget = *self.distinct.get(path.depth())?;
        Some(Growth::Fresh(Draws::iid(count_within(probs, budget, most_within(budget)))))
    }

    fn depth(&self) -> usize {
        self.distinct.len()
    }

    fn form(&self) -> Form {
        let levels = self.counts().enumerate();
        levels.fold(Form::default(), |form, (depth, count)| {
            form.with_draws(Draws::iid(count), depth > 0)
        })
    }
}
