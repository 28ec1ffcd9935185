//! The kinds of draws in a draft: enough to decide whether a verifier is exact for it.

use std::fmt;

use crate::drafting::{Drafting, Draws};
use crate::{Error, Result};

/// The kinds of draws in a tree. A draft records them as it grows; a policy states an upper bound
/// for its trees.
///
/// ```
/// use polydraft::{Draws, Form};
///
/// let paths = Form::paths(3);
/// assert!(paths.is_paths() && paths.is_iid() && !paths.is_chain());
/// // Fresh draws below the root are still independent, but no longer a set of paths.
/// let tree = paths.with_draws(Draws::iid(2), true);
/// assert!(!tree.is_paths() && tree.is_iid());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Form {
    /// The maximum number of draws at one node, by scheme in the order of [`Drafting::ALL`]; 0 for
    /// schemes that do not occur.
    most: [usize; Drafting::ALL.len()],
    /// True if there are fresh draws below the root.
    restarts: bool,
    /// True if draws were made with randomness that the target shares.
    has_shared_randomness: bool,
}

impl Form {
    /// The form of `count` independent paths from the root; a chain if `count` is 1.
    pub fn paths(count: usize) -> Self {
        Self::default().with_draws(Draws::iid(count), false)
    }

    /// Adds draws to the form; `below_root` is true for fresh draws below the root.
    #[must_use]
    pub fn with_draws(mut self, draws: Draws, below_root: bool) -> Self {
        self.note(draws, below_root);
        self
    }

    pub(super) fn note(&mut self, draws: Draws, below_root: bool) {
        let most = &mut self.most[draws.scheme as usize];
        *most = draws.count.max(*most);
        self.restarts |= below_root;
    }

    pub(super) fn note_shared_randomness(&mut self) {
        self.has_shared_randomness = true;
    }

    /// The schemes that occur, each with its maximum number of draws at one node.
    pub fn draws(&self) -> impl Iterator<Item = Draws> + '_ {
        let all = Drafting::ALL.into_iter().zip(self.most);
        all.filter(|(_, count)| *count > 0).map(|(scheme, count)| Draws { scheme, count })
    }

    /// The maximum number of draws from distinct distributions at one node; 0 if there are none.
    pub fn distinct(&self) -> usize {
        self.most[Drafting::Distinct as usize]
    }

    /// The maximum number of draws at one node.
    pub fn max_draws(&self) -> usize {
        self.most.into_iter().max().unwrap_or(0)
    }

    /// True for a single path: at most one draw at every node, from the draft's distribution
    /// itself.
    pub fn is_chain(&self) -> bool {
        self.draws().all(|draws| draws.count == 1 && Drafting::DRAWN.contains(&draws.scheme))
    }

    /// True if all draws are independent draws from the draft's distributions.
    pub fn is_iid(&self) -> bool {
        self.is_chain() || self.draws().all(|draws| draws.scheme == Drafting::Iid)
    }

    /// True if the tree consists of independent paths that start at the root.
    pub fn is_paths(&self) -> bool {
        self.is_chain() || (self.is_iid() && !self.restarts)
    }

    /// Returns an error of `operation` unless `is_supported` holds. Draws made with shared
    /// randomness are never supported: verifiers that share it do not call this.
    ///
    /// # Errors
    /// An unsupported form.
    pub fn require(
        &self,
        operation: &'static str,
        expected: &str,
        is_supported: bool,
    ) -> Result<()> {
        if is_supported && !self.has_shared_randomness {
            return Ok(());
        }
        Err(Error::Unsupported { operation, expected: expected.to_owned(), got: self.to_string() })
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        if self.max_draws() == 0 {
            return f.write_str("no draws");
        }
        if self.has_shared_randomness {
            return f.write_str("draws by shared randomness");
        }
        if self.is_chain() {
            return f.write_str("one path");
        }
        if self.is_paths() {
            return write!(f, "{} i.i.d. paths", self.max_draws());
        }
        let kinds: Vec<String> = self
            .draws()
            .map(|draws| format!("up to {} draws {} at a node", draws.count, draws.scheme))
            .collect();
        write!(f, "a tree of {}", kinds.join(" and "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_chains_paths_iid_trees_and_other_forms() {
        let chain = Form::paths(1).with_draws(Draws::iid(1), true);
        assert!(chain.is_chain() && chain.is_paths() && chain.is_iid());
        let paths = Form::paths(3);
        assert!(!paths.is_chain() && paths.is_paths() && paths.is_iid());
        let levels = Form::paths(3).with_draws(Draws::iid(2), true);
        assert!(!levels.is_paths() && levels.is_iid() && levels.max_draws() == 3);
        let top = Form::default().with_draws(Draws { scheme: Drafting::TopK, count: 1 }, false);
        assert!(!top.is_chain() && !top.is_iid());
        let mixed = Form::paths(2)
            .with_draws(Draws { scheme: Drafting::WithoutReplacement, count: 2 }, true);
        assert!(!mixed.is_iid());
        assert_eq!(
            mixed.to_string(),
            "a tree of up to 2 draws iid at a node and up to 2 draws without-replacement at a node"
        );
    }
}
