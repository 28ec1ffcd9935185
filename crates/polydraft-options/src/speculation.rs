//! Speculation options: what decides, and the tree of drafts.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, FromArgMatches};
use polydraft::policy::{Auto, Fixed, StopBelow};
use polydraft::{Drafting, PolicyKind, Sampling, Topology};
use polydraft_reference::VerifierKind;
use serde::{Deserialize, Serialize};

use crate::config::typed;
use crate::output::Usage;
use crate::sampling::SamplingArgs;

/// How drafts are made and verified.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Speculation")]
pub struct SpeculationArgs {
    /// What decides on the drafts; all are lossless. One path: token, block. Several:
    /// nested-priority (the best), greedy-block, traversal, priority-block, spectr, specinfer,
    /// walk:RULE with any rule of 'couple'. 'invariant' has for a seed the same text with every
    /// draft and tree, and accepts less. 'none' is plain decoding.
    #[arg(long, value_name = "NAME", default_value = "nested-priority", value_parser = verifier)]
    verifier: Verifier,
    /// Paths drafted per pass of the target [default: as --tree auto finds best; 2 where --depth is
    /// given, 1 for a verifier of one path].
    #[arg(long, short = 'k', value_name = "K", value_parser = clap::value_parser!(u32).range(1..=1024))]
    paths: Option<u32>,
    /// Tokens of each path, or levels of a k-ary or sequoia tree [default: as --tree auto finds
    /// best; 3 where --paths is given].
    #[arg(long, short = 'd', value_name = "L", value_parser = clap::value_parser!(u32).range(1..=256))]
    depth: Option<u32>,
    /// Where the tree branches: 'auto' chooses before each step and at each token what gives the
    /// most tokens per second, plain decoding included; 'auto:K,L' at most K paths of L tokens;
    /// 'paths:K,L' is --paths and --depth in one, 'delayed:L1,K,L2' one path of L1 tokens and then
    /// K of L2, '3,2,1' draws so many tokens at each node of a level, 'binary' or '3-ary' as many
    /// at every node, 'budget:2,1.5' as many as give so many distinct ones, 'sequoia:N' is the best
    /// tree of N nodes for --acceptance.
    #[arg(long, value_name = "TREE")]
    tree: Option<Tree>,
    /// End a path where the product of the acceptances that are to be expected along it falls below
    /// this, from 0 to 1: it goes by how sure the draft is of each token. With --depth as the most.
    #[arg(long, value_name = "P")]
    stop_below: Option<f64>,
    /// How tokens are drawn at a node of --tree: iid, without-replacement, greedy, hub, top-k
    /// [default: the first of these that the verifier supports].
    #[arg(long, value_name = "SCHEME", requires = "tree")]
    drafting: Option<Drafting>,
    /// Acceptances of first, second, .. drafts for a sequoia tree, as 'bench acceptance --save'
    /// writes them [default: those of the demo pair where no model is named].
    #[arg(long, value_name = "FILE", requires = "tree")]
    acceptance: Option<PathBuf>,
    /// What passes cost, for --tree auto: a file that is read, or written if there is none
    /// [default: measured once for a pair of models, and kept in the user's cache folder].
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
}

/// The depth where none is given, and the paths of verifiers that take several: with the demo
/// pair's block efficiencies and the pass costs of a model that is bound by memory, the most tokens
/// per second among trees of up to eight nodes.
const DEPTH: usize = 3;
const PATHS: usize = 2;
/// Nodes of a sequoia tree.
const MOST_NODES: usize = 4096;

#[derive(Debug, Clone)]
enum Verifier {
    None,
    Some(VerifierKind),
}

fn verifier(name: &str) -> Result<Verifier, String> {
    match name {
        "none" => Ok(Verifier::None),
        _ => {
            name.parse().map(Verifier::Some).map_err(|e: polydraft::Error| format!("{e}; or none"))
        }
    }
}

/// What `--tree` says.
#[derive(Debug, Clone, PartialEq)]
enum Tree {
    /// Says all of it.
    Whole(PolicyKind),
    /// Draws by level; --drafting says how.
    Levels(Vec<usize>),
    /// As deep as --depth says.
    Ary(usize),
    /// From --acceptance.
    Sequoia(usize),
}

impl FromStr for Tree {
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
                            "sequoia:N: expected a number of nodes from 1 to {MOST_NODES}, got {nodes:?}"
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

/// What is about drafts, beside what verifies them.
const OF_DRAFTS: [&str; 11] = [
    "tree",
    "drafting",
    "acceptance",
    "paths",
    "depth",
    "stop_below",
    "costs",
    "draft_temperature",
    "draft_top_k",
    "draft_top_p",
    "draft_min_p",
];

/// Options that the file of defaults may have, and that are at odds with what was typed. Without
/// them others may be, or no longer.
pub(crate) fn outdone(matches: &ArgMatches) -> Vec<&'static str> {
    // Of other commands none have the type of this one's verifier.
    let Ok(Some(verifier)) = matches.try_get_one::<Verifier>("verifier") else { return Vec::new() };
    let typed = |option: &str| typed(matches, option);
    if matches!(verifier, Verifier::None) && typed("verifier") {
        return OF_DRAFTS.to_vec();
    }
    let mut outdone = other_tree(matches);
    let Ok(args) = SpeculationArgs::from_arg_matches(matches) else { return outdone };
    if !args.fits() {
        // From what says least to what says most: one at a time, for then it may fit.
        let parts: &[_] = match typed("verifier") {
            true => &["drafting", "paths", "tree"],
            false if OF_DRAFTS.iter().any(|option| typed(option)) => &["drafting", "verifier"],
            false => &[],
        };
        let of_file =
            |option: &&&str| matches.value_source(option) == Some(ValueSource::DefaultValue);
        outdone.extend(parts.iter().find(of_file));
    }
    outdone
}

/// What is about another tree than the one that was typed.
fn other_tree(matches: &ArgMatches) -> Vec<&'static str> {
    let Ok(Some(tree)) = matches.try_get_one::<Tree>("tree") else { return Vec::new() };
    let has_depth = matches!(tree, Tree::Whole(_) | Tree::Levels(_));
    match typed(matches, "tree") {
        // Another tree than that of the file.
        false if typed(matches, "paths") || (has_depth && typed(matches, "depth")) => {
            OF_DRAFTS[..3].to_vec()
        }
        false => Vec::new(),
        true => match tree {
            Tree::Whole(_) => vec!["paths", "depth", "drafting", "acceptance"],
            Tree::Levels(_) => vec!["paths", "depth", "acceptance"],
            Tree::Ary(_) => vec!["paths", "acceptance"],
            Tree::Sequoia(_) => vec!["paths"],
        },
    }
}

/// How drafts are made and verified, as it was asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Speculation {
    /// What decides.
    pub verifier: VerifierKind,
    /// Where the tree grows.
    pub tree: PolicyKind,
    /// How the drafter's output becomes the distributions that drafts are drawn from.
    pub sampling: Sampling,
}

impl Speculation {
    /// At work.
    ///
    /// # Errors
    /// Settings out of range; a verifier that is not exact for the tree.
    pub fn build(&self) -> Result<polydraft_engine::Speculation> {
        let (verifier, policy) = (self.verifier.build()?, self.tree.build()?);
        self.sampling.validate()?;
        let speculation = polydraft_engine::Speculation::new(verifier, policy)?;
        Ok(speculation.with_sampling(self.sampling))
    }
}

/// Whether a verifier says that it is exact for such trees.
pub fn supports(verifier: &VerifierKind, tree: &PolicyKind) -> bool {
    let (Ok(verifier), Ok(policy)) = (verifier.build(), tree.build()) else { return false };
    verifier.supports(&policy.form()).is_ok()
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

impl SpeculationArgs {
    /// Where costs are read from, or written to.
    pub fn costs(&self) -> Option<&Path> {
        self.costs.as_deref()
    }

    /// What the options say; `None` is plain decoding. `demo` are the acceptances of the demo pair
    /// if it is what is used.
    pub fn speculation(
        &self,
        sampling: &SamplingArgs,
        demo: Option<&Path>,
    ) -> Result<Option<Speculation>> {
        let Verifier::Some(verifier) = &self.verifier else {
            let given = [
                ("--paths", self.paths.is_some()),
                ("--depth", self.depth.is_some()),
                ("--tree", self.tree.is_some()),
                ("--stop-below", self.stop_below.is_some()),
                ("--costs", self.costs.is_some()),
            ];
            let given = given.into_iter().find(|(_, given)| *given).map(|(option, _)| option);
            if let Some(option) = given.or(sampling.of_draft()) {
                return Err(Usage::error(format_args!(
                    "{option} has no meaning with --verifier none"
                )));
            }
            return Ok(None);
        };
        let mut tree = self.tree(verifier, demo)?;
        if let Some(below) = self.stop_below {
            tree = PolicyKind::StopBelow(StopBelow {
                below,
                of: Box::new(tree),
                ..StopBelow::default()
            });
        }
        let speculation =
            Speculation { verifier: verifier.clone(), tree, sampling: sampling.draft() };
        speculation
            .build()
            .map_err(|error| Usage::error(advise(verifier, &speculation.tree, error)))?;
        Ok(Some(speculation))
    }

    /// Whether the verifier is exact for the tree. What is wrong with the tree itself is said
    /// elsewhere.
    fn fits(&self) -> bool {
        let Verifier::Some(verifier) = &self.verifier else { return false };
        // Whatever its acceptances are, a sequoia tree has several draws at a node.
        let tree = self.tree.clone().map(|tree| match tree {
            Tree::Sequoia(_) => Tree::Ary(2),
            other => other,
        });
        let Ok(tree) = (Self { tree, ..self.clone() }).tree(verifier, None) else { return true };
        tree.build().is_err() || supports(verifier, &tree)
    }

    fn tree(&self, verifier: &VerifierKind, demo: Option<&Path>) -> Result<PolicyKind> {
        let depth = self.depth.map_or(DEPTH, |depth| depth as usize);
        let Some(tree) = &self.tree else {
            let given = self.paths.is_some() || self.depth.is_some() || self.stop_below.is_some();
            if let Some(auto) = default_tree(verifier).filter(|_| !given) {
                return Ok(auto);
            }
            let paths = self.paths.map(|paths| paths as usize);
            return Ok(PolicyKind::paths(paths.unwrap_or_else(|| default_paths(verifier)), depth));
        };
        if let Tree::Whole(PolicyKind::Auto(auto)) = tree
            && (self.paths.is_some() || self.depth.is_some())
        {
            let (paths, depth) = (
                self.paths.map_or(auto.paths, |k| k as usize),
                self.depth.map_or(auto.depth, |l| l as usize),
            );
            return Err(Usage::error(format_args!(
                "--tree auto chooses paths and depth: leave --paths and --depth out, or say how many at most, --tree \
                 auto:{paths},{depth}"
            )));
        }
        if self.paths.is_some() {
            return Err(Usage::error(
                "--paths and --tree are two ways to say where the tree branches: give one",
            ));
        }
        match tree {
            Tree::Whole(_) | Tree::Levels(_) if self.depth.is_some() => {
                Err(Usage::error("this --tree says how deep it is: leave --depth out"))
            }
            Tree::Whole(tree) if self.drafting.is_some() => Err(Usage::error(format_args!(
                "--tree {tree} says how its tokens are drawn: leave --drafting out (with levels or fixed trees it is \
                 written behind a slash, such as 3,2,1/top-k)"
            ))),
            _ if self.acceptance.is_some() && !matches!(tree, Tree::Sequoia(_)) => {
                Err(Usage::error(
                    "--acceptance is what --tree sequoia:N is made from: it has no meaning here",
                ))
            }
            Tree::Levels(counts) => {
                Ok(self.drafted(verifier, &|drafting| PolicyKind::levels(counts, drafting)))
            }
            Tree::Whole(tree) => Ok(tree.clone()),
            Tree::Ary(count) => Ok(self
                .drafted(verifier, &|drafting| PolicyKind::levels(&vec![*count; depth], drafting))),
            Tree::Sequoia(nodes) => {
                let file = self.acceptance.as_deref().or(demo).ok_or_else(|| {
                    Usage::error(
                        "a sequoia tree needs measured acceptances: make them with 'bench acceptance --save FILE', \
                         then give --acceptance FILE",
                    )
                })?;
                let depth = self.depth.map_or(*nodes, |depth| depth as usize);
                let topology =
                    Topology::sequoia(&AcceptanceFile::read(file)?.acceptance, *nodes, depth)
                        .with_context(|| format!("{}", file.display()))?;
                let parents = topology.parents();
                let of = |drafting| PolicyKind::Fixed(Fixed { parents: parents.clone(), drafting });
                Ok(self.drafted(verifier, &of))
            }
        }
    }

    /// The tree with the drafting that was asked for, or with the first that the verifier supports.
    fn drafted(&self, verifier: &VerifierKind, of: &dyn Fn(Drafting) -> PolicyKind) -> PolicyKind {
        let find = |fits: &dyn Fn(&PolicyKind) -> bool| {
            Drafting::ALL.into_iter().find(|drafting| fits(&of(*drafting)))
        };
        // Where the verifier supports none, one that the tree can be drawn by: then the error is
        // about the verifier.
        let any = || {
            find(&|tree| supports(verifier, tree)).or_else(|| find(&|tree| tree.build().is_ok()))
        };
        of(self.drafting.or_else(any).unwrap_or(Drafting::Iid))
    }
}

/// The tree that chooses itself, if the verifier is exact for such trees.
fn default_tree(verifier: &VerifierKind) -> Option<PolicyKind> {
    let of = |paths| PolicyKind::Auto(Auto { paths, ..Auto::default() });
    [Auto::default().paths, 1].into_iter().map(of).find(|tree| supports(verifier, tree))
}

/// What a verifier that does not fit the tree objects to, and what would.
fn advise(verifier: &VerifierKind, tree: &PolicyKind, error: anyhow::Error) -> String {
    let unfit = matches!(error.downcast_ref(), Some(polydraft::Error::Unsupported { .. }))
        || matches!(
            error.downcast_ref(),
            Some(polydraft_engine::Error::Law(polydraft::Error::Unsupported { .. }))
        );
    if !unfit {
        return format!("{verifier}: {error}");
    }
    let all = VerifierKind::all();
    // One whose text does not depend on the draft is for those who ask for that.
    let usual = |kind: &&VerifierKind| kind.build().is_ok_and(|verifier| !verifier.races());
    let verifiers =
        all.iter().filter(usual).filter(|other| supports(other, tree)).map(VerifierKind::to_string);
    let chain = supports(verifier, &PolicyKind::chain(1)).then(|| "--paths 1".to_owned());
    let levels = Drafting::ALL
        .into_iter()
        .filter(|drafting| supports(verifier, &PolicyKind::levels(&[2, 2], *drafting)));
    let levels = levels.map(|drafting| format!("--tree 2,2 --drafting {drafting}"));
    let list = |what: String, all: Vec<String>| match all.is_empty() {
        true => String::new(),
        false => format!("; {what}: {}", all.join(", ")),
    };
    format!(
        "{error}{}{}",
        list("verifiers for this tree".to_owned(), verifiers.collect()),
        list(
            format!("trees for {verifier}, for example"),
            chain.into_iter().chain(levels).collect()
        )
    )
}

/// How many paths a verifier gets if nothing but the depth is said.
fn default_paths(verifier: &VerifierKind) -> usize {
    if supports(verifier, &PolicyKind::paths(PATHS, 1)) { PATHS } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees() {
        let whole = |text: &str| Ok(Tree::Whole(text.parse().unwrap()));
        assert_eq!("3,2,1".parse(), Ok(Tree::Levels(vec![3, 2, 1])));
        assert_eq!("3,2/top-k".parse(), whole("levels:3,2/top-k"));
        assert_eq!("binary".parse(), Ok(Tree::Ary(2)));
        assert_eq!("4-ary".parse(), Ok(Tree::Ary(4)));
        assert_eq!("budget:2,1.5".parse(), whole("budget:2,1.5"));
        assert_eq!("delayed:1,2,3".parse(), whole("delayed:1,2,3"));
        assert_eq!("paths:2,4".parse(), whole("paths:2,4"));
        assert_eq!("sequoia:16".parse(), Ok(Tree::Sequoia(16)));
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
            let error = wrong.parse::<Tree>().unwrap_err();
            assert!(error.contains(expected), "{wrong}: {error}");
        }
    }
}
