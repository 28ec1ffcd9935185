//! What proposes: distributions over the target's vocabulary, level by level, for many sequences.
//!
//! A drafter is told what was decided, and asked for its next-token distributions along a tree.
//! Whatever it says, the text has the target's law; the better it says it, the fewer passes of the
//! target that takes.
//!
//! To add a drafter that needs no files of its own: one file here, one line in [`DrafterKind`].

mod model;
pub mod ngram;

use std::fmt;
use std::str::FromStr;

use polydraft::{Distribution, DraftTree, NodeId, Sampling, Token};

use crate::{Error, Facts, Model, Result, Sequence};

pub use model::ModelDrafter;

/// What a drafter reads of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// Its tokens.
    Tokens,
    /// The target's hidden states too, of every token.
    States,
    /// What the target keeps of the tokens, in place of computing it: nothing is left to be read,
    /// however late it is asked.
    Kept,
}

/// Proposes, for any number of sequences.
///
/// As with a [`Model`], a tree only grows between commits, and each [`score`](Self::score) makes
/// ready the nodes that are new.
///
/// # Panics
/// All methods may panic on a sequence that is not open, and [`distribution`](Self::distribution)
/// on a node that was not scored since the last commit: mistakes of the caller's, not of a user's.
///
/// ```
/// use polydraft::{DraftTree, Sampling};
/// use polydraft_engine::{DrafterKind, Model, TableModel};
///
/// let target = TableModel::from_json("target", r#"{"vocabulary": 4, "next": {"": [1, 0, 0, 0]}}"#)?;
/// let mut drafter = "ngram".parse::<DrafterKind>()?.build(target.facts())?;
/// let text = drafter.open()?;
/// drafter.extend(text, &[1, 2, 3, 1, 2, 3, 1, 2])?;
/// drafter.score(&[(text, &DraftTree::new())])?;
/// // What followed 1 2 before.
/// let law = drafter.distribution(text, DraftTree::ROOT, &Sampling::default(), None)?;
/// assert_eq!(law.argmax(), 3);
/// # Ok::<(), polydraft_engine::Error>(())
/// ```
pub trait Drafter: Send {
    /// A short name for messages.
    fn name(&self) -> &str;

    /// How many tokens it may read of a sequence, drafted ones included.
    fn context(&self) -> usize;

    /// Texts that may be open at once.
    fn sequences(&self) -> usize {
        usize::MAX
    }

    /// Begins an empty text.
    ///
    /// # Errors
    /// As many are open as there may be.
    fn open(&mut self) -> Result<Sequence>;

    /// Forgets a text.
    fn close(&mut self, sequence: Sequence);

    /// As [`Model::token_bytes`].
    fn token_bytes(&self) -> u64 {
        0
    }

    /// As [`Model::room`].
    fn room(&self) -> Option<usize> {
        None
    }

    /// How many tokens are committed.
    fn len(&self, sequence: Sequence) -> usize;

    /// Appends decided tokens and drops the tree.
    ///
    /// # Errors
    /// A token outside the vocabulary.
    fn extend(&mut self, sequence: Sequence, tokens: &[Token]) -> Result<()>;

    /// As [`Model::prepare`].
    ///
    /// # Errors
    /// Failures of the computation.
    fn prepare(&mut self, _sequence: Sequence, _most: usize) -> Result<usize> {
        Ok(0)
    }

    /// Is shown the target that it drafts for, before a text is open.
    fn meet(&mut self, _target: &dyn Model) {}

    /// What it reads of a text.
    fn reads(&self) -> Reads {
        Reads::Tokens
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

    /// Makes ready, in one pass for all, every node of each tree that is not yet. No sequence is
    /// named twice.
    ///
    /// # Errors
    /// Failures of the computation.
    fn score(&mut self, batch: &[(Sequence, &DraftTree)]) -> Result<()>;

    /// The next-token distribution after a node that is ready, over the target's vocabulary.
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

    /// Appends the tokens of `path`, nodes of `tree` from a child of the root downwards, and drops
    /// the rest of the tree.
    ///
    /// # Errors
    /// Failures of the computation.
    fn commit(&mut self, sequence: Sequence, tree: &DraftTree, path: &[NodeId]) -> Result<()>;
}

/// What every drafter's settings have.
pub(crate) trait DrafterSettings {
    /// Makes the drafter for a target of these facts.
    fn build(&self, target: &Facts) -> Result<Box<dyn Drafter>>;
}

polydraft::registry! {
    /// A drafter without a model, and its settings. To add one, write its file and add its line
    /// here.
    ///
    /// ```
    /// use polydraft_engine::DrafterKind;
    ///
    /// assert_eq!("ngram".parse::<DrafterKind>()?, DrafterKind::all()[0]);
    /// # Ok::<(), polydraft_engine::Error>(())
    /// ```
        pub enum DrafterKind, tag "draft", settings DrafterSettings;
    /// Counts of what the text has said before.
    Ngram(ngram::Settings) = "ngram",
}

impl DrafterKind {
    /// All of them with their default settings.
    pub fn all() -> Vec<Self> {
        Self::NAMES.iter().filter_map(|name| Self::named(name)).collect()
    }

    /// Makes the drafter for a target.
    ///
    /// # Errors
    /// Settings out of range; tokens that the target does not have.
    pub fn build(&self, target: &Facts) -> Result<Box<dyn Drafter>> {
        self.settings().build(target)
    }
}

impl fmt::Display for DrafterKind {
    /// The name that users type; settings are not shown.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DrafterKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::named(name).ok_or_else(|| {
            let expected = Self::NAMES.join(", ");
            polydraft::Error::Name { kind: "drafter", expected, got: name.to_owned() }.into()
        })
    }
}
