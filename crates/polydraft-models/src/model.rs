//! Implementation of the engine's `Model` on a transformer.
//!
//! The results for a token depend, to the last bit, only on the tokens before it in its sequence:
//! not on the other sequences of a pass, on the tree around it, on how a prompt was split into
//! passes, or on the sequence that it was first computed for. So the KV cache of a prefix can be
//! used for every sequence with that prefix.

mod closed_sequences;
mod limits;
mod logits;
mod sequence;

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use polydraft::{DraftTree, NodeId, Token};
use polydraft_engine::model::{no_hidden_states, too_many_sequences};
use polydraft_engine::prefix::{Cached, Source, common_prefix};
use polydraft_engine::{
    Error as EngineError, HiddenState, HiddenStates, KvCacheFollower, Model, ModelInfo, Result,
    Sequence, Sequences, Slots, ThreadPool, Vocabulary,
};
use polydraft_kernels::Error as KernelError;

use crate::cache::Cache;
use crate::config::Config;
use crate::error;
use crate::linear::Matrix;
use crate::precision::Precision;
use crate::self_draft_reader::SelfDraftReader;
use crate::transformer::Transformer;
use crate::transformer::pass::SequenceTokens;
use closed_sequences::ClosedSequences;
pub use limits::SequenceLimits;
use logits::LogitsBuffer;
use sequence::SequenceState;

/// Maximum tokens of a pass: enough to use the CPU, few enough for small buffers.
const MAX_PASS_TOKENS: usize = 256;

/// A transformer with its open sequences.
#[derive(Debug)]
pub struct TransformerModel {
    info: ModelInfo,
    transformer: Transformer,
    sequences: Slots<SequenceState>,
    logits_buffer: LogitsBuffer,
    closed: ClosedSequences,
    /// Tokens of the vocabulary that logits are computed for, if not all.
    outputs: Option<Vec<Token>>,
    /// Whether this is a quantised self-draft that shares the KV cache of its original.
    shares_kv_cache: bool,
}

impl TransformerModel {
    pub(crate) fn new(
        name: String,
        vocabulary: Vocabulary,
        transformer: Transformer,
    ) -> error::Result<Self> {
        let Config { context, hidden, .. } = transformer.config;
        let limits = SequenceLimits::default();
        let info = ModelInfo {
            name,
            vocabulary,
            context,
            hidden: Some(hidden),
            accepts_empty_context: false,
            max_sequences: limits.open,
        };
        Ok(Self {
            info,
            transformer,
            sequences: Slots::default(),
            logits_buffer: LogitsBuffer::default(),
            closed: ClosedSequences::new(limits),
            outputs: None,
            shares_kv_cache: false,
        })
    }

    /// A copy of the model with its weights rounded to `precision`: a draft model that needs no
    /// second set of files. Embeddings, norms and biases are shared; sequences are not. If scales
    /// are searched for, errors are weighted by the inputs that `sample` causes: some hundred
    /// tokens of any text are enough. Without a sample all errors have the same weight.
    ///
    /// # Errors
    /// Failures of the computation.
    pub fn rounded(&mut self, precision: Precision, sample: &[Token]) -> error::Result<Self> {
        let copy = self.transformer.rounded_with_sample(precision, sample)?;
        self.self_draft(precision, copy)
    }

    /// Reads the result of an earlier [`rounded`](Self::rounded) from its cache file.
    pub(crate) fn load_cached(
        &self,
        precision: Precision,
        file: &SelfDraftReader,
    ) -> error::Result<Self> {
        self.self_draft(precision, self.transformer.load_cached(precision, file)?)
    }

    fn self_draft(&self, precision: Precision, copy: Transformer) -> error::Result<Self> {
        Self::new(format!("{} in {precision}", self.info.name), self.info.vocabulary.clone(), copy)
    }

    /// Returns `model` if this one is a quantised self-draft of it.
    fn original<'m>(&self, model: &'m dyn Model) -> Option<&'m Self> {
        let model = (model as &dyn Any).downcast_ref::<Self>()?;
        self.transformer.is_copy_of(&model.transformer).then_some(model)
    }

    /// Sets the limits of open and cached sequences. Open sequences stay open.
    pub fn set_limits(&mut self, limits: SequenceLimits) {
        self.info.max_sequences = limits.open;
        self.closed.set_limits(limits);
    }

    /// Computes logits only for `tokens`, which must ascend. This makes a draft model faster; the
    /// model cannot be a target any more.
    ///
    /// # Errors
    /// No tokens; tokens that do not ascend or are not in the vocabulary; failures of the
    /// computation.
    pub fn restrict_output(&mut self, tokens: &[Token]) -> error::Result<()> {
        if tokens.is_empty() || !tokens.is_sorted_by(|token, next| token < next) {
            return Err(KernelError::Shape {
                operation: "tokens of the output matrix",
                expected: "ascending tokens".to_owned(),
                got: format!("{tokens:?}"),
            }
            .into());
        }
        let lm_head = self.transformer.lm_head().select(tokens)?;
        self.transformer.set_lm_head(Arc::new(lm_head));
        self.outputs = Some(tokens.to_vec());
        Ok(())
    }

    /// Embeddings of tokens, before any scaling: `[tokens, embedding]`.
    ///
    /// # Errors
    /// Failures of the computation.
    pub fn embedding_rows(&self, tokens: &[Token]) -> error::Result<Vec<f32>> {
        lookup_rows(self.transformer.embedding(), tokens)
    }

    /// Rows of the output matrix for tokens: `[tokens, embedding]`.
    ///
    /// # Errors
    /// Failures of the computation.
    pub fn output_rows(&self, tokens: &[Token]) -> error::Result<Vec<f32>> {
        lookup_rows(self.transformer.lm_head(), tokens)
    }

    /// Weights of the norm after the last layer; `None` if there is no such norm or it has biases.
    pub fn last_norm(&self) -> Option<&[f32]> {
        self.transformer.last_norm()
    }

    /// Length of a vector of logits.
    fn width(&self) -> usize {
        self.outputs.as_ref().map_or(self.info.vocabulary.size(), Vec::len)
    }

    pub(crate) fn transformer(&self) -> &Transformer {
        &self.transformer
    }

    /// Shape of the model.
    pub fn config(&self) -> &Config {
        &self.transformer.config
    }

    /// Size of the weight matrices in bytes.
    pub fn weight_bytes(&self) -> usize {
        self.transformer.weight_bytes()
    }

    /// Bytes of weights that a pass over a single token reads.
    pub fn bytes_per_pass(&self) -> usize {
        self.transformer.bytes_per_pass()
    }

    /// Size of the KV caches of all open and cached sequences in bytes. Shared pages are counted
    /// for each sequence.
    pub fn cache_bytes(&self) -> usize {
        let open = self.sequences.iter().map(|(_, state)| state.cache.bytes());
        open.sum::<usize>() + self.closed.bytes()
    }

    /// Number of tokens of a sequence that are in its KV cache.
    pub fn computed_tokens(&self, sequence: Sequence) -> usize {
        self.state(sequence).computed()
    }

    /// A KV cache of the first `tokens` tokens of a sequence, or of all that are computed.
    pub(crate) fn share_prefix(&self, sequence: Sequence, tokens: usize) -> Cache {
        let state = self.state(sequence);
        state.cache.share(tokens.min(state.computed()))
    }

    fn state(&self, sequence: Sequence) -> &SequenceState {
        &self.sequences[sequence]
    }

    fn state_mut(&mut self, sequence: Sequence) -> &mut SequenceState {
        &mut self.sequences[sequence]
    }

    fn failed(&self, source: error::Error) -> EngineError {
        EngineError::Model { model: self.info.name.clone(), source: Box::new(source) }
    }

    /// Computes all `work`, at most [`MAX_PASS_TOKENS`] tokens at a time.
    fn compute(&mut self, mut work: Vec<Work>) -> error::Result<()> {
        work.sort_unstable_by_key(|work| work.sequence);
        work.dedup_by_key(|work| work.sequence);
        let width = self.width();
        while work.iter().any(|work| work.next < work.end) {
            let mut budget = MAX_PASS_TOKENS;
            let mut sequences = self.sequences.iter_mut();
            let mut parts: Vec<SequenceTokens> = Vec::new();
            let mut ends: Vec<(usize, usize)> = Vec::new();
            for (i, work) in work.iter().enumerate() {
                let end = work.end.min(work.next + budget);
                let state = sequences.find(|(sequence, _)| *sequence == work.sequence);
                if let Some((_, state)) = state
                    && end > work.next
                {
                    parts.push(state.part(work.next..end, work.tree));
                    ends.push((i, end));
                    budget -= end - work.next;
                }
            }
            let wanted: Vec<usize> = parts.iter().map(|part| part.wanted).collect();
            // The buffer is free if no sequence still needs the logits of the previous pass.
            let size = wanted.iter().sum::<usize>() * width;
            let buffer = self.logits_buffer.take(size);
            let logits = self.logits_buffer.put(self.transformer.forward(&mut parts, buffer)?);
            let mut from = 0;
            for ((i, end), wanted) in ends.into_iter().zip(wanted) {
                let Work { sequence, next, .. } = work[i];
                let scored = (wanted > 0).then(|| (logits.clone(), from));
                from += wanted * width;
                self.sequences[sequence].finish_part(next..end, scored);
                work[i].next = end;
            }
        }
        Ok(())
    }

    fn check_context(&self, tokens: usize) -> Result<()> {
        match tokens > self.info.context {
            true => Err(EngineError::PromptTooLong { prompt: tokens, context: self.info.context }),
            false => Ok(()),
        }
    }

    /// Takes the cached prefix of `tokens` from another sequence, if it is longer than the one in
    /// the sequence's own cache.
    fn adopt(&mut self, sequence: Sequence, tokens: &[Token]) {
        let own = common_prefix(self.state(sequence).cached_tokens(), tokens);
        let open = self.sequences.iter().filter(|(other, _)| *other != sequence);
        let open = open.map(|(other, state)| (other, state.cached_tokens()));
        let (cached, cache) = match self.closed.cache.source(tokens, own, open) {
            None => return,
            Some(Source::Open(other, shared)) => self.state(other).share_prefix(shared),
            Some(Source::Cache) => match self.closed.cache.take(tokens) {
                None => return,
                Some(Cached::Removed(cached, cache)) => (cached, cache),
                Some(Cached::Prefix(shared, cache)) => {
                    (tokens[..shared].to_vec(), cache.share(shared))
                }
            },
        };
        self.state_mut(sequence).adopt(cached, cache);
    }
}

fn lookup_rows(matrix: &Matrix, tokens: &[Token]) -> error::Result<Vec<f32>> {
    Ok(matrix.rows(tokens)?.into_numbers())
}

/// Slots of a sequence to compute.
#[derive(Debug, Clone, Copy)]
struct Work<'a> {
    sequence: Sequence,
    next: usize,
    end: usize,
    tree: Option<&'a DraftTree>,
}

impl Sequences for TransformerModel {
    fn open(&mut self) -> Result<Sequence> {
        if self.sequences.len() >= self.info.max_sequences {
            return too_many_sequences(&self.info);
        }
        let cache = self.transformer.new_cache();
        Ok(self.sequences.open(SequenceState::new(cache)))
    }

    fn close(&mut self, sequence: Sequence) {
        let state = self.sequences.close(sequence);
        if self.sequences.is_empty() {
            self.logits_buffer = LogitsBuffer::default();
        }
        if let Some(state) = state.filter(|_| !self.shares_kv_cache) {
            self.closed.insert(state);
        }
    }

    fn caches_closed_sequences(&self) -> bool {
        !self.shares_kv_cache && self.closed.limits().closed > 0
    }

    fn token_bytes(&self) -> u64 {
        self.transformer.token_bytes()
    }

    fn state_bytes(&self) -> u64 {
        // The current state, and the checkpoint at the end of the prompt.
        2 * self.transformer.config.state_bytes()
    }

    fn len(&self, sequence: Sequence) -> usize {
        self.state(sequence).tokens().len()
    }

    fn extend(&mut self, sequence: Sequence, tokens: &[Token]) -> Result<()> {
        let vocabulary = self.info.vocabulary.size();
        if let Some(&got) = tokens.iter().find(|&&t| t as usize >= vocabulary) {
            return Err(polydraft::Error::Token { operation: "context", vocabulary, got }.into());
        }
        if self.state(sequence).tokens().is_empty() {
            self.adopt(sequence, tokens);
        }
        self.state_mut(sequence).extend(tokens);
        Ok(())
    }

    fn truncate(&mut self, sequence: Sequence, length: usize) {
        self.state_mut(sequence).truncate(length);
    }

    fn prepare(&mut self, sequence: Sequence, max_tokens: usize) -> Result<usize> {
        let state = self.state(sequence);
        self.check_context(state.tokens().len())?;
        let last = state.tokens().len().saturating_sub(1);
        let next = state.next(last);
        let end = last.min(next.saturating_add(max_tokens));
        if next < end {
            let work = vec![Work { sequence, next, end, tree: None }];
            self.compute(work).map_err(|e| self.failed(e))?;
        }
        Ok(last - self.state(sequence).next(last))
    }

    fn score(&mut self, batch: &[(Sequence, &DraftTree)]) -> Result<()> {
        let mut work = Vec::with_capacity(batch.len());
        for &(sequence, tree) in batch {
            let state = self.state(sequence);
            if state.tokens().is_empty() {
                return Err(EngineError::EmptyPrompt);
            }
            let slots = state.unscored(tree);
            let depth =
                (state.scored().max(1)..tree.len()).map(|node| tree.depth(node)).max().unwrap_or(0);
            if !slots.is_empty() {
                self.check_context(state.tokens().len() + depth)?;
                let (next, end) = (slots.start, slots.end);
                work.push(Work { sequence, next, end, tree: Some(tree) });
            }
        }
        if work.is_empty() { Ok(()) } else { self.compute(work).map_err(|e| self.failed(e)) }
    }

    fn commit(&mut self, sequence: Sequence, tree: &DraftTree, path: &[NodeId]) -> Result<()> {
        self.state_mut(sequence).commit(tree, path);
        Ok(())
    }
}

impl Model for TransformerModel {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn logits(&self, sequence: Sequence, node: NodeId) -> &[f32] {
        self.state(sequence).logits(node, self.width())
    }

    fn outputs(&self) -> Option<&[Token]> {
        self.outputs.as_deref()
    }

    fn as_hidden_states(&self) -> Option<&dyn HiddenStates> {
        Some(self)
    }

    fn as_hidden_states_mut(&mut self) -> Option<&mut dyn HiddenStates> {
        Some(self)
    }

    fn as_kv_cache_follower(&mut self) -> Option<&mut dyn KvCacheFollower> {
        Some(self)
    }

    fn thread_pool(&self) -> Option<&dyn ThreadPool> {
        Some(&Pool)
    }
}

/// The thread pool of the kernels.
struct Pool;

impl ThreadPool for Pool {
    fn run(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        polydraft_kernels::parallel_for(count, work);
    }
}

impl KvCacheFollower for TransformerModel {
    fn follow_kv_cache(&mut self, leader: &dyn Model) -> bool {
        self.shares_kv_cache = self.original(leader).is_some();
        self.shares_kv_cache
    }

    fn sync_kv_cache(
        &mut self,
        sequence: Sequence,
        leader: &dyn Model,
        of: Sequence,
        known: usize,
    ) -> Result<()> {
        let Some(leader) = self.original(leader).filter(|_| self.shares_kv_cache) else {
            return Ok(());
        };
        let state = leader.state(of);
        let (cached, cache) = state.share_prefix(known.min(state.computed()));
        self.state_mut(sequence).share_kv_cache(cached, cache);
        Ok(())
    }
}

impl HiddenStates for TransformerModel {
    fn capture_hidden_states(&mut self, features: &[HiddenState]) -> Result<()> {
        let layers = self.transformer.config.layers;
        if features.iter().any(|feature| matches!(feature, HiddenState::After(n) if *n > layers)) {
            return no_hidden_states(&self.info, "layers that the model has");
        }
        if !self.sequences.is_empty() {
            return no_hidden_states(&self.info, "a request before a sequence is open");
        }
        self.transformer.capture_hidden_states(features);
        self.closed = ClosedSequences::new(self.closed.limits());
        Ok(())
    }

    fn hidden_states(&self, sequence: Sequence, tokens: Range<usize>) -> Result<Vec<f32>> {
        let state = self.state(sequence);
        if self.transformer.captured_width() == 0 {
            return no_hidden_states(&self.info, "captured hidden states");
        }
        match tokens.end <= state.computed() {
            true => Ok(state.cache.hidden_states(tokens)),
            false => no_hidden_states(&self.info, "tokens that are computed"),
        }
    }
}
