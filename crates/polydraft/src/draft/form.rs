//! What kinds of draws a draft has: enough to say whether a verifier is exact for it.

use std::fmt;

use crate::drafting::{Drafting, Draws};
use crate::{Error, Result};

/// The kinds of draws in a tree. A draft records its own as it grows; a policy states the largest
/// that it may come to.
///
/// ```
/// use polydraft::{Draws, Form};
///
/// let paths = Form::paths(3);
/// assert!(paths.is_paths() && paths.is_iid() && !paths.is_chain());
/// // Draws that begin anew below the root are independent still, but no set of paths.
/// let tree = paths.with_draws(Draws::iid(2), true);
/// assert!(!tree.is_paths() && tree.is_iid());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Form {
    /// The most draws at one node, by scheme in the order of [`Drafting::ALL`]; 0 where a scheme
    /// does not occur.
    most: [usize; Drafting::ALL.len()],
    /// Whether draws begin below the root.
    restarts: bool,
    /// Whether draws were made by randomness that the target shares.
    raced: bool,
}

impl Form {
    /// That of `count` independent paths from the root; a chain if `count` is 1.
    pub fn paths(count: usize) -> Self {
        Self::default().with_draws(Draws::iid(count), false)
    }

    /// This form with such draws somewhere, begun below the root or not.
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

    pub(super) fn note_race(&mut self) {
        self.raced = true;
    }

    /// The schemes that occur, each with the most draws at one node.
    pub fn draws(&self) -> impl Iterator<Item = Draws> + '_ {
        let all = Drafting::ALL.into_iter().zip(self.most);
        all.filter(|(_, count)| *count > 0).map(|(scheme, count)| Draws { scheme, count })
    }

    /// The most draws at one node that each have a distribution of their own; 0 where there are
    /// none.
    pub fn distinct(&self) -> usize {
        self.most[Drafting::Distinct as usize]
    }

    /// The most draws at one node.
    pub fn most_draws(&self) -> usize {
        self.most.into_iter().max().unwrap_or(0)
    }

    /// Whether there is at most one draw at every node, from the draft's distribution itself: one
    /// path.
    pub fn is_chain(&self) -> bool {
        self.draws().all(|draws| draws.count == 1 && Drafting::DRAWN.contains(&draws.scheme))
    }

    /// Whether all draws are independent draws from the draft's distributions.
    pub fn is_iid(&self) -> bool {
        self.is_chain() || self.draws().all(|draws| draws.scheme == Drafting::Iid)
    }

    /// Whether the draft is a number of independent paths from the root on.
    pub fn is_paths(&self) -> bool {
        self.is_chain() || (self.is_iid() && !self.restarts)
    }

    /// # Errors
    /// `is_supported` does not hold: `operation` expected something else than this form. Draws by
    /// shared randomness are for the verifiers that share it, which do not ask.
    pub fn require(
        &self,
        operation: &'static str,
        expected: &str,
        is_supported: bool,
    ) -> Result<()> {
        if is_supported && !self.raced {
            return Ok(());
        }
        Err(Error::Unsupported { operation, expected: expected.to_owned(), got: self.to_string() })
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        if self.most_draws() == 0 {
            return f.write_str("no draws");
        }
        if self.raced {
            return f.write_str("draws by shared randomness");
        }
        if self.is_chain() {
            return f.write_str("one path");
        }
        if self.is_paths() {
            return write!(f, "{} i.i.d. paths", self.most_draws());
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
    fn forms_are_told_apart() {
        let chain = Form::paths(1).with_draws(Draws::iid(1), true);
        assert!(chain.is_chain() && chain.is_paths() && chain.is_iid());
        let paths = Form::paths(3);
        assert!(!paths.is_chain() && paths.is_paths() && paths.is_iid());
        let levels = Form::paths(3).with_draws(Draws::iid(2), true);
        assert!(!levels.is_paths() && levels.is_iid() && levels.most_draws() == 3);
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
