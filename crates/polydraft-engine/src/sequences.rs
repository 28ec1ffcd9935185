//! Sequences of tokens, with a tree after each: the common part of models and drafters.

use polydraft::{DraftTree, NodeId, Token};

use crate::Result;

/// Identifies a sequence that is open in a model or a drafter. Numbers are reused after
/// [`close`](Sequences::close) and have a meaning for their owner only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sequence(u32);

impl Sequence {
    /// Creates the id with this number.
    pub fn new(number: u32) -> Self {
        Self(number)
    }

    /// Returns the number.
    pub fn number(self) -> usize {
        self.0 as usize
    }
}

/// Sequences of decided tokens (contexts), each with a speculative tree after it: the common part
/// of a [`Model`](crate::Model) and a [`Drafter`](crate::Drafter).
///
/// A context grows by [`extend`](Self::extend) and [`commit`](Self::commit). Between commits a tree
/// only grows: each call of [`score`](Self::score) computes the new nodes, so that a target runs
/// once per tree and a drafter once per level.
///
/// [`Slots`](crate::Slots) is a table of open sequences, [`PrefixCache`](crate::PrefixCache) stores
/// the KV caches of closed ones.
///
/// # Panics
/// All methods may panic on a sequence that is not open. This is a mistake of the caller, not of a
/// user.
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
    /// Opens an empty sequence.
    ///
    /// # Errors
    /// The maximum number of sequences is open.
    fn open(&mut self) -> Result<Sequence>;

    /// Closes a sequence. Its KV cache may be cached for later ones with a common prefix.
    fn close(&mut self, sequence: Sequence);

    /// Returns the number of committed tokens.
    fn len(&self, sequence: Sequence) -> usize;

    /// Appends decided tokens and drops the tree. Computation may be deferred to the next score;
    /// the KV cache of another sequence with a common prefix may be reused.
    ///
    /// # Errors
    /// A token outside the vocabulary.
    fn extend(&mut self, sequence: Sequence, tokens: &[Token]) -> Result<()>;

    /// Removes all but the first `length` tokens and drops the tree. Does nothing, and keeps the
    /// tree, if there are no more tokens than that.
    fn truncate(&mut self, sequence: Sequence, length: usize);

    /// Returns whether the KV caches of closed sequences are cached for later ones with a common
    /// prefix.
    fn caches_closed_sequences(&self) -> bool {
        false
    }

    /// Computes at most `most` of the committed tokens that are not computed yet, except the last
    /// one (the root of the next tree), so that a long prompt can be prefilled between the steps of
    /// other sequences. Returns how many remain to be computed before the last one.
    /// [`score`](Self::score) computes the rest if necessary.
    ///
    /// # Errors
    /// Failures of the computation; more tokens than the context holds.
    fn prepare(&mut self, _sequence: Sequence, _most: usize) -> Result<usize> {
        Ok(0)
    }

    /// Scores every new node of each tree, its root included, in one pass for all. Each sequence
    /// must occur at most once.
    ///
    /// # Errors
    /// An empty context, if a token is needed; a path that exceeds the context; failures of the
    /// computation.
    fn score(&mut self, batch: &[(Sequence, &DraftTree)]) -> Result<()>;

    /// Appends the tokens of `path`, nodes of `tree` from a child of the root downwards, to the
    /// context and drops the rest of the tree. The KV cache of the path's scored nodes is reused.
    ///
    /// # Errors
    /// Failures of the computation.
    fn commit(&mut self, sequence: Sequence, tree: &DraftTree, path: &[NodeId]) -> Result<()>;

    /// Approximate bytes of one token in the KV cache; 0 if negligible.
    fn token_bytes(&self) -> u64 {
        0
    }

    /// Approximate bytes of an open sequence in addition to its tokens: states of constant size.
    fn state_bytes(&self) -> u64 {
        0
    }

    /// Total tokens of all sequences, without trees, for which memory is allocated; `None` if
    /// memory is allocated on demand.
    fn token_capacity(&self) -> Option<usize> {
        None
    }
}
