//! Paths of several drafts: one path from each.
//!
//! Problem: K paths of L tokens, each drawn from a draft of its own (another model, or another
//! temperature); common prefixes are merged, and every node records whose paths reach it.
//! Source: Miao et al. 2023 (SpecInfer), merged trees of several small models; Khisti et al. 2025,
//! section 5 and appendix J.2, drafts of several temperatures.
//! Complexity: K·L draws. Deviations: none.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Policy, PolicySettings, check_range, parse_numbers};
use crate::draft::{Form, Path};
use crate::drafting::{Drafting, Draws, Growth};
use crate::{Distribution, Result};

/// K paths of L tokens, each from its own draft. Typed `K,L`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Number of drafts, at least 1. Default 2.
    pub drafts: usize,
    /// Tokens of each path, at least 1. Default 3.
    pub depth: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { drafts: 2, depth: 3 }
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{},{}", self.drafts, self.depth)
    }
}

impl Settings {
    fn root_draws(&self) -> Draws {
        Draws { scheme: Drafting::Distinct, count: self.drafts }
    }
}

impl PolicySettings for Settings {
    fn configure(&mut self, text: &str) -> Result<()> {
        [self.drafts, self.depth] = parse_numbers(text, "distinct:K,L, such as distinct:2,3")?;
        Ok(())
    }

    fn build(&self) -> Result<Box<dyn Policy>> {
        check_range("depth of the tree", self.depth)?;
        check_range("drafts", self.drafts)?;
        Ok(Box::new(self.clone()))
    }

    fn describe(&self) -> String {
        format!("a path of {} from each of {} drafts", self.depth, self.drafts)
    }

    fn nodes(&self) -> f64 {
        self.drafts as f64 * self.depth as f64
    }

    fn max_draws(&self, _: usize) -> f64 {
        self.nodes()
    }
}

impl Policy for Settings {
    fn draws(&self, path: &Path, _: &Distribution) -> Option<Growth> {
        match path.depth() {
            0 => Some(Growth::Fresh(self.root_draws())),
            depth => (depth < self.depth).then_some(Growth::Continue),
        }
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn form(&self) -> Form {
        Form::default().with_draws(self.root_draws(), false)
    }
}
