//! What proposes: distributions over the target's vocabulary, level by level, for many sequences.
//!
//! A drafter is told what was decided, and asked for its next-token distributions along a tree.
//! Whatever it says, the text has the target's law; the better it says it, the fewer passes of the
//! target that takes.
//!
//! To add a drafter that needs no files of its own: one file here, one line in [`DrafterKind`].

mod kind;
mod model;
pub mod ngram;

use polydraft::{Distribution, NodeId, Sampling};

use crate::{Model, ModelInfo, Result, Sequence, Sequences};

pub use kind::DrafterKind;
pub use model::ModelDrafter;

/// What a drafter reads of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrafterInput {
    /// Its tokens.
    Tokens,
    /// The target's hidden states too, of every token.
    States,
    /// What the target keeps of the tokens, in place of computing it: nothing is left to be read,
    /// however late it is asked.
    Kept,
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
/// let target = TableModel::from_json("target", r#"{"vocabulary": 4, "next": {"": [1, 0, 0, 0]}}"#)?;
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

    /// How many tokens it may read of a sequence, drafted ones included.
    fn context(&self) -> usize;

    /// Texts that may be open at once.
    fn sequences(&self) -> usize {
        usize::MAX
    }

    /// Is shown the target that it drafts for, before a text is open.
    fn attach(&mut self, _target: &dyn Model) {}

    /// What it reads of a text.
    fn reads(&self) -> DrafterInput {
        DrafterInput::Tokens
    }

    /// Reads what `target` has computed of its text `of`, the same one: of the first `known`
    /// tokens. One that reads more than tokens is shown all but the last before it is asked to
    /// score; one that reads states also those that there are before it is to prepare.
    ///
    /// # Errors
    /// A target that does not have what is read.
    fn read(
        &mut self,
        _sequence: Sequence,
        _target: &dyn Model,
        _of: Sequence,
        _known: usize,
    ) -> Result<()> {
        Ok(())
    }

    /// The next-token distribution after a node that is scored, over the target's vocabulary.
    /// `spare` is memory to use.
    ///
    /// # Errors
    /// What the drafter computed makes no distribution.
    fn distribution(
        &self,
        sequence: Sequence,
        node: NodeId,
        sampling: &Sampling,
        spare: Option<Distribution>,
    ) -> Result<Distribution>;
}

/// What every drafter's settings have.
pub(crate) trait DrafterSettings {
    /// Makes the drafter for a target of these facts.
    fn build(&self, target: &ModelInfo) -> Result<Box<dyn Drafter>>;
}
