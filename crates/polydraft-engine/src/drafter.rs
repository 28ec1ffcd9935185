//! Drafters: distributions over the target's vocabulary, level by level, for many sequences.
//!
//! A drafter gets the decided tokens and returns next-token distributions along a tree. The output
//! has the target's distribution whatever the drafter returns; the closer its distributions are to
//! the target's, the fewer target passes are needed.
//!
//! To add a drafter that needs no files of its own, add a file here and a line in [`DrafterKind`].

mod combined;
mod kind;
mod mixed;
mod model;
pub mod ngram;
pub mod remote;
mod translated;

use polydraft::{Distribution, NodeId, Sampling};

use crate::{Model, ModelInfo, Result, Sequence, Sequences};

pub use combined::CombinedDrafter;
pub use kind::DrafterKind;
pub use model::ModelDrafter;
use ngram::LearningNgrams;
pub use translated::{Pieces, TranslatedDrafter, TranslatedVocabulary, Translation};

/// Input of a drafter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrafterInput {
    /// Tokens only.
    Tokens,
    /// Also the target's hidden states of every token.
    HiddenStates,
    /// The target's KV cache instead of one of its own: the drafter needs no prefill, however late
    /// it starts to draft.
    KvCache,
}

/// Proposes tokens: [`Sequences`] with a distribution over the target's vocabulary after every
/// scored node.
///
/// # Panics
/// All methods may panic on a sequence that is not open, and [`distribution`](Self::distribution)
/// on a node that was not scored since the last commit. These are mistakes of the caller, not of a
/// user.
///
/// ```
/// use polydraft::{DraftTree, Sampling};
/// use polydraft_engine::{DrafterKind, Model, Sequences, TableModel};
///
/// let table = r#"{"vocabulary": 4, "next": {"": [1, 0, 0, 0]}}"#;
/// let target = TableModel::from_json("target", table)?;
/// let mut drafter = "ngram".parse::<DrafterKind>()?.build(target.info())?;
/// let sequence = drafter.open()?;
/// drafter.extend(sequence, &[1, 2, 3, 1, 2, 3, 1, 2])?;
/// drafter.score(&[(sequence, &DraftTree::new())])?;
/// // The token that followed 1 2 before.
/// let probs = drafter.distribution(sequence, DraftTree::ROOT, &Sampling::default(), None)?;
/// assert_eq!(probs.argmax(), 3);
/// # Ok::<(), polydraft_engine::Error>(())
/// ```
pub trait Drafter: Sequences {
    /// Short name for messages.
    fn name(&self) -> &str;

    /// Context length in tokens, drafted ones included.
    fn context(&self) -> usize;

    /// Levels of a tree for which the drafter has distributions; deeper nodes have none.
    fn levels(&self) -> usize {
        usize::MAX
    }

    /// Maximum number of open sequences.
    fn max_sequences(&self) -> usize {
        usize::MAX
    }

    /// Number of drafters it combines, each with its own distributions.
    fn drafter_count(&self) -> usize {
        1
    }

    /// The n-grams that it drafts from and that learn from the target's output, if any.
    fn learning_ngrams(&self) -> Option<&LearningNgrams> {
        None
    }

    /// Requires that a sequence's distributions depend on its tokens alone, not on measured times,
    /// because a seed decides its output. Only a drafter that may be late needs it.
    fn make_reproducible(&mut self, _sequence: Sequence) {}

    /// Returns whether its distributions may depend on measured times unless
    /// [`make_reproducible`](Self::make_reproducible) forbids it.
    fn may_be_late(&self) -> bool {
        false
    }

    /// Returns whether it drafts for a sequence in this step; otherwise the step is plain. It must
    /// not depend on what was drawn in the sequence, other than by measured times.
    fn is_ready(&self, _sequence: Sequence) -> bool {
        true
    }

    /// Returns what the user should know about a draft that failed, once.
    fn take_warning(&mut self) -> Option<String> {
        None
    }

    /// Attaches the target, before a sequence is opened.
    fn attach(&mut self, _target: &dyn Model) {}

    /// Input that the drafter needs.
    fn input(&self) -> DrafterInput {
        DrafterInput::Tokens
    }

    /// Copies what `target` has computed for the first `known` tokens of its own sequence with the
    /// same tokens. A drafter that needs more than tokens gets this for all tokens but the last
    /// before it scores. One that reads hidden states also gets those computed so far before it
    /// prepares.
    ///
    /// # Errors
    /// A target that does not provide this input.
    fn sync_target(
        &mut self,
        _sequence: Sequence,
        _target: &dyn Model,
        _target_sequence: Sequence,
        _known: usize,
    ) -> Result<()> {
        Ok(())
    }

    /// Returns the next-token distribution after a scored node, over the target's vocabulary,
    /// reusing the memory of `spare`.
    ///
    /// # Errors
    /// Logits that are not a valid distribution.
    fn distribution(
        &self,
        sequence: Sequence,
        node: NodeId,
        sampling: &Sampling,
        spare: Option<Distribution>,
    ) -> Result<Distribution>;

    /// Returns the distribution of one of the combined drafters, by its number below
    /// [`drafter_count`](Self::drafter_count).
    ///
    /// # Errors
    /// Logits that are not a valid distribution.
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

/// Settings of a drafter.
pub(crate) trait DrafterSettings {
    /// Builds the drafter for a target.
    fn build(&self, target: &ModelInfo) -> Result<Box<dyn Drafter>>;
}
