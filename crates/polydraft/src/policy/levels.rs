//! Prefix trees: the same number of draws at every distinct node of a level.
//!
//! Problem: branch everywhere by the same plan; binary and k-ary trees are special cases.
//! Source: Miao et al. 2023 (SpecInfer), Jeon et al. 2024 (RSD, without replacement), Li et al.
//! 2024 (EAGLE-2, top-k).
//! Complexity: the sum over nodes of their draws. Deviations: none.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    Policy, PolicySettings, check_range, check_scheme, join, level_sizes, parse_list, split_scheme,
};
use crate::draft::{Form, Path};
use crate::drafting::{Drafting, Draws, Growth};
use crate::{Distribution, Result};

/// Number of draws at a node, by depth. Typed `3,2,1` or `3,2,1/SCHEME`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Number of draws at a node, the root's first, each at least 1. Default 2, 2.
    pub counts: Vec<usize>,
    /// Scheme of the draws. Default: iid.
    pub drafting: Drafting,
}

impl Default for Settings {
    fn default() -> Self {
        Self { counts: vec![2, 2], drafting: Drafting::Iid }
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}", join(&self.counts))?;
        match self.drafting {
            Drafting::Iid => Ok(()),
            drafting => write!(f, "/{drafting}"),
        }
    }
}

impl Settings {
    fn draws_at(&self, depth: usize) -> Option<Draws> {
        self.counts.get(depth).map(|&count| Draws { scheme: self.drafting, count })
    }
}

impl PolicySettings for Settings {
    fn configure(&mut self, text: &str) -> Result<()> {
        let (counts, drafting) = split_scheme(text)?;
        self.counts = parse_list(counts, "draws per level such as 3,2,1")?;
        self.drafting = drafting.unwrap_or(self.drafting);
        Ok(())
    }

    fn build(&self) -> Result<Box<dyn Policy>> {
        use Drafting::{Greedy, Hub, Iid, TopK, WithoutReplacement};
        check_range("depth of the tree", self.counts.len())?;
        self.counts.iter().try_for_each(|&count| check_range("draws per node", count))?;
        check_scheme(self.drafting, &[Iid, WithoutReplacement, Greedy, Hub, TopK])?;
        Ok(Box::new(self.clone()))
    }

    fn describe(&self) -> String {
        format!("levels {} {}", join(&self.counts), self.drafting)
    }

    fn nodes(&self) -> f64 {
        level_sizes(self.counts.iter().copied(), usize::MAX).0
    }

    fn max_draws(&self, vocabulary: usize) -> f64 {
        match self.drafting {
            Drafting::TopK => 0.0,
            _ => level_sizes(self.counts.iter().copied(), vocabulary).1,
        }
    }
}

impl Policy for Settings {
    fn draws(&self, path: &Path, _: &Distribution) -> Option<Growth> {
        self.draws_at(path.depth()).map(Growth::Fresh)
    }

    fn depth(&self) -> usize {
        self.counts.len()
    }

    fn form(&self) -> Form {
        let levels =
            (0..self.counts.len()).filter_map(|depth| Some((self.draws_at(depth)?, depth > 0)));
        levels.fold(Form::default(), |form, (draws, below_root)| form.with_draws(draws, below_root))
    }
}
