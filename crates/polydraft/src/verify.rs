//! Verifiers: what to emit, given a tree of drafts and both models' laws.
//!
//! A verifier is a pure function of the tree, the laws and the random decisions it asks for. It knows nothing of
//! models, caches or text. Whatever the draft's laws are, the text it emits has exactly the target's law.
//!
//! To add a verifier: one file here, one line in [`VerifierKind`].

mod token;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Chance, Distribution, DraftTree, Error, NodeId, Result, Token};

pub use token::TokenVerifier;

/// The next-token laws at the nodes of a [`DraftTree`], the root included.
///
/// They come through a trait so that a target's law need be made from logits only where a verifier looks.
pub trait Laws {
    /// What the draft drew this node's children from.
    ///
    /// # Errors
    /// The node was never drafted at.
    fn draft(&self, node: NodeId) -> Result<&Distribution>;

    /// The target's law after this node.
    ///
    /// # Errors
    /// The model's logits there make no distribution.
    fn target(&self, node: NodeId) -> Result<&Distribution>;
}

/// What a verifier decided for one tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The accepted nodes, from a child of the root downwards; may be empty.
    pub accepted: Vec<NodeId>,
    /// The token to emit after them. It belongs to no node.
    pub token: Token,
}

/// Decides what to emit.
pub trait Verifier {
    /// Emits a path of `tree` and one more token, such that the text has the target's law.
    ///
    /// # Errors
    /// A tree of a shape the verifier is not made for; a law that cannot be made.
    fn verify(&mut self, tree: &DraftTree, laws: &dyn Laws, chance: &mut dyn Chance) -> Result<Outcome>;
}

/// The verifiers by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VerifierKind {
    /// One path, token by token (Leviathan et al. 2023, Chen et al. 2023).
    Token,
}

impl VerifierKind {
    /// All of them, in the order in which they are listed to users.
    pub const ALL: [Self; 1] = [Self::Token];

    /// The name that users type.
    pub fn name(self) -> &'static str {
        match self {
            Self::Token => "token",
        }
    }

    /// A working verifier.
    pub fn build(self) -> Box<dyn Verifier + Send> {
        match self {
            Self::Token => Box::new(TokenVerifier),
        }
    }
}

impl fmt::Display for VerifierKind {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for VerifierKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| Error::Name {
            kind: "verifier",
            expected: Self::ALL.map(Self::name).join(", "),
            got: name.to_owned(),
        })
    }
}
