//! Delayed trees: one path that branches at its end.
//!
//! Problem: first drafts are often accepted, and paths that branch at the root are then mostly
//! copies of each other; branch where acceptance has become doubtful.
//! Source: Thomas and Pal 2025 (greedy multi-path block verification's authors), who found one path
//! of L1 tokens followed by K of L2 the best shape for walks.
//! Complexity: L1 + K·L2 draws. Deviations: none.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Policy, PolicySettings, check_range, parse_numbers};
use crate::draft::{Form, Path};
use crate::drafting::{Draws, Growth};
use crate::{Distribution, Result};

/// One path of L1 tokens, then K paths of L2 tokens from its end. Typed `L1,K,L2`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Tokens of the first path, at least 1. Default 1.
    pub first: usize,
    /// Number of paths drawn from its end, at least 1. Default 2.
    pub paths: usize,
    /// Tokens of each of these paths, at least 1. Default 2.
    pub then: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { first: 1, paths: 2, then: 2 }
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{},{},{}", self.first, self.paths, self.then)
    }
}

impl PolicySettings for Settings {
    fn configure(&mut self, text: &str) -> Result<()> {
        [self.first, self.paths, self.then] =
            parse_numbers(text, "delayed:L1,K,L2, such as delayed:2,3,2")?;
        Ok(())
    }

    fn build(&self) -> Result<Box<dyn Policy>> {
        check_range("depth of the first path", self.first)?;
        check_range("paths", self.paths)?;
        check_range("depth after the first path", self.then)?;
        Ok(Box::new(self.clone()))
    }

    fn describe(&self) -> String {
        format!("one path of {}, then {} paths of {}", self.first, self.paths, self.then)
    }

    fn nodes(&self) -> f64 {
        self.first as f64 + self.paths as f64 * self.then as f64
    }

    fn max_draws(&self, _: usize) -> f64 {
        self.nodes()
    }
}

impl Policy for Settings {
    fn draws(&self, path: &Path, _: &Distribution) -> Option<Growth> {
        match path.depth() {
            0 => Some(Growth::Fresh(Draws::iid(1))),
            depth if depth == self.first => Some(Growth::Fresh(Draws::iid(self.paths))),
            depth => (depth < Policy::depth(self)).then_some(Growth::Continue),
        }
    }

    fn depth(&self) -> usize {
        self.first + self.then
    }

    fn form(&self) -> Form {
        Form::paths(1).with_draws(Draws::iid(self.paths), true)
    }
}
