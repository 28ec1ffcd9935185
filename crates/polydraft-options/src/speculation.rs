//! Speculation options: what decides, and the tree of drafts.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use polydraft::{Drafting, Sampling, Shape, Topology, VerifierKind};
use polydraft_engine::Speculation;
use serde::{Deserialize, Serialize};

use crate::output::Usage;

/// How drafts are made and verified.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Speculation")]
pub struct SpeculationArgs {
    /// What decides on the drafts; all are lossless. One path: token, block. Several: nested-priority (the best),
    /// greedy-block, traversal, priority-block, spectr, specinfer, walk:RULE with any rule of 'couple'. 'none' is plain
    /// decoding.
    #[arg(long, value_name = "NAME", default_value = "nested-priority", value_parser = verifier)]
    verifier: Verifier,
    /// Paths drafted per pass of the target [default: 2, or 1 for a verifier of one path].
    #[arg(long, short = 'k', value_name = "K", value_parser = clap::value_parser!(u32).range(1..=1024))]
    paths: Option<u32>,
    /// Tokens of each path, or levels of a k-ary or sequoia tree [default: 3; better drafts deserve more: see the
    /// README on how to choose].
    #[arg(long, short = 'd', value_name = "L", value_parser = clap::value_parser!(u32).range(1..=256))]
    depth: Option<u32>,
    /// Another shape than paths: '3,2,1' draws so many tokens at each node of a level, 'binary' or '3-ary' as many at
    /// every node, 'budget:2,1.5' as many as give so many distinct ones, 'sequoia:N' is the best tree of N nodes for
    /// --acceptance.
    #[arg(long, value_name = "SHAPE")]
    tree: Option<Tree>,
    /// How tokens are drawn at a node of --tree: iid, without-replacement, greedy, hub, top-k [default: the first of
    /// these that the verifier supports].
    #[arg(long, value_name = "SCHEME", requires = "tree")]
    drafting: Option<Drafting>,
    /// Acceptances of first, second, .. drafts for a sequoia tree, as 'bench acceptance --save' writes them [default:
    /// those of the demo pair, with its models].
    #[arg(long, value_name = "FILE", requires = "tree")]
    acceptance: Option<PathBuf>,
}

/// The depth where none is given, and the paths of verifiers that take several: with the demo pair's block efficiencies
/// and the pass costs of a model that is bound by memory, the most tokens per second among trees of up to eight nodes.
const DEPTH: usize = 3;
const PATHS: usize = 2;

#[derive(Debug, Clone)]
enum Verifier {
    None,
    Some(VerifierKind),
}

fn verifier(name: &str) -> Result<Verifier, String> {
    match name {
        "none" => Ok(Verifier::None),
        _ => name.parse().map(Verifier::Some).map_err(|e: polydraft::Error| format!("{e}; or none")),
    }
}

/// What `--tree` says.
#[derive(Debug, Clone, PartialEq)]
enum Tree {
    Levels(Vec<usize>),
    Ary(usize),
    Budgets(Vec<f64>),
    Sequoia(usize),
}

impl FromStr for Tree {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        fn list<T: FromStr>(text: &str) -> Option<Vec<T>> {
            text.split(',').map(|part| part.trim().parse().ok()).collect()
        }
        let tree = match text.split_once(':') {
            Some(("budget", rest)) => list(rest).map(Self::Budgets),
            Some(("sequoia", rest)) => rest.parse().ok().map(Self::Sequoia),
            Some(_) => None,
            None if text == "binary" => Some(Self::Ary(2)),
            None => match text.strip_suffix("-ary") {
                Some(count) => count.parse().ok().map(Self::Ary),
                None => list(text).map(Self::Levels),
            },
        };
        tree.ok_or_else(|| {
            "expected draws per level such as 3,2,1, or binary, 3-ary, budget:2,1.5, sequoia:16".to_owned()
        })
    }
}

/// Measured acceptances, as a file.
#[derive(Debug, Serialize, Deserialize)]
pub struct AcceptanceFile {
    /// The probability that the first, second, .. distinct draft at a node is the one accepted.
    pub acceptance: Vec<f64>,
}

impl AcceptanceFile {
    fn read(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text)
            .with_context(|| format!("{}: expected {{\"acceptance\": [0.6, 0.15, ...]}}", path.display()))
    }
}

impl SpeculationArgs {
    /// What the options say; `None` is plain decoding. `sampling` is the draft's, `demo` the acceptances of the demo
    /// pair if it is what is used.
    pub fn speculation(&self, sampling: Sampling, demo: Option<&Path>) -> Result<Option<Speculation>> {
        let Verifier::Some(verifier) = &self.verifier else {
            let given = [
                ("--paths", self.paths.is_some()),
                ("--depth", self.depth.is_some()),
                ("--tree", self.tree.is_some()),
            ];
            if let Some((option, _)) = given.iter().find(|(_, given)| *given) {
                return Err(Usage::error(format_args!("{option} has no meaning with --verifier none")));
            }
            return Ok(None);
        };
        let shape = self.shape(verifier, demo)?;
        verifier.build(&shape).map_err(Usage::error)?;
        Ok(Some(Speculation { verifier: verifier.clone(), shape, sampling }))
    }

    fn shape(&self, verifier: &VerifierKind, demo: Option<&Path>) -> Result<Shape> {
        let depth = self.depth.map_or(DEPTH, |depth| depth as usize);
        let Some(tree) = &self.tree else {
            let paths = self.paths.map(|paths| paths as usize);
            return Ok(Shape::Paths { paths: paths.unwrap_or_else(|| default_paths(verifier)), depth });
        };
        if self.paths.is_some() {
            return Err(Usage::error(
                "--paths and --tree are two ways to say where the tree branches: give one",
            ));
        }
        let levels = |counts: Vec<usize>| {
            let of = |drafting| Shape::Levels { counts: counts.clone(), drafting };
            self.drafted(verifier, &of)
        };
        match tree {
            Tree::Levels(_) | Tree::Budgets(_) if self.depth.is_some() => {
                Err(Usage::error("this --tree lists its levels: leave --depth out"))
            }
            Tree::Levels(counts) => Ok(levels(counts.clone())),
            Tree::Ary(count) => Ok(levels(vec![*count; depth])),
            Tree::Budgets(distinct) => Ok(Shape::Budgets { distinct: distinct.clone() }),
            Tree::Sequoia(nodes) => {
                let file = self.acceptance.as_deref().or(demo).ok_or_else(|| {
                    Usage::error(
                        "a sequoia tree needs measured acceptances: make them with 'bench acceptance --save FILE', \
                         then give --acceptance FILE",
                    )
                })?;
                let depth = self.depth.map_or(*nodes, |depth| depth as usize);
                let topology = Topology::sequoia(&AcceptanceFile::read(file)?.acceptance, *nodes, depth)
                    .with_context(|| format!("{}", file.display()))?;
                let topology = Arc::new(topology);
                let of = |drafting| Shape::Fixed { topology: topology.clone(), drafting };
                Ok(self.drafted(verifier, &of))
            }
        }
    }

    /// The shape with the drafting that was asked for, or with the first that the verifier supports.
    fn drafted(&self, verifier: &VerifierKind, of: &dyn Fn(Drafting) -> Shape) -> Shape {
        let supported = || Drafting::ALL.into_iter().find(|drafting| verifier.build(&of(*drafting)).is_ok());
        of(self.drafting.or_else(supported).unwrap_or(Drafting::Iid))
    }
}

/// How many paths a verifier gets if nothing is said.
fn default_paths(verifier: &VerifierKind) -> usize {
    if verifier.build(&Shape::Paths { paths: PATHS, depth: 1 }).is_ok() { PATHS } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees() {
        assert_eq!("3,2,1".parse(), Ok(Tree::Levels(vec![3, 2, 1])));
        assert_eq!("binary".parse(), Ok(Tree::Ary(2)));
        assert_eq!("4-ary".parse(), Ok(Tree::Ary(4)));
        assert_eq!("budget:2,1.5".parse(), Ok(Tree::Budgets(vec![2.0, 1.5])));
        assert_eq!("sequoia:16".parse(), Ok(Tree::Sequoia(16)));
        for wrong in ["", "3;2", "tree", "x-ary", "sequoia:", "budget:a", "-1"] {
            assert!(wrong.parse::<Tree>().unwrap_err().contains("sequoia:16"), "{wrong}");
        }
    }
}
