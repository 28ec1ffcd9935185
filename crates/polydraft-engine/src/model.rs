//! Language models as the decode loop needs them: logits after every node of given trees.

use std::any::Any;
use std::ops::Range;

use polydraft::{NodeId, Token};

use crate::{Error, Result, Sequence, Sequences, Vocabulary};

/// Properties of a model that are known without computation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    /// Short name for messages.
    pub name: String,
    /// Vocabulary; logits have one entry per token.
    pub vocabulary: Vocabulary,
    /// Context length in tokens, a scored path included.
    pub context: usize,
    /// Width of a hidden state; `None` for a model without hidden states.
    pub hidden: Option<usize>,
    /// Whether the model returns logits for an empty context.
    pub accepts_empty_context: bool,
    /// Maximum number of open sequences.
    pub max_sequences: usize,
}

/// A hidden state of a token, of shape `[hidden]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HiddenState {
    /// The residual stream after this many layers, without a norm: 0 is the token's embedding, the
    /// number of layers is the input of the last norm.
    After(usize),
    /// The output of the last norm, from which logits are computed.
    Output,
}

/// A language model: [`Sequences`] with logits after every scored node.
///
/// The logits of a sequence are bitwise independent of the rest of the batch. A model does not
/// depend on speculation: it scores trees and commits paths.
///
/// # Panics
/// All methods may panic on a sequence that is not open, and [`logits`](Self::logits) on a node
/// that was not scored since the last commit. These are mistakes of the caller, not of a user.
///
/// ```
/// use polydraft::DraftTree;
/// use polydraft_engine::{Model, Sequences, TableModel};
///
/// let json = r#"{"vocabulary": 2, "next": {"": [0.5, 0.5], "1": [0.25, 0.75]}}"#;
/// let mut model = TableModel::from_json("example", json)?;
/// let sequence = model.open()?;
/// model.extend(sequence, &[0])?;
/// let mut tree = DraftTree::new();
/// let child = tree.add(DraftTree::ROOT, 1);
/// model.score(&[(sequence, &tree)])?;
/// assert_eq!(model.logits(sequence, child)[0], 0.25_f32.ln());
/// model.commit(sequence, &tree, &[child])?;
/// assert_eq!(model.len(sequence), 2);
/// # Ok::<(), polydraft_engine::Error>(())
/// ```
///
/// See `examples/own_model.rs` for an implementation.
pub trait Model: Sequences + Any {
    /// Returns the model's properties.
    fn info(&self) -> &ModelInfo;

    /// Returns the logits after a scored node, of shape `[vocabulary]`, or one entry per token of
    /// [`outputs`](Self::outputs).
    fn logits(&self, sequence: Sequence, node: NodeId) -> &[f32];

    /// Returns the tokens of the entries of [`logits`](Self::logits), ascending, if these are not
    /// all: a model with a reduced vocabulary can draft but not be a target.
    fn outputs(&self) -> Option<&[Token]> {
        None
    }

    /// Returns access to the model's hidden states, if it provides them.
    fn as_hidden_states(&self) -> Option<&dyn HiddenStates> {
        None
    }

    /// Returns access to choose which hidden states are captured, if the model provides them.
    fn as_hidden_states_mut(&mut self) -> Option<&mut dyn HiddenStates> {
        None
    }

    /// Returns the model as a follower of another model's KV cache, if it can be one.
    fn as_kv_cache_follower(&mut self) -> Option<&mut dyn KvCacheFollower> {
        None
    }

    /// Returns the model's thread pool, on which sessions are verified; `None` if it has one
    /// thread.
    fn thread_pool(&self) -> Option<&dyn ThreadPool> {
        None
    }
}

/// A model that provides hidden states to drafters.
pub trait HiddenStates {
    /// Captures these hidden states of all tokens from now on. Must be called before a sequence is
    /// opened.
    ///
    /// # Errors
    /// States that the model does not have, or an open sequence.
    fn capture_hidden_states(&mut self, states: &[HiddenState]) -> Result<()>;

    /// Returns the captured hidden states of committed tokens that are computed, concatenated for
    /// each token in the order of capture: `[tokens, captured · hidden]`. After a
    /// [`prepare`](Sequences::prepare) that returned 0, and after a commit of scored nodes, these
    /// are all tokens but the last.
    ///
    /// # Errors
    /// Tokens that are not computed; a model that captures nothing.
    fn hidden_states(&self, sequence: Sequence, tokens: Range<usize>) -> Result<Vec<f32>>;
}

/// A model that can be a quantised copy of another model, its leader, and then reads the leader's
/// KV cache instead of computing its own.
pub trait KvCacheFollower {
    /// Follows this leader from now on, if the model is a copy of it: their KV caches have the same
    /// shape, and the leader's is more precise. Returns whether it does.
    fn follow_kv_cache(&mut self, leader: &dyn Model) -> bool;

    /// Copies the leader's KV cache of the first `known` tokens of `leader_sequence`, which has the
    /// same tokens, and drops the tree. The model computes the remaining tokens itself.
    ///
    /// # Errors
    /// Failures of the computation.
    fn sync_kv_cache(
        &mut self,
        sequence: Sequence,
        leader: &dyn Model,
        leader_sequence: Sequence,
        known: usize,
    ) -> Result<()>;
}

/// A pool of threads.
pub trait ThreadPool {
    /// Calls `work` once with every number below `count`, on the pool's threads.
    fn run(&self, count: usize, work: &(dyn Fn(usize) + Sync));
}

/// Captures hidden states of a model.
///
/// # Errors
/// A model without hidden states; as for [`HiddenStates::capture_hidden_states`].
pub fn capture_hidden_states(model: &mut dyn Model, states: &[HiddenState]) -> Result<()> {
    if model.as_hidden_states().is_none() {
        return no_hidden_states(model.info(), "a model that gives them");
    }
    model.as_hidden_states_mut().map_or(Ok(()), |model| model.capture_hidden_states(states))
}

/// Returns captured hidden states of a model.
///
/// # Errors
/// A model without hidden states; as for [`HiddenStates::hidden_states`].
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

/// Error of opening more sequences than a model supports.
///
/// # Errors
/// Always.
pub fn too_many_sequences<T>(info: &ModelInfo) -> Result<T> {
    Err(Error::TooManySequences { model: info.name.clone(), max_sequences: info.max_sequences })
}

/// Error of hidden states that a model does not provide.
///
/// # Errors
/// Always.
pub fn no_hidden_states<T>(info: &ModelInfo, expected: &'static str) -> Result<T> {
    Err(Error::Setting { setting: "hidden states of the target", expected, got: info.name.clone() })
}
