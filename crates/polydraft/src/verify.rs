//! Verifiers: what to emit, given a tree of drafts and both models' laws.
//!
//! A verifier is a pure function of the tree, the laws and the random decisions it asks for. It knows nothing of
//! models, caches or text. Whatever the draft's laws are, the text it emits has exactly the target's law.
//!
//! To add a verifier: one file here, one line in [`VerifierKind`].

mod block;
mod greedy_block;
pub mod nested_priority;
mod priority_block;
mod token;
mod traversal;
mod walk;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::coupling::priority;
use crate::{Chance, Distribution, DraftTree, Error, NodeId, Result, Rule, Shape, Token};

pub use block::Block;
pub use greedy_block::GreedyBlock;
pub use nested_priority::NestedPriority;
pub use priority_block::PriorityBlock;
pub use token::TokenVerifier;
pub use traversal::Traversal;
pub use walk::Walk;

/// The next-token laws at the nodes of a [`DraftTree`], the root included.
///
/// They come through a trait so that a target's law need be made from logits only where a verifier looks. Verifiers
/// may look from several threads at once.
pub trait Laws: Sync {
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
    /// The token to emit after them. It belongs to no node that would have been next.
    pub token: Token,
}

/// Decides what to emit.
pub trait Verifier: Send {
    /// Emits a path of `tree` and one more token, such that the text has the target's law.
    ///
    /// # Errors
    /// A tree of a shape the verifier is not made for; a law that cannot be made.
    fn verify(&mut self, tree: &DraftTree, laws: &dyn Laws, chance: &mut dyn Chance) -> Result<Outcome>;
}

/// The verifiers by name, with their settings.
#[derive(Debug, Clone, PartialEq)]
pub enum VerifierKind {
    /// One path, token by token (Leviathan et al. 2023, Chen et al. 2023).
    Token,
    /// One path as a whole (Sun et al. 2024).
    Block,
    /// From the root down, a token-level rule at every node (Sun et al. 2023, Miao et al. 2023).
    Walk(Rule),
    /// From the leaves up (Weng et al. 2025).
    Traversal,
    /// The path of highest ratios, verified as a block (GBV).
    GreedyBlock,
    /// The path that priorities select node by node, verified as a block.
    PriorityBlock(priority::Settings),
    /// The path of highest priority, verified as a block.
    NestedPriority(nested_priority::Settings),
}

/// Names that stand for a walk with a certain rule.
const ALIASES: [(&str, &str); 2] = [("spectr", "k-seq"), ("specinfer", "recursive")];
const WALK: &str = "walk:";

impl VerifierKind {
    /// All of them with their default settings, in the order in which they are listed to users.
    pub fn all() -> Vec<Self> {
        let walks = Rule::NAMES.iter().filter_map(|name| name.parse().ok()).map(Self::Walk);
        [Self::Token, Self::Block]
            .into_iter()
            .chain(walks)
            .chain([Self::Traversal, Self::GreedyBlock])
            .chain([
                Self::PriorityBlock(priority::Settings::default()),
                Self::NestedPriority(nested_priority::Settings::default()),
            ])
            .collect()
    }

    /// What users can type, for messages.
    pub fn names() -> String {
        let aliases = ALIASES.map(|(alias, rule)| format!("{alias} (= {WALK}{rule})")).join(", ");
        let rules = Rule::NAMES.join(", ");
        format!(
            "token, block, {aliases}, {WALK}RULE (RULE one of {rules}), traversal, greedy-block, priority-block, \
             nested-priority"
        )
    }

    /// A working verifier for trees of one shape.
    ///
    /// # Errors
    /// A shape that the verifier does not support, or that is none; settings out of range.
    pub fn build(&self, shape: &Shape) -> Result<Box<dyn Verifier>> {
        shape.validate()?;
        Ok(match self {
            Self::Token => {
                self.require(shape, shape.is_chain(), "a single path")?;
                Box::new(TokenVerifier)
            }
            Self::Block => {
                self.require(shape, shape.is_chain(), "a single path")?;
                Box::new(Block::new())
            }
            Self::Walk(rule) => Box::new(Walk::new(rule, shape)?),
            Self::Traversal => {
                let drafting = [crate::Drafting::Iid, crate::Drafting::WithoutReplacement];
                let supported = drafting.contains(&shape.drafting());
                self.require(
                    shape,
                    supported,
                    "i.i.d. paths, or levels or a tree drawn iid or without-replacement",
                )?;
                Box::new(Traversal::new())
            }
            Self::GreedyBlock => {
                self.require(shape, matches!(shape, Shape::Paths { .. }), "i.i.d. paths")?;
                Box::new(GreedyBlock::new())
            }
            Self::PriorityBlock(settings) => {
                let supported = shape.drafting() == crate::Drafting::Iid;
                self.require(shape, supported, "i.i.d. paths, or levels drawn iid")?;
                Box::new(PriorityBlock::new(settings.clone())?)
            }
            Self::NestedPriority(settings) => {
                self.require(shape, matches!(shape, Shape::Paths { .. }), "i.i.d. paths")?;
                Box::new(NestedPriority::new(settings.clone())?)
            }
        })
    }

    fn require(&self, shape: &Shape, supported: bool, expected: &str) -> Result<()> {
        if supported {
            return Ok(());
        }
        let operation = match self {
            Self::Token => "verifier token",
            Self::Block => "verifier block",
            Self::Walk(_) => "walk",
            Self::Traversal => "verifier traversal",
            Self::GreedyBlock => "verifier greedy-block",
            Self::PriorityBlock(_) => "verifier priority-block",
            Self::NestedPriority(_) => "verifier nested-priority",
        };
        Err(Error::Unsupported { operation, expected: expected.to_owned(), got: shape.to_string() })
    }
}

impl fmt::Display for VerifierKind {
    /// The name that users type; settings are not shown.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Token => f.pad("token"),
            Self::Block => f.pad("block"),
            Self::Walk(rule) => match ALIASES.iter().find(|(_, name)| *name == rule.name()) {
                Some((alias, _)) => f.pad(alias),
                None => f.pad(&format!("{WALK}{}", rule.name())),
            },
            Self::Traversal => f.pad("traversal"),
            Self::GreedyBlock => f.pad("greedy-block"),
            Self::PriorityBlock(_) => f.pad("priority-block"),
            Self::NestedPriority(_) => f.pad("nested-priority"),
        }
    }
}

impl FromStr for VerifierKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let alias = ALIASES.iter().find(|(alias, _)| *alias == name).map(|(_, rule)| *rule);
        if let Some(rule) = alias.or_else(|| name.strip_prefix(WALK)) {
            return Ok(Self::Walk(rule.parse()?));
        }
        Self::all().into_iter().find(|kind| kind.to_string() == name).ok_or_else(|| Error::Name {
            kind: "verifier",
            expected: Self::names(),
            got: name.to_owned(),
        })
    }
}

impl Serialize for VerifierKind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for VerifierKind {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The number of draws below a node.
fn draws_below(tree: &DraftTree, node: NodeId) -> usize {
    tree.children(node).map(|child| tree.draws(child)).sum()
}

/// Tokens of all laws together above which several threads are worth waking.
const WORTH_THREADS: usize = 1 << 15;

/// Whether work over the laws at these nodes is to be spread over the caller's threads.
fn worth_threads(laws: &dyn Laws, nodes: &[NodeId]) -> bool {
    let work: usize =
        nodes.iter().filter_map(|&node| laws.draft(node).ok()).map(Distribution::vocabulary).sum();
    nodes.len() > 1 && work > WORTH_THREADS && rayon::current_num_threads() > 1
}
