//! Sequences of tokens, with a tree after each: the common part of models and drafters.

use polydraft::{DraftTree, NodeId, Token};

use crate::Result;

/// A sequence that a model or a drafter holds, from [`open`](Sequences::open) to
/// [`close`](Sequences::close). The number has a meaning for its owner only, which may use it again
/// for a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sequence(u32);

impl Sequence {
    /// The sequence of this number.
    pub fn new(number: u32) -> Self {
        Self(number)
    }

    /// Its number.
    pub fn number(self) -> usize {
        self.0 as usize
    }
}

/// Any number of sequences of decided tokens (contexts) and, after each, a speculative tree: the
/// part that a [`Model`](crate::Model) and a [`Drafter`](crate::Drafter) share.
///
/// A context grows by [`extend`](Self::extend) and [`commit`](Self::commit). A tree only grows
/// between commits: each call of [`score`](Self::score) computes the nodes that are new, so that a
/// target runs once per tree and a drafter once per level.
///
/// [`Slots`](crate::Slots) is a table for the sequences that are open, and
/// [`PrefixCache`](crate::PrefixCache) stores the KV caches of those that are closed.
///
/// # Panics
/// All methods may panic on a sequence that is not open: a mistake of the caller's, not of a
/// user's.
///
/// ```
/// use polydraft::DraftTree;
/// use polydraft_engine::{DrafterKind, Model, Result, Sequences, TableModel};
///
/// /// Prefills these tokens, and scores the last one.
/// fn read(sequences: &mut dyn Sequences, tokens: &[u32]) -> Result<usize> {
///     let sequence = sequences.open()?;
///     sequences.extend(sequence, tokens)?;
///     while sequences.prepare(sequence, 512)? > 0 {}
///     sequences.score(&[(sequence, &DraftTree::new())])?;
///     let length = sequences.len(sequence);
///     sequences.close(sequence);
///     Ok(length)
/// }
///
/// let json = r#"{"vocabulary": 2, "next": {"": [0.5, 0.5]}}"#;
/// let mut model = TableModel::from_json("example", json)?;
/// let mut drafter = "ngram".parse::<DrafterKind>()?.build(model.info())?;
/// assert_eq!(read(&mut model, &[0, 1])?, read(drafter.as_mut(), &[0, 1])?);
/// # Ok::<(), polydraft_engine::Error>(())
/// ```
pub trait Sequences: Send {
    /// Begins an empty sequence.
    ///
    /// # Errors
    /// The number of open sequences is at its limit.
    fn open(&mut self) -> Result<Sequence>;

    /// Closes a sequence. Its KV cache may be stored for a later one with a common prefix.
    fn close(&mut self, sequence: Sequence);

    /// How many tokens are committed.
    fn len(&self, sequence: Sequence) -> usize;

    /// Appends decided tokens and drops the tree. Nothing need be computed before the next score;
    /// where another sequence has a common prefix, its KV cache may serve this one too.
    ///
    /// # Errors
    /// A token outside the vocabulary.
    fn extend(&mut self, sequence: Sequence, tokens: &[Token]) -> Result<()>;

    /// Removes all but the first `length` tokens, and drops the tree. If there are no more than
    /// that, nothing changes, and the tree stays.
    fn truncate(&mut self, sequence: Sequence, length: usize);

    /// Whether what was computed for a sequence that is closed is kept for later ones that begin
    /// alike.
    fn caches_closed_sequences(&self) -> bool {
        false
    }

    /// Computes at most `most` of the committed tokens that are not computed yet, the last one
    /// never (it is the root of the next tree), so that a long prompt can be prefilled between the
    /// steps of other sequences. Returns how many are left to compute before the last one.
    /// [`score`](Self::score) computes the rest by itself.
    ///
    /// # Errors
    /// Failures of the computation; more tokens than the context holds.
    fn prepare(&mut self, _sequence: Sequence, _most: usize) -> Result<usize> {
        Ok(0)
    }

    /// Scores, in one pass for all, every node of each tree that is new, its root included. No
    /// sequence is named twice.
    ///
    /// # Errors
    /// An empty context, if a token is needed; a path that the context has no room for; failures of
    /// the computation.
    fn score(&mut self, batch: &[(Sequence, &DraftTree)]) -> Result<()>;

    /// Appends the tokens of `path`, nodes of `tree` from a child of the root downwards, to the
    /// context and drops the rest of the tree. The KV cache of the scored nodes of the path is
    /// kept.
    ///
    /// # Errors
    /// Failures of the computation.
    fn commit(&mut self, sequence: Sequence, tree: &DraftTree, path: &[NodeId]) -> Result<()>;

    /// Bytes of one token in the KV cache, about; 0 where that is next to nothing.
    fn token_bytes(&self) -> u64 {
        0
    }

    /// Bytes of an open sequence beside its tokens' own, about: states that do not grow with it.
    fn state_bytes(&self) -> u64 {
        0
    }

    /// Tokens of all sequences together, without trees, where memory for them is allocated
    /// beforehand.
    fn token_capacity(&self) -> Option<usize> {
        None
    }
}
