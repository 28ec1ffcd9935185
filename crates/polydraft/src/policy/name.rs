//! The one grammar of trees: names that leave the drafting scheme, or the shape, to what is known
//! beside them.

use std::fmt;
use std::str::FromStr;

use super::{Fixed, PolicyKind, Topology};
use crate::drafting::Drafting;
use crate::{Error, Result, VerifierKind};

/// The name of a tree, as users type it everywhere.
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
    /// A complete description.
    Complete(PolicyKind),
    /// Draws at each node of a level; the drafting scheme is chosen.
    Levels(Vec<usize>),
    /// The same number of draws at every node; depth and drafting scheme are chosen.
    Ary(usize),
    /// The best tree of so many nodes for measured acceptances.
    Sequoia(usize),
}

/// Facts that decide what a [`TreeName`] stands for.
#[derive(Debug, Clone, Copy, Default)]
pub struct TreeChoice<'a> {
    /// The verifier that the tree is for: it decides the drafting scheme.
    pub verifier: Option<&'a VerifierKind>,
    /// The drafting scheme; none is the first that the verifier supports.
    pub drafting: Option<Drafting>,
    /// Levels of k-ary and sequoia trees; none is [`DEPTH`] for k-ary ones.
    pub depth: Option<usize>,
    /// The probability that the first, second, .. distinct draft at a node is accepted: what
    /// sequoia trees are made from.
    pub acceptance: Option<&'a [f64]>,
}

/// Tokens of a path where no depth is given.
pub const DEPTH: usize = 3;

/// Most nodes of a sequoia tree.
const MOST_NODES: usize = 4096;

/// Names of trees that are not those of policies.
const OTHERS: &str = "draws per level such as 3,2,1, or binary, 3-ary, sequoia:16";

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
                let counts = vec![*count; choice.depth.unwrap_or(DEPTH)];
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
        })
    }
}

impl TreeChoice<'_> {
    /// The tree with the scheme that is given, or with the first that the verifier supports.
    fn scheme(&self, tree: &dyn Fn(Drafting) -> PolicyKind) -> PolicyKind {
        // A tree that is laid down beforehand wastes no position on a token that is drawn again.
        let is_fixed = matches!(tree(Drafting::WithoutReplacement), PolicyKind::Fixed(_));
        let first = is_fixed.then_some(Drafting::WithoutReplacement);
        let find = |fits: &dyn Fn(&PolicyKind) -> bool| {
            first.into_iter().chain(Drafting::ALL).find(|drafting| fits(&tree(*drafting)))
        };
        // Where the verifier supports none, one that the tree can be drawn by: then the error is
        // about the verifier.
        let supported =
            || self.verifier.and_then(|verifier| find(&|tree| tree.is_supported_by(verifier)));
        let any = || supported().or_else(|| find(&|tree| tree.build().is_ok()));
        tree(self.drafting.or_else(any).unwrap_or(Drafting::Iid))
    }
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
                Ok(nodes @ 1..=MOST_NODES) => Ok(Self::Sequoia(nodes)),
                _ => Err(unknown(format!("sequoia:N, N a number of nodes from 1 to {MOST_NODES}"))),
            };
        }
        match text.parse() {
            Ok(PolicyKind::Levels(levels)) if !text.contains('/') => {
                Ok(Self::Levels(levels.counts))
            }
            Ok(complete) => Ok(Self::Complete(complete)),
            Err(Error::Name { expected, .. }) => Err(unknown(format!("{expected}; or {OTHERS}"))),
            Err(_) if !text.contains([':', '/']) => Err(unknown(OTHERS.to_owned())),
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
        Ok(())
    }

    #[test]
    fn refuses_other_names_with_what_there_is() {
        for (wrong, expected) in [
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
        ] {
            let error = wrong.parse::<TreeName>().unwrap_err().to_string();
            assert!(error.contains(expected), "{wrong}: {error}");
        }
    }

    #[test]
    fn writes_names_as_they_are_typed() -> Result<()> {
        for name in ["3,2,1", "4-ary", "sequoia:16", "paths:2,4", "delayed:1,2,3", "auto:3"] {
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
