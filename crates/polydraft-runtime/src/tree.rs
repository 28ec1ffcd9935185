//! Names of trees of drafts, and their meaning beside other options.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result};
use polydraft::coupling::RuleRegistry;
use polydraft::policy::{Auto, Fixed};
use polydraft::{Drafting, PolicyKind, Topology, VerifierKind};
use serde::{Deserialize, Serialize};

use crate::{SpeculationOptions, Usage};

/// Draft length where none is given, and the paths of verifiers that take several: with the demo
/// pair's tokens per pass and the pass costs of a model that is bound by memory, the most tokens
/// per second among trees of up to eight nodes.
const DEPTH: usize = 3;
const PATHS: usize = 2;
/// Nodes of a sequoia tree.
const MOST_NODES: usize = 4096;

/// The name of a tree.
#[derive(Debug, Clone, PartialEq)]
pub enum TreeName {
    /// A complete tree.
    Whole(PolicyKind),
    /// Draws by level; the drafting scheme is another option.
    Levels(Vec<usize>),
    /// So many at every node, with the given depth.
    Ary(usize),
    /// The best tree of so many nodes for measured acceptances.
    Sequoia(usize),
}

impl FromStr for TreeName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = match text {
            "binary" => Some(Self::Ary(2)),
            _ => match (text.strip_suffix("-ary"), text.strip_prefix("sequoia:")) {
                (Some(count), _) => count.parse().ok().map(Self::Ary),
                (_, Some(nodes)) => match nodes.parse() {
                    Ok(nodes @ 1..=MOST_NODES) => Some(Self::Sequoia(nodes)),
                    _ => {
                        return Err(format!(
                            "sequoia:N: expected a number of nodes from 1 to {MOST_NODES}, got \
                             {nodes:?}"
                        ));
                    }
                },
                _ => None,
            },
        };
        if let Some(known) = known {
            return Ok(known);
        }
        match text.parse().map_err(|error: polydraft::Error| match error {
            polydraft::Error::Name { .. } => {
                format!("{error}; or draws per level such as 3,2,1, or binary, 3-ary, sequoia:16")
            }
            error if text.contains(':') => error.to_string(),
            error => format!("{error}; or binary, 3-ary, sequoia:16"),
        })? {
            PolicyKind::Levels(levels) if !text.contains('/') => Ok(Self::Levels(levels.counts)),
            whole => Ok(Self::Whole(whole)),
        }
    }
}

impl fmt::Display for TreeName {
    /// As it is typed.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Whole(tree) => write!(f, "{tree}"),
            Self::Levels(counts) => {
                let counts: Vec<String> = counts.iter().map(usize::to_string).collect();
                f.write_str(&counts.join(","))
            }
            Self::Ary(count) => write!(f, "{count}-ary"),
            Self::Sequoia(nodes) => write!(f, "sequoia:{nodes}"),
        }
    }
}

/// Measured acceptances, as a file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(expecting = "an object")]
pub struct AcceptanceFile {
    /// The probability that the first, second, .. distinct draft at a node is the one accepted.
    pub acceptance: Vec<f64>,
}

impl AcceptanceFile {
    fn read(path: &Path) -> Result<Self> {
        let text = polydraft_files::read_text(path, polydraft_files::Kind::RECORD)
            .with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).map_err(|error| {
            let (path, error) = (path.display(), polydraft_files::in_words(error));
            anyhow::anyhow!("{path}: expected {{\"acceptance\": [0.6, 0.15, ...]}}: {error}")
        })
    }
}

/// Whether a verifier is exact for such trees.
pub fn supports<R: RuleRegistry>(verifier: &VerifierKind<R>, tree: &PolicyKind) -> bool {
    let (Ok(verifier), Ok(policy)) = (verifier.build(), tree.build()) else { return false };
    verifier.supports(&policy.form()).is_ok()
}

/// The tree of these options, for this verifier; `demo` are the acceptances of the demo pair if it
/// is used.
pub(crate) fn resolve<R: RuleRegistry>(
    options: &SpeculationOptions<R>,
    verifier: &VerifierKind<R>,
    demo: Option<&Path>,
) -> Result<PolicyKind> {
    let depth = options.depth.map_or(DEPTH, |depth| depth as usize);
    let Some(tree) = &options.tree else { return Ok(unnamed(options, verifier, depth)) };
    contradictions(options, tree)?;
    match tree {
        TreeName::Levels(counts) => {
            Ok(drafted(options, verifier, &|drafting| PolicyKind::levels(counts, drafting)))
        }
        TreeName::Whole(tree) => Ok(tree.clone()),
        TreeName::Ary(count) => Ok(drafted(options, verifier, &|drafting| {
            PolicyKind::levels(&vec![*count; depth], drafting)
        })),
        TreeName::Sequoia(nodes) => {
            let file = options.acceptance.as_deref().or(demo).ok_or_else(|| {
                Usage::error(
                    "a sequoia tree needs measured acceptances: make them with 'polydraft-lab \
                     bench acceptance --save FILE', then give --acceptance FILE",
                )
            })?;
            let depth = options.depth.map_or(*nodes, |depth| depth as usize);
            let topology =
                Topology::sequoia(&AcceptanceFile::read(file)?.acceptance, *nodes, depth)
                    .with_context(|| format!("{}", file.display()))?;
            let parents = topology.parents();
            let of = |drafting| PolicyKind::Fixed(Fixed { parents: parents.clone(), drafting });
            Ok(drafted(options, verifier, &of))
        }
    }
}

/// The tree where none is named.
fn unnamed<R: RuleRegistry>(
    options: &SpeculationOptions<R>,
    verifier: &VerifierKind<R>,
    depth: usize,
) -> PolicyKind {
    let given = options.paths.is_some() || options.depth.is_some() || options.stop_below.is_some();
    if let Some(auto) = adaptive(verifier).filter(|_| !given) {
        return auto;
    }
    let usual = || if supports(verifier, &PolicyKind::paths(PATHS, 1)) { PATHS } else { 1 };
    PolicyKind::paths(options.paths.map_or_else(usual, |paths| paths as usize), depth)
}

/// Options that do not go with the tree that is named.
fn contradictions<R: RuleRegistry>(options: &SpeculationOptions<R>, tree: &TreeName) -> Result<()> {
    if let TreeName::Whole(PolicyKind::Auto(auto)) = tree
        && (options.paths.is_some() || options.depth.is_some())
    {
        let (paths, depth) = (
            options.paths.map_or(auto.paths, |k| k as usize),
            options.depth.map_or(auto.depth, |l| l as usize),
        );
        return Err(Usage::error(format_args!(
            "--tree auto chooses paths and depth: leave --paths and --depth out, or say how many \
             at most, --tree auto:{paths},{depth}"
        )));
    }
    if options.paths.is_some() {
        return Err(Usage::error(
            "--paths and --tree both define where the tree branches: give one",
        ));
    }
    match tree {
        TreeName::Whole(_) | TreeName::Levels(_) if options.depth.is_some() => {
            Err(Usage::error("this --tree says how deep it is: leave --depth out"))
        }
        TreeName::Whole(tree) if options.drafting.is_some() => Err(Usage::error(format_args!(
            "--tree {tree} says how its tokens are drawn: leave --drafting out (with levels or \
             fixed trees it is written after a slash, such as 3,2,1/top-k)"
        ))),
        _ if options.acceptance.is_some() && !matches!(tree, TreeName::Sequoia(_)) => {
            Err(Usage::error(
                "--acceptance is what --tree sequoia:N is made from: it has no meaning here",
            ))
        }
        _ => Ok(()),
    }
}

/// The tree with the drafting that was asked for, or with the first that the verifier supports.
fn drafted<R: RuleRegistry>(
    options: &SpeculationOptions<R>,
    verifier: &VerifierKind<R>,
    of: &dyn Fn(Drafting) -> PolicyKind,
) -> PolicyKind {
    let find = |fits: &dyn Fn(&PolicyKind) -> bool| {
        Drafting::ALL.into_iter().find(|drafting| fits(&of(*drafting)))
    };
    // Where the verifier supports none, one that the tree can be drawn by: then the error is about
    // the verifier.
    let any =
        || find(&|tree| supports(verifier, tree)).or_else(|| find(&|tree| tree.build().is_ok()));
    of(options.drafting.or_else(any).unwrap_or(Drafting::Iid))
}

/// The adaptive tree, if the verifier is exact for such trees.
fn adaptive<R: RuleRegistry>(verifier: &VerifierKind<R>) -> Option<PolicyKind> {
    let of = |paths| PolicyKind::Auto(Auto { paths, ..Auto::default() });
    [Auto::default().paths, 1].into_iter().map(of).find(|tree| supports(verifier, tree))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees() {
        let whole = |text: &str| Ok(TreeName::Whole(text.parse().unwrap()));
        assert_eq!("3,2,1".parse(), Ok(TreeName::Levels(vec![3, 2, 1])));
        assert_eq!("3,2/top-k".parse(), whole("levels:3,2/top-k"));
        assert_eq!("binary".parse(), Ok(TreeName::Ary(2)));
        assert_eq!("4-ary".parse(), Ok(TreeName::Ary(4)));
        assert_eq!("budget:2,1.5".parse(), whole("budget:2,1.5"));
        assert_eq!("delayed:1,2,3".parse(), whole("delayed:1,2,3"));
        assert_eq!("paths:2,4".parse(), whole("paths:2,4"));
        assert_eq!("sequoia:16".parse(), Ok(TreeName::Sequoia(16)));
        for (wrong, expected) in [
            ("", "sequoia:16"),
            ("3;2", "sequoia:16"),
            ("tree", "sequoia:16"),
            ("x-ary", "sequoia:16"),
            ("-1", "sequoia:16"),
            ("sequoia:", "sequoia:N"),
            ("sequoia:0", "from 1 to 4096"),
            ("sequoia:4097", "from 1 to 4096"),
            ("budget:a", "budget:"),
            ("auto:", "got \"\""),
        ] {
            let error = wrong.parse::<TreeName>().unwrap_err();
            assert!(error.contains(expected), "{wrong}: {error}");
        }
    }

    #[test]
    fn names_are_shown_as_they_are_typed() {
        for name in ["3,2,1", "4-ary", "sequoia:16", "paths:2,4", "delayed:1,2,3", "auto:2,3"] {
            assert_eq!(name.parse::<TreeName>().unwrap().to_string(), name);
        }
    }
}
