//! What the decode loop needs of a language model.

use polydraft::{DraftTree, NodeId, Token};

use crate::{Result, Vocabulary};

/// A language model with a committed context and, behind it, a speculative tree.
///
/// The context grows by [`extend`](Model::extend) and [`commit`](Model::commit) and is never taken back, but for
/// [`reset`](Model::reset). A tree only grows between commits: each call of [`score`](Model::score) computes the
/// nodes that are new, so that a target is asked once per tree and a draft once per level.
///
/// A model knows nothing of speculation: it scores what it is given and keeps what it is told.
pub trait Model {
    /// A short name for messages.
    fn name(&self) -> &str;

    /// The tokens. Rows of logits have one entry for each.
    fn vocabulary(&self) -> &Vocabulary;

    /// How many tokens the context holds, a scored path included.
    fn context_length(&self) -> usize;

    /// How many tokens are committed.
    fn len(&self) -> usize;

    /// Whether nothing is committed.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets everything.
    fn reset(&mut self);

    /// Appends decided tokens to the context and drops the tree. Nothing need be computed before the next score.
    ///
    /// # Errors
    /// A token outside the vocabulary.
    fn extend(&mut self, tokens: &[Token]) -> Result<()>;

    /// Computes the logits after every node of `tree`, the root included, that has none yet.
    ///
    /// # Errors
    /// An empty context, if the model needs a token; a path that the context has no room for; failures of the
    /// computation.
    fn score(&mut self, tree: &DraftTree) -> Result<()>;

    /// The logits after a scored node, shape `[vocabulary]`.
    ///
    /// # Panics
    /// If the node was not scored since the last commit: a mistake of the caller's, not of a user's.
    fn logits(&self, node: NodeId) -> &[f32];

    /// Appends the tokens of `path`, nodes of `tree` from a child of the root downwards, to the context and drops
    /// the rest of the tree. What was computed for the scored nodes of the path is kept.
    ///
    /// # Errors
    /// Failures of the computation.
    fn commit(&mut self, tree: &DraftTree, path: &[NodeId]) -> Result<()>;
}
