//! Independent paths.
//!
//! Problem: K paths of L tokens, each drawn from the draft independently of the others; common
//! prefixes are merged.
//! Source: Sun et al. 2023 (SpecTr). One path is a chain (Leviathan et al. 2023).
//! Complexity: K·L draws. Deviations: none.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Policy, PolicySettings, check_range, parse_numbers};
use crate::draft::{Form, Path};
use crate::drafting::{Draws, Growth};
use crate::{Distribution, Result};

/// K paths of L tokens. Typed `K,L`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Number of paths, at least 1. Default 2.
    pub paths: usize,
    /// Tokens of each path, at least 1. Default 3.
    pub depth: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { paths: 2, depth: 3 }
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{},{}", self.paths, self.depth)
    }
}

impl PolicySettings for Settings {
    fn configure(&mut self, text: &str) -> Result<()> {
        [self.paths, self.depth] = parse_numbers(text, "paths:K,L, such as paths:2,3")?;
        Ok(())
    }

    fn build(&self) -> Result<Box<dyn Policy>> {
        check_range("depth of the tree", self.depth)?;
        check_range("paths", self.paths)?;
        Ok(Box::new(self.clone()))
    }

    fn describe(&self) -> String {
        match self.paths {
            1 => format!("one path of {}", self.depth),
            paths => format!("{paths} paths of {}", self.depth),
        }
    }

    fn nodes(&self) -> f64 {
        self.paths as f64 * self.depth as f64
    }

    fn max_draws(&self, _: usize) -> f64 {
        self.nodes()
    }
}

impl Policy for Settings {
    fn draws(&self, path: &Path, _: &Distribution) -> Option<Growth> {
        match path.depth() {
            0 => Some(Growth::Fresh(Draws::iid(self.paths))),
            depth => (depth < self.depth).then_some(Growth::Continue),
        }
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn form(&self) -> Form {
        Form::paths(self.paths)
    }
}
