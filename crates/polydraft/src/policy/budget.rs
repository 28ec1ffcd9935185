//! Budgets of distinct tokens per level.
//!
//! Problem: at low entropy independent draws repeat, and a repeated draw adds no node to the tree:
//! choose the number of draws by the expected number of distinct tokens.
//! Source: ours (`docs/theory.md`, fewer wasted draws).
//! Complexity: a handful of passes over the draft's support at every node. Deviations: none.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    DRAWS_PER_DISTINCT, LIMIT, Policy, PolicySettings, check_range, join, level_sizes, parse_list,
};
use crate::draft::{Form, Path};
use crate::drafting::{Draws, Growth, draws_within_budget};
use crate::{Distribution, Error, Result};

/// Expected distinct tokens at a node, by depth. Typed `2,1.5`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Expected distinct tokens at a node, the root's first, each at least 1. Default 2, 1.5.
    pub distinct: Vec<f64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { distinct: vec![2.0, 1.5] }
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}", join(&self.distinct))
    }
}

impl Settings {
    fn counts(&self) -> impl Iterator<Item = usize> + '_ {
        self.distinct.iter().map(|&distinct| max_draws_within(distinct))
    }
}

/// Maximum number of draws for a budget.
fn max_draws_within(distinct: f64) -> usize {
    DRAWS_PER_DISTINCT * distinct.ceil() as usize
}

impl PolicySettings for Settings {
    fn configure(&mut self, text: &str) -> Result<()> {
        self.distinct = parse_list(text, "distinct tokens per level such as budget:2,1.5")?;
        Ok(())
    }

    fn build(&self) -> Result<Box<dyn Policy>> {
        check_range("depth of the tree", self.distinct.len())?;
        match self.distinct.iter().find(|d| !(**d >= 1.0 && **d <= LIMIT as f64)) {
            None => Ok(Box::new(self.clone())),
            Some(got) => {
                let (setting, expected) = ("distinct tokens per node", "from 1 to 4096");
                Err(Error::Setting { setting, expected, got: format!("{got:?}") })
            }
        }
    }

    fn describe(&self) -> String {
        format!("budgets {}", join(&self.distinct))
    }

    fn nodes(&self) -> f64 {
        self.distinct.iter().fold((1.0, 0.0), |(level, nodes), d| (level * d, nodes + level * d)).1
    }

    fn max_draws(&self, vocabulary: usize) -> f64 {
        level_sizes(self.counts(), vocabulary).1
    }
}

impl Policy for Settings {
    fn draws(&self, path: &Path, probs: &Distribution) -> Option<Growth> {
        let budget = *self.distinct.get(path.depth())?;
        Some(Growth::Fresh(Draws::iid(draws_within_budget(
            probs,
            budget,
            max_draws_within(budget),
        ))))
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
