//! Names of trees of drafts, and their meaning beside other options.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result};
use polydraft::{PolicyKind, VerifierKind};
use serde::{Deserialize, Serialize};

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
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = polydraft_files::read_text(path, polydraft_files::Kind::RECORD)
            .with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).map_err(|error| {
            let (path, error) = (path.display(), polydraft_files::in_words(error));
            anyhow::anyhow!("{path}: expected {{\"acceptance\": [0.6, 0.15, ...]}}: {error}")
        })
    }
}

/// Whether a verifier is exact for such trees.
pub fn supports(verifier: &VerifierKind, tree: &PolicyKind) -> bool {
    let (Ok(verifier), Ok(policy)) = (verifier.build(), tree.build()) else { return false };
    verifier.supports(&policy.form()).is_ok()
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
