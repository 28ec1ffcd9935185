//! Trees of fixed shape, whose positions are filled with the draws in order.
//!
//! Problem: the acceptance of each child of a node can be measured; the tree with the most expected
//! tokens is then known before anything is drawn.
//! Source: Chen et al. 2024 (Sequoia), without replacement; Sun et al. 2024 (SpecHub, table 5),
//! i.i.d. draws and hubs; Li et al. 2024 (EAGLE-2), top-k.
//! Complexity: one draw per position.
//! Deviations: (1) a token that is drawn again keeps the position of its first draw, and later
//! tokens move up: the last positions stay empty, where other implementations score the same token
//! twice.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    Policy, PolicySettings, Topology, check_range, check_scheme, join, parse_list, split_scheme,
};
use crate::draft::{Form, Path};
use crate::drafting::{Drafting, Draws, Growth};
use crate::{Distribution, Result};

/// The parents of positions 1, 2, .., where position 0 is the root. Typed `0,0,1` or
/// `0,0,1/SCHEME`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The parent of each position but the root. Default 0, 0, 1.
    pub parents: Vec<usize>,
    /// Scheme of the draws, any but distinct. Default: without replacement.
    pub drafting: Drafting,
}

impl Default for Settings {
    fn default() -> Self {
        Self { parents: vec![0, 0, 1], drafting: Drafting::WithoutReplacement }
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}", join(&self.parents))?;
        match self.drafting {
            Drafting::WithoutReplacement => Ok(()),
            drafting => write!(f, "/{drafting}"),
        }
    }
}

impl PolicySettings for Settings {
    fn configure(&mut self, text: &str) -> Result<()> {
        let (parents, drafting) = split_scheme(text)?;
        self.parents = parse_list(parents, "the parent of each node such as fixed:0,0,1")?;
        self.drafting = drafting.unwrap_or(self.drafting);
        Ok(())
    }

    fn build(&self) -> Result<Box<dyn Policy>> {
        use Drafting::{Greedy, Hub, Iid, TopK, WithoutReplacement};
        check_scheme(self.drafting, &[Iid, WithoutReplacement, Greedy, Hub, TopK])?;
        let topology = Topology::from_parents(&self.parents)?;
        check_range("depth of the tree", topology.depth())?;
        Ok(Box::new(FixedTree { topology, drafting: self.drafting }))
    }

    fn describe(&self) -> String {
        format!("fixed tree of {} nodes {}", self.parents.len(), self.drafting)
    }

    fn nodes(&self) -> f64 {
        self.parents.len() as f64
    }

    fn max_draws(&self, _: usize) -> f64 {
        if self.drafting == Drafting::TopK { 0.0 } else { self.nodes() }
    }
}

struct FixedTree {
    topology: Topology,
    drafting: Drafting,
}

impl FixedTree {
    fn draws_below(&self, position: usize) -> Option<Draws> {
        let count = self.topology.children(position).len();
        (count > 0).then_some(Draws { scheme: self.drafting, count })
    }

    fn draws_at(&self, path: &Path) -> Option<Draws> {
        let position = path
            .ranks()
            .into_iter()
            .try_fold(0, |position, rank| self.topology.children(position).get(rank).copied())?;
        self.draws_below(position)
    }
}

impl Policy for FixedTree {
    fn may_grow(&self, path: &Path) -> bool {
        self.draws_at(path).is_some()
    }

    fn draws(&self, path: &Path, _: &Distribution) -> Option<Growth> {
        self.draws_at(path).map(Growth::Fresh)
    }

    fn depth(&self) -> usize {
        self.topology.depth()
    }

    fn form(&self) -> Form {
        let all = (0..self.topology.len())
            .filter_map(|position| Some((self.draws_below(position)?, position > 0)));
        all.fold(Form::default(), |form, (draws, below_root)| form.with_draws(draws, below_root))
    }
}
