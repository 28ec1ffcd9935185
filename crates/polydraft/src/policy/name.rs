//! Names of trees: complete policies, and names whose drafting scheme or shape depends on the
//! verifier, the depth or measured acceptances.

use std::fmt;
use std::str::FromStr;

use super::{Auto, Distinct, Fixed, PolicyKind, StopBelow, Topology};
use crate::drafting::Drafting;
use crate::{Error, Result, VerifierKind};

/// Name of a tree, as users type it everywhere.
///
/// ```
/// use polydraft::policy::{TreeChoice, TreeName};
///
/// let name: TreeName = "binary".parse()?;
/// let tree = name.choose(&TreeChoice { depth: Some(2), ..TreeChoice::default() })?;
/// assert_eq!(tree.to_string(), "levels:2,2");
/// # Ok::<(), polydraft::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum TreeName {
    /// A complete policy.
    Complete(PolicyKind),
    /// Draws at each node of a level; the drafting scheme follows from the [`TreeChoice`].
    Levels(Vec<usize>),
    /// The same number of draws at every node; depth and drafting scheme follow from the
    /// [`TreeChoice`].
    Ary(usize),
    /// The best tree of this many nodes for measured acceptances.
    Sequoia(usize),
    /// Another tree without the nodes that are unlikely to be reached: θ and that tree.
    StopBelow(f64, Box<TreeName>),
}

/// Values that complete a [`TreeName`].
#[derive(Debug, Clone, Copy, Default)]
pub struct TreeChoice<'a> {
    /// The verifier that the tree is for; it determines the drafting scheme.
    pub verifier: Option<&'a VerifierKind>,
    /// The drafting scheme. Default: the first that the verifier supports.
    pub drafting: Option<Drafting>,
    /// Depth of k-ary and sequoia trees. Default for k-ary trees: [`DEFAULT_DEPTH`].
    pub depth: Option<usize>,
    /// The probability that the first, second, .. distinct draft at a node is accepted, for sequoia
    /// trees.
    pub acceptance: Option<&'a [f64]>,
}

/// Number of tokens of a path where no depth is given.
pub const DEFAULT_DEPTH: usize = 3;

/// Number of paths for verifiers that support several, where only a depth is given: with the demo
/// pair's tokens per pass and the pass costs of a memory-bound model, the most tokens per second
/// among trees of up to eight nodes with [`DEFAULT_DEPTH`] levels.
const PATHS: usize = 2;

/// Maximum number of nodes of a sequoia tree.
const MAX_NODES: usize = 4096;

/// Draws per level, as an example.
const LEVELS: &str = "3,2,1";

/// Examples of other names that a [`TreeChoice`] completes.
const OTHERS: [&str; 3] = ["binary", "3-ary", "sequoia:16"];

impl TreeName {
    /// Returns the tree that the name stands for.
    ///
    /// # Errors
    /// A sequoia tree without acceptances.
    pub fn choose(&self, choice: &TreeChoice) -> Result<PolicyKind> {
        Ok(match self {
            Self::Complete(tree) => tree.clone(),
            Self::Levels(counts) => choice.scheme(&|drafting| PolicyKind::levels(counts, drafting)),
            Self::Ary(count) => {
                let counts = vec![*count; choice.depth.unwrap_or(DEFAULT_DEPTH)];
                choice.scheme(&|drafting| PolicyKind::levels(&counts, drafting))
            }
            Self::Sequoia(nodes) => {
                let acceptance = choice.acceptance.ok_or_else(|| Error::Setting {
                    setting: "sequoia tree",
                    expected: "measured acceptances to make it from",
                    got: "none".to_owned(),
                })?;
                let depth = choice.depth.unwrap_or(*nodes);
                let parents = Topology::sequoia(acceptance, *nodes, depth)?.parents();
                choice.scheme(&|drafting| {
                    PolicyKind::Fixed(Fixed { parents: parents.clone(), drafting })
                })
            }
            Self::StopBelow(below, tree) => {
                let policy = Box::new(tree.choose(choice)?);
                PolicyKind::StopBelow(StopBelow { below: *below, policy, ..StopBelow::default() })
            }
        })
    }

    /// True if the tree is made from measured acceptances.
    pub fn needs_acceptance(&self) -> bool {
        match self {
            Self::Sequoia(_) => true,
            Self::StopBelow(_, tree) => tree.needs_acceptance(),
            _ => false,
        }
    }

    /// Lists an example of every form, as users type it.
    pub fn examples() -> Vec<String> {
        let complete = PolicyKind::all().into_iter().map(|tree| tree.to_string());
        complete.chain([LEVELS].into_iter().chain(OTHERS).map(str::to_owned)).collect()
    }

    /// Lists examples of trees that a verifier is exact for, as users type them.
    pub fn examples_for(verifier: &VerifierKind) -> Vec<String> {
        let chain = PolicyKind::chain(DEFAULT_DEPTH);
        let chain = chain.is_supported_by(verifier).then(|| chain.to_string());
        let levels = Drafting::ALL
            .into_iter()
            .filter(|drafting| PolicyKind::levels(&[2, 2], *drafting).is_supported_by(verifier))
            .map(|drafting| format!("2,2/{drafting}"));
        chain.into_iter().chain(levels).collect()
    }

    /// Parses the settings of `stop-below:θ,TREE`; `None` if θ is not a number or there is no tree.
    fn parse_stop_below(settings: &str) -> Option<Result<Self>> {
        let (below, tree) = settings.split_once(',')?;
        let below = below.trim().parse().ok()?;
        Some(tree.trim().parse().map(|tree| match tree {
            Self::Complete(tree) => {
                let cut = StopBelow { below, policy: Box::new(tree), ..StopBelow::default() };
                Self::Complete(PolicyKind::StopBelow(cut))
            }
            tree => Self::StopBelow(below, Box::new(tree)),
        }))
    }
}

impl PolicyKind {
    /// Returns the default tree for a verifier: one path of adaptive length, or a path from each of
    /// several drafts (`drafts` is 0 where there is one draft with one sampling).
    pub fn default_for(verifier: &VerifierKind, drafts: usize) -> Self {
        let auto = Self::Auto(Auto::default());
        match drafts {
            0 if auto.is_supported_by(verifier) => auto,
            0 => Self::paths_for(verifier, None, None),
            drafts => Self::Distinct(Distinct { drafts, depth: DEFAULT_DEPTH }),
        }
    }

    /// Returns independent paths for a verifier where their number, or their depth, is not given.
    pub fn paths_for(verifier: &VerifierKind, paths: Option<usize>, depth: Option<usize>) -> Self {
        let takes_several = || Self::paths(PATHS, 1).is_supported_by(verifier);
        let paths = paths.unwrap_or_else(|| if takes_several() { PATHS } else { 1 });
        Self::paths(paths, depth.unwrap_or(DEFAULT_DEPTH))
    }

    /// Lists the verifiers that are exact for such trees, except those whose output does not depend
    /// on the draft, which users choose explicitly.
    pub fn verifiers(&self) -> Vec<VerifierKind> {
        let depends_on_draft = |kind: &VerifierKind| {
            kind.build().is_ok_and(|verifier| !verifier.uses_shared_randomness())
        };
        let mut all = VerifierKind::all();
        all.retain(|kind| depends_on_draft(kind) && self.is_supported_by(kind));
        all
    }
}

impl TreeChoice<'_> {
    /// The tree with the given scheme, or with the first scheme that the verifier supports.
    fn scheme(&self, tree: &dyn Fn(Drafting) -> PolicyKind) -> PolicyKind {
        // In a tree of fixed shape, draws without replacement waste no position on a repeated
        // token.
        let is_fixed = matches!(tree(Drafting::WithoutReplacement), PolicyKind::Fixed(_));
        let first = is_fixed.then_some(Drafting::WithoutReplacement);
        let find = |fits: &dyn Fn(&PolicyKind) -> bool| {
            first.into_iter().chain(Drafting::ALL).find(|drafting| fits(&tree(*drafting)))
        };
        // If the verifier supports no scheme, takes one that the tree can be drawn with, so that
        // the error is about the verifier.
        let supported =
            || self.verifier.and_then(|verifier| find(&|tree| tree.is_supported_by(verifier)));
        let any = || supported().or_else(|| find(&|tree| tree.build().is_ok()));
        tree(self.drafting.or_else(any).unwrap_or(Drafting::Iid))
    }
}

/// Names of trees that are not names of policies, for messages.
fn others() -> String {
    format!("draws per level such as {LEVELS}, or {}", OTHERS.join(", "))
}

impl FromStr for TreeName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let unknown = |expected: String| Error::Name { kind: "tree", expected, got: text.into() };
        if text == "binary" {
            return Ok(Self::Ary(2));
        }
        if let Some(count) = text.strip_suffix("-ary").and_then(|count| count.parse().ok()) {
            return Ok(Self::Ary(count));
        }
        if let Some(nodes) = text.strip_prefix("sequoia:") {
            return match nodes.parse() {
                Ok(nodes @ 1..=MAX_NODES) => Ok(Self::Sequoia(nodes)),
                _ => Err(unknown(format!("sequoia:N, N a number of nodes from 1 to {MAX_NODES}"))),
            };
        }
        if let Some(cut) = text.strip_prefix("stop-below:").and_then(Self::parse_stop_below) {
            return cut;
        }
        match text.parse() {
            Ok(PolicyKind::Levels(levels)) if !text.contains('/') => {
                Ok(Self::Levels(levels.counts))
            }
            Ok(complete) => Ok(Self::Complete(complete)),
            Err(Error::Name { kind: "tree", expected, .. }) => {
                Err(unknown(format!("{expected}; or {}", others())))
            }
            Err(_) if !text.contains([':', '/']) => Err(unknown(others())),
            Err(error) => Err(error),
        }
    }
}

impl fmt::Display for TreeName {
    /// Writes the name as it is typed.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Complete(tree) => write!(f, "{tree}"),
            Self::Levels(counts) => {
                let counts: Vec<String> = counts.iter().map(usize::to_string).collect();
                f.write_str(&counts.join(","))
            }
            Self::Ary(count) => write!(f, "{count}-ary"),
            Self::Sequoia(nodes) => write!(f, "sequoia:{nodes}"),
            Self::StopBelow(below, tree) => write!(f, "stop-below:{below},{tree}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_every_form() -> Result<()> {
        let complete = |text: &str| Ok(TreeName::Complete(text.parse()?));
        assert_eq!("3,2,1".parse(), Ok(TreeName::Levels(vec![3, 2, 1])));
        assert_eq!("3,2/top-k".parse(), complete("levels:3,2/top-k"));
        assert_eq!("binary".parse(), Ok(TreeName::Ary(2)));
        assert_eq!("4-ary".parse(), Ok(TreeName::Ary(4)));
        assert_eq!("budget:2,1.5".parse(), complete("budget:2,1.5"));
        assert_eq!("delayed:1,2,3".parse(), complete("delayed:1,2,3"));
        assert_eq!("paths:2,4".parse(), complete("paths:2,4"));
        assert_eq!("sequoia:16".parse(), Ok(TreeName::Sequoia(16)));
        let cut = |tree| Ok(TreeName::StopBelow(0.3, Box::new(tree)));
        assert_eq!("stop-below:0.3,binary".parse(), cut(TreeName::Ary(2)));
        assert_eq!("stop-below:0.3,3,2".parse(), cut(TreeName::Levels(vec![3, 2])));
        assert_eq!("stop-below:0.3,paths:2,3".parse(), complete("stop-below:0.3,paths:2,3"));
        Ok(())
    }

    #[test]
    fn rejects_unknown_names_and_lists_the_known_ones() {
        for (name, expected) in [
            ("", "sequoia:16"),
            ("tree", "sequoia:16"),
            ("x-ary", "sequoia:16"),
            ("-1", "sequoia:16"),
            ("3;2", "3,2,1"),
            ("sequoia:", "sequoia:N"),
            ("sequoia:0", "from 1 to 4096"),
            ("sequoia:4097", "from 1 to 4096"),
            ("budget:a", "budget:"),
            ("auto:", "auto:L"),
            ("stop-below:x,binary", "stop-below:0.2,paths:2,8"),
            ("stop-below:0.2,tree", "sequoia:16"),
            ("fixed:0,0,1/zz", "drafting: expected one of iid"),
        ] {
            let error = name.parse::<TreeName>().unwrap_err().to_string();
            assert!(error.contains(expected), "{name}: {error}");
        }
    }

    #[test]
    fn writes_names_as_they_are_typed() -> Result<()> {
        let names = ["3,2,1", "4-ary", "sequoia:16", "paths:2,4", "delayed:1,2,3", "auto:3"];
        for name in names.into_iter().chain(["stop-below:0.3,2-ary", "stop-below:0.2,auto:3"]) {
            assert_eq!(name.parse::<TreeName>()?.to_string(), name);
        }
        Ok(())
    }

    #[test]
    fn chooses_the_scheme_that_the_verifier_supports() -> Result<()> {
        let name: TreeName = "2,2".parse()?;
        for (verifier, expected) in [
            (None, "levels:2,2"),
            (Some("nested-priority"), "levels:2,2"),
            (Some("traversal"), "levels:2,2"),
            (Some("walk:naive"), "levels:2,2"),
            (Some("walk:hub"), "levels:2,2/greedy"),
        ] {
            let verifier = verifier.map(str::parse::<VerifierKind>).transpose()?;
            let choice = TreeChoice { verifier: verifier.as_ref(), ..TreeChoice::default() };
            assert_eq!(name.choose(&choice)?.to_string(), expected, "{verifier:?}");
        }
        let hub: VerifierKind = "walk:hub".parse()?;
        let choice = TreeChoice { verifier: Some(&hub), depth: Some(2), ..TreeChoice::default() };
        let cut = "stop-below:0.3,binary".parse::<TreeName>()?.choose(&choice)?;
        assert_eq!(cut.to_string(), "stop-below:0.3,levels:2,2/greedy");
        Ok(())
    }

    #[test]
    fn chooses_default_trees_by_verifier_and_drafts() -> Result<()> {
        for (verifier, drafts, expected) in [
            ("nested-priority", 0, "auto:64"),
            ("block", 0, "auto:64"),
            ("walk:hub", 0, "paths:1,3"),
            ("specinfer", 2, "distinct:2,3"),
        ] {
            let tree = PolicyKind::default_for(&verifier.parse()?, drafts);
            assert_eq!(tree.to_string(), expected, "{verifier}");
        }
        Ok(())
    }

    #[test]
    fn fills_in_paths_by_the_verifier() -> Result<()> {
        for (verifier, paths, depth, expected) in [
            ("nested-priority", None, Some(4), "paths:2,4"),
            ("block", None, Some(4), "paths:1,4"),
            ("block", Some(3), None, "paths:3,3"),
        ] {
            let tree = PolicyKind::paths_for(&verifier.parse()?, paths, depth);
            assert_eq!(tree.to_string(), expected, "{verifier}");
        }
        Ok(())
    }

    #[test]
    fn examples_are_trees() -> Result<()> {
        let choice = TreeChoice { acceptance: Some(&[0.6, 0.2]), ..TreeChoice::default() };
        for name in TreeName::examples() {
            name.parse::<TreeName>()?.choose(&choice)?.build()?;
        }
        for kind in VerifierKind::all() {
            for name in TreeName::examples_for(&kind) {
                let tree = name.parse::<TreeName>()?.choose(&TreeChoice::default())?;
                assert!(tree.is_supported_by(&kind), "{kind}: {name}");
            }
        }
        let hub = TreeName::examples_for(&"walk:hub".parse()?);
        assert!(hub.contains(&"2,2/greedy".to_owned()), "{hub:?}");
        Ok(())
    }

    #[test]
    fn lists_verifiers_that_fit_a_tree() -> Result<()> {
        let names = |tree: &str| -> Result<Vec<String>> {
            let fit = tree.parse::<PolicyKind>()?.verifiers();
            Ok(fit.iter().map(VerifierKind::to_string).collect())
        };
        assert!(names("paths:1,3")?.contains(&"block".to_owned()));
        let several = names("paths:2,3")?;
        assert!(several.contains(&"nested-priority".to_owned()));
        assert!(!several.contains(&"block".to_owned()));
        Ok(())
    }

    #[test]
    fn makes_sequoia_trees_from_acceptances() -> Result<()> {
        let name: TreeName = "sequoia:4".parse()?;
        assert!(name.choose(&TreeChoice::default()).is_err());
        let choice = TreeChoice { acceptance: Some(&[0.6, 0.2]), ..TreeChoice::default() };
        assert_eq!(name.choose(&choice)?.nodes(), 4.0);
        Ok(())
    }
}
