//! Drafters: distributions over the target's vocabulary, level by level, for many sequences.
//!
//! A drafter gets the decided tokens, and gives its next-token distributions along a tree. Whatever
//! they are, the output has the target's distribution; the closer they are to the target's, the
//! fewer target passes are needed.
//!
//! To add a drafter that needs no files of its own: one file here, one line in [`DrafterKind`].

mod combined;
mod kind;
mod mixed;
mod model;
pub mod ngram;

use polydraft::{Distribution, NodeId, Sampling};

use crate::{Model, ModelInfo, Result, Sequence, Sequences};

pub use combined::CombinedDrafter;
pub use kind::DrafterKind;
pub use model::ModelDrafter;
use ngram::LearningNgrams;

/// The input of a drafter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrafterInput {
    /// The tokens.
    Tokens,
    /// The target's hidden states too, of every token.
    HiddenStates,
    /// The target's KV cache of the tokens, instead of one of its own: no prefill is left, however
    /// late it drafts.
    KvCache,
}

/// Proposes: [`Sequences`] with a distribution over the target's tokens after every node that is
/// scored.
///
/// # Panics
/// All methods may panic on a sequence that is not open, and [`distribution`](Self::distribution)
/// on a node that was not scored since the last commit: mistakes of the caller's, not of a user's.
///
/// ```
/// use polydraft::{DraftTree, Sampling};
/// use polydraft_engine::{DrafterKind, Model, Sequences, TableModel};
///
/// let table = r#"{"vocabulary": 4, "next": {"": [1, 0, 0, 0]}}"#;
/// let target = TableModel::from_json("target", table)?;
/// let mut drafter = "ngram".parse::<DrafterKind>()?.build(target.info())?;
/// let text = drafter.open()?;
/// drafter.extend(text, &[1, 2, 3, 1, 2, 3, 1, 2])?;
/// drafter.score(&[(text, &DraftTree::new())])?;
/// // What followed 1 2 before.
/// let probs = drafter.distribution(text, DraftTree::ROOT, &Sampling::default(), None)?;
/// assert_eq!(probs.argmax(), 3);
/// # Ok::<(), polydraft_engine::Error>(())
/// ```
pub trait Drafter: Sequences {
    /// A short name for messages.
    fn name(&self) -> &str;

    /// Its context length: tokens of a sequence, drafted ones included.
    fn context(&self) -> usize;

    /// Levels of a tree that it has distributions for: deeper nodes have none.
    fn levels(&self) -> usize {
        usize::MAX
    }

    /// Sequences that may be open at once.
    fn max_sequences(&self) -> usize {
        usize::MAX
    }

    /// How many drafters it is made of, each with distributions of its own.
    fn drafter_count(&self) -> usize {
        1
    }

    /// The n-grams that it drafts from and that are to learn from what the target says, if it has
    /// some.
    fn learning_ngrams(&self) -> Option<&LearningNgrams> {
        None
    }

    /// Attaches the target that it drafts for, before a sequence is open.
    fn attach(&mut self, _target: &dyn Model) {}

    /// Its input.
    fn input(&self) -> DrafterInput {
        DrafterInput::Tokens
    }

    /// Takes what `target` has computed of its sequence `of`, the same one: of the first `known`
    /// tokens. A drafter whose input is more than tokens gets it for all tokens but the last before
    /// it scores; one of hidden states also gets those that are computed before it prepares.
    ///
    /// # Errors
    /// A target that does not have this input.
    fn sync_target(
        &mut self,
        _sequence: Sequence,
        _target: &dyn Model,
        _target_sequence: Sequence,
        _known: usize,
    ) -> Result<()> {
        Ok(())
    }

    /// The next-token distribution after a node that is scored, over the target's vocabulary.
    /// `spare` is memory to reuse.
    ///
    /// # Errors
    /// Logits that make no distribution.
    fn distribution(
        &self,
        sequence: Sequence,
        node: NodeId,
        sampling: &Sampling,
        spare: Option<Distribution>,
    ) -> Result<Distribution>;

    /// That of the drafter of this number, below [`drafters`](Self::drafter_count).
    ///
    /// # Errors
    /// Logits that make no distribution.
    fn distribution_from(
        &self,
        _number: usize,
        sequence: Sequence,
        node: NodeId,
        sampling: &Sampling,
        spare: Option<Distribution>,
    ) -> Result<Distribution> {
        self.distribution(sequence, node, sampling, spare)
    }
}

/// The trait of every drafter's settings.
pub(crate) trait DrafterSettings {
    /// Builds the drafter for a target with this info.
    fn build(&self, target: &ModelInfo) -> Result<Box<dyn Drafter>>;
}
