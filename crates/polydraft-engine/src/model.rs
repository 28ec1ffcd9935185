//! A language model, as decoding needs it: logits after every node of the given trees.

use std::any::Any;
use std::ops::Range;

use polydraft::{NodeId, Token};

use crate::{Error, Result, Sequence, Sequences, Vocabulary};

/// The facts of a model, known without computation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    /// A short name for messages.
    pub name: String,
    /// The tokens. Logits have one entry for each.
    pub vocabulary: Vocabulary,
    /// How many tokens a sequence holds, a scored path included.
    pub context: usize,
    /// Numbers in a hidden state; none for a model that has no such thing.
    pub hidden: Option<usize>,
    /// Whether it gives logits for an empty context.
    pub accepts_empty_context: bool,
    /// How many sequences may be open at once.
    pub max_sequences: usize,
}

/// A hidden state that a model has of every token: `[hidden]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HiddenState {
    /// The residual stream after so many layers, no norm applied: 0 is the embedded token, and as
    /// many as there are layers is what the last norm gets.
    After(usize),
    /// The output of the last norm, from which logits are computed.
    Output,
}

/// A language model: [`Sequences`] with logits after every node that is scored.
///
/// The logits of a sequence never depend on the rest of the batch, to the last bit. A model knows
/// nothing of speculation: it scores trees and commits paths.
///
/// # Panics
/// All methods may panic on a sequence that is not open, and [`logits`](Self::logits) on a node
/// that was not scored since the last commit: mistakes of the caller's, not of a user's.
///
/// ```
/// use polydraft::DraftTree;
/// use polydraft_engine::{Model, Sequences, TableModel};
///
/// let json = r#"{"vocabulary": 2, "next": {"": [0.5, 0.5], "1": [0.25, 0.75]}}"#;
/// let mut model = TableModel::from_json("example", json)?;
/// let text = model.open()?;
/// model.extend(text, &[0])?;
/// let mut tree = DraftTree::new();
/// let child = tree.add(DraftTree::ROOT, 1);
/// model.score(&[(text, &tree)])?;
/// assert_eq!(model.logits(text, child)[0], 0.25_f32.ln());
/// model.commit(text, &tree, &[child])?;
/// assert_eq!(model.len(text), 2);
/// # Ok::<(), polydraft_engine::Error>(())
/// ```
///
/// `examples/own_model.rs` is one of one's own.
pub trait Model: Sequences + Any {
    /// What is known of it.
    fn info(&self) -> &ModelInfo;

    /// The logits after a scored node, shape `[vocabulary]`, or one entry for each of
    /// [`outputs`](Self::outputs).
    fn logits(&self, sequence: Sequence, node: NodeId) -> &[f32];

    /// The tokens of the entries of [`logits`](Self::logits), ascending, where they are not all: of
    /// a model with a reduced draft vocabulary, which can draft but not be a target.
    fn outputs(&self) -> Option<&[Token]> {
        None
    }

    /// Its hidden states, if it gives them.
    fn as_hidden_states(&self) -> Option<&dyn HiddenStates> {
        None
    }

    /// Its hidden states, to choose which are captured, if it gives them.
    fn as_hidden_states_mut(&mut self) -> Option<&mut dyn HiddenStates> {
        None
    }

    /// Itself as a copy of another model that may take over that model's KV cache, if it can be
    /// one.
    fn as_kv_cache_follower(&mut self) -> Option<&mut dyn KvCacheFollower> {
        None
    }

    /// The threads that compute it, where there are several: sessions are verified on them.
    fn thread_pool(&self) -> Option<&dyn ThreadPool> {
        None
    }
}

/// A model whose hidden states drafters read.
pub trait HiddenStates {
    /// Captures these hidden states of all tokens from now on. To be called before a sequence is
    /// opened.
    ///
    /// # Errors
    /// States that the model does not have, or an open sequence.
    fn capture_hidden_states(&mut self, states: &[HiddenState]) -> Result<()>;

    /// Returns the captured hidden states of committed tokens that are computed, concatenated for
    /// each token in the order of capture: `[tokens, captured · hidden]`. After a
    /// [`prepare`](Sequences::prepare) that left none, and after a commit of nodes that were
    /// scored, these are all but the last.
    ///
    /// # Errors
    /// Tokens that are not computed; a model that captures nothing.
    fn hidden_states(&self, sequence: Sequence, tokens: Range<usize>) -> Result<Vec<f32>>;
}

/// A model that can be a copy of another one in fewer bits, and then reads the KV cache of that
/// model, its leader, instead of computing one.
pub trait KvCacheFollower {
    /// Follows this leader from now on, if the model is a copy of it: their KV caches have the same
    /// shape, and the leader's is more precise. Returns whether it does.
    fn follow_kv_cache(&mut self, leader: &dyn Model) -> bool;

    /// Takes over the leader's KV cache of the first `known` tokens of its sequence `of`, which is
    /// the same one, and drops the tree. The model computes the rest itself.
    ///
    /// # Errors
    /// Failures of the computation.
    fn sync_kv_cache(
        &mut self,
        sequence: Sequence,
        leader: &dyn Model,
        of: Sequence,
        known: usize,
    ) -> Result<()>;
}

/// ThreadPool that compute.
pub trait ThreadPool {
    /// Calls `work` with every number below `count`, once each, on the threads.
    fn run(&self, count: usize, work: &(dyn Fn(usize) + Sync));
}

/// Captures hidden states of a model.
///
/// # Errors
/// A model that gives none; as for [`HiddenStates::capture_hidden_states`].
pub fn capture_hidden_states(model: &mut dyn Model, states: &[HiddenState]) -> Result<()> {
    if model.as_hidden_states().is_none() {
        return no_hidden_states(model.info(), "a model that gives them");
    }
    model.as_hidden_states_mut().map_or(Ok(()), |model| model.capture_hidden_states(states))
}

/// Returns captured hidden states of a model.
///
/// # Errors
/// A model that gives none; as for [`HiddenStates::hidden_states`].
pub fn hidden_states(
    model: &dyn Model,
    sequence: Sequence,
    tokens: Range<usize>,
) -> Result<Vec<f32>> {
    match model.as_hidden_states() {
        Some(model) => model.hidden_states(sequence, tokens),
        None => no_hidden_states(model.info(), "a model that gives them"),
    }
}

/// The error of a model that has as many sequences open as it can.
///
/// # Errors
/// Always.
pub fn too_many_sequences<T>(info: &ModelInfo) -> Result<T> {
    Err(Error::TooManySequences { model: info.name.clone(), most: info.max_sequences })
}

/// The error of hidden states that a model does not give.
///
/// # Errors
/// Always.
pub fn no_hidden_states<T>(info: &ModelInfo, expected: &'static str) -> Result<T> {
    Err(Error::Setting { setting: "hidden states of the target", expected, got: info.name.clone() })
}
