//! The engine's interface of a model with many sequences, on a transformer.
//!
//! Everything that is computed for a token depends on the tokens before it in its sequence and on
//! nothing else, to the last bit: not on the other sequences of a pass, on the tree around it, on
//! how a prompt was cut into passes, or on which sequence it was first computed for. So the KV
//! cache of a prefix can be used for every sequence with that prefix.

mod kept;
mod limits;
mod logits;
mod text;

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use polydraft::{DraftTree, NodeId, Token};
use polydraft_engine::model::{no_hidden_states, too_many_sequences};
use polydraft_engine::prefix::{Cached, Source, common_prefix};
use polydraft_engine::{
    Error as EngineError, HiddenState, HiddenStates, KvCacheFollower, Model, ModelInfo, Result,
    Sequence, Sequences, Slots, Threads, Vocabulary,
};
use polydraft_kernels::Error as KernelError;

use crate::cache::Cache;
use crate::config::Config;
use crate::copy_reader::CopyReader;
use crate::error;
use crate::linear::Matrix;
use crate::precision::Precision;
use crate::transformer::Transformer;
use crate::transformer::pass::Part;
use kept::Kept;
pub use limits::SequenceLimits;
use logits::Room;
use text::Text;

/// Tokens of a pass at most: enough to use the CPU, few enough for small buffers. More are taken in
/// several.
const PASS: usize = 256;

/// A transformer with its open sequences.
#[derive(Debug)]
pub struct TransformerModel {
    info: ModelInfo,
    transformer: Transformer,
    texts: Slots<Text>,
    room: Room,
    kept: Kept,
    /// The tokens that logits are of, where not all.
    outputs: Option<Vec<Token>>,
    /// Whether it shares the KV cache of the model that it is a quantised self-draft of.
    follows: bool,
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
            begins: false,
            sequences: limits.open,
        };
        Ok(Self {
            info,
            transformer,
            texts: Slots::default(),
            room: Room::default(),
            kept: Kept::new(limits),
            outputs: None,
            follows: false,
        })
    }

    /// The same model with its weights rounded to `precision`: a draft that needs no second model.
    /// Embeddings, norms and biases are shared; sequences are not. To 4 bits they are rounded with
    /// scales that are searched for, and errors are weighed by the inputs of `text`, of which some
    /// hundred tokens of any kind do; with no text all count the same.
    ///
    /// # Errors
    /// Failures of the computation.
    pub fn rounded(&mut self, precision: Precision, text: &[Token]) -> error::Result<Self> {
        let copy = self.transformer.rounded_for(precision, text)?;
        self.copied(precision, copy)
    }

    /// The same from the file where it was cached.
    pub(crate) fn kept(&self, precision: Precision, file: &CopyReader) -> error::Result<Self> {
        self.copied(precision, self.transformer.kept(precision, file)?)
    }

    fn copied(&self, precision: Precision, copy: Transformer) -> error::Result<Self> {
        Self::new(format!("{} in {precision}", self.info.name), self.info.vocabulary.clone(), copy)
    }

    /// The model, if this one is a quantised self-draft of it.
    fn original<'m>(&self, model: &'m dyn Model) -> Option<&'m Self> {
        let model = (model as &dyn Any).downcast_ref::<Self>()?;
        self.transformer.is_copy_of(&model.transformer).then_some(model)
    }

    /// Changes how many sequences are kept in memory. Open sequences stay open.
    pub fn limit(&mut self, limits: SequenceLimits) {
        self.info.sequences = limits.open;
        self.kept.limit(limits);
    }

    /// Leaves only the logits of these tokens, which ascend: less to compute for a model that
    /// drafts, and one that can be no target any more.
    ///
    /// # Errors
    /// No tokens, tokens that do not ascend or that the model does not have; failures of the
    /// computation.
    pub fn cut_output(&mut self, tokens: &[Token]) -> error::Result<()> {
        if tokens.is_empty() || !tokens.is_sorted_by(|token, next| token < next) {
            return Err(KernelError::Shape {
                operation: "logits to keep",
                expected: "tokens that ascend".to_owned(),
                got: format!("{tokens:?}"),
            }
            .into());
        }
        let head = self.transformer.head().select(tokens)?;
        self.transformer.set_head(Arc::new(head));
        self.outputs = Some(tokens.to_vec());
        Ok(())
    }

    /// What tokens are embedded as, before any scaling: `[tokens, embedding]`.
    ///
    /// # Errors
    /// Failures of the computation.
    pub fn embedding_rows(&self, tokens: &[Token]) -> error::Result<Vec<f32>> {
        rows_of(self.transformer.embedding(), tokens)
    }

    /// What the last hidden state is multiplied with for the logits of tokens: `[tokens,
    /// embedding]`.
    ///
    /// # Errors
    /// Failures of the computation.
    pub fn output_rows(&self, tokens: &[Token]) -> error::Result<Vec<f32>> {
        rows_of(self.transformer.head(), tokens)
    }

    /// The weights of the norm after the last layer, if there is one that has weights alone.
    pub fn last_norm(&self) -> Option<&[f32]> {
        self.transformer.last_norm()
    }

    /// Numbers in a vector of logits.
    fn width(&self) -> usize {
        self.outputs.as_ref().map_or(self.info.vocabulary.size(), Vec::len)
    }

    pub(crate) fn transformer(&self) -> &Transformer {
        &self.transformer
    }

    /// The shape of the model.
    pub fn config(&self) -> &Config {
        &self.transformer.config
    }

    /// Bytes that the weight matrices take.
    pub fn weight_bytes(&self) -> usize {
        self.transformer.weight_bytes()
    }

    /// Bytes of weights that a pass over one token reads.
    pub fn bytes_per_pass(&self) -> usize {
        self.transformer.bytes_per_pass()
    }

    /// Bytes that the KV cache of all sequences takes, open ones and closed ones; what several
    /// share is counted for each.
    pub fn cache_bytes(&self) -> usize {
        self.texts.iter().map(|(_, text)| text.cache.bytes()).sum::<usize>() + self.kept.bytes()
    }

    /// How many tokens of a sequence are computed.
    pub fn computed(&self, sequence: Sequence) -> usize {
        self.text(sequence).computed()
    }

    /// A KV cache of the first tokens of a sequence, of so many that are computed.
    pub(crate) fn beginning(&self, sequence: Sequence, tokens: usize) -> Cache {
        let text = self.text(sequence);
        text.cache.share(tokens.min(text.computed()))
    }

    fn text(&self, sequence: Sequence) -> &Text {
        &self.texts[sequence]
    }

    fn text_mut(&mut self, sequence: Sequence) -> &mut Text {
        &mut self.texts[sequence]
    }

    fn failed(&self, source: error::Error) -> EngineError {
        EngineError::Model { model: self.info.name.clone(), source: Box::new(source) }
    }

    /// Computes all `work`, so many tokens at a time that buffers stay small.
    fn compute(&mut self, mut work: Vec<Work>) -> error::Result<()> {
        work.sort_unstable_by_key(|work| work.sequence);
        work.dedup_by_key(|work| work.sequence);
        let width = self.width();
        while work.iter().any(|work| work.next < work.end) {
            let mut room = PASS;
            let mut texts = self.texts.iter_mut();
            let mut parts: Vec<Part> = Vec::new();
            let mut ends: Vec<(usize, usize)> = Vec::new();
            for (i, work) in work.iter().enumerate() {
                let end = work.end.min(work.next + room);
                let text = texts.find(|(sequence, _)| *sequence == work.sequence);
                if let Some((_, text)) = text
                    && end > work.next
                {
                    parts.push(text.part(work.next..end, work.tree));
                    ends.push((i, end));
                    room -= end - work.next;
                }
            }
            let wanted: Vec<usize> = parts.iter().map(|part| part.wanted).collect();
            // The sequences of the pass do not need the last one's any more.
            let size = wanted.iter().sum::<usize>() * width;
            let room = self.room.take(size);
            let logits = self.room.put(self.transformer.forward(&mut parts, room)?);
            let mut from = 0;
            for ((i, end), wanted) in ends.into_iter().zip(wanted) {
                let Work { sequence, next, .. } = work[i];
                let own = (wanted > 0).then(|| (logits.clone(), from));
                from += wanted * width;
                self.texts[sequence].computed_part(next..end, own);
                work[i].next = end;
            }
        }
        Ok(())
    }

    fn check_room(&self, tokens: usize) -> Result<()> {
        match tokens > self.info.context {
            true => Err(EngineError::PromptTooLong { prompt: tokens, context: self.info.context }),
            false => Ok(()),
        }
    }

    /// The cached beginning of `tokens` from another sequence, where that is more than the
    /// sequence's own.
    fn adopt(&mut self, sequence: Sequence, tokens: &[Token]) {
        let own = common_prefix(self.text(sequence).held(), tokens);
        let open = self.texts.iter().filter(|(other, _)| *other != sequence);
        let open = open.map(|(other, text)| (other, text.held()));
        let (held, cache) = match self.kept.closed.source(tokens, own, open) {
            None => return,
            Some(Source::Open(other, shared)) => self.text(other).beginning(shared),
            Some(Source::Cache) => match self.kept.closed.take(tokens) {
                None => return,
                Some(Cached::Whole(held, cache)) => (held, cache),
                Some(Cached::Prefix(shared, cache)) => {
                    (tokens[..shared].to_vec(), cache.share(shared))
                }
            },
        };
        self.text_mut(sequence).adopt(held, cache);
    }
}

fn rows_of(matrix: &Matrix, tokens: &[Token]) -> error::Result<Vec<f32>> {
    Ok(matrix.rows(tokens)?.into_numbers())
}

/// Slots of a sequence that are to be computed.
#[derive(Debug, Clone, Copy)]
struct Work<'a> {
    sequence: Sequence,
    next: usize,
    end: usize,
    tree: Option<&'a DraftTree>,
}

impl Sequences for TransformerModel {
    fn open(&mut self) -> Result<Sequence> {
        if self.texts.len() >= self.info.sequences {
            return too_many_sequences(&self.info);
        }
        let cache = self.transformer.new_cache();
        Ok(self.texts.open(Text::new(cache)))
    }

    fn close(&mut self, sequence: Sequence) {
        let text = self.texts.close(sequence);
        if self.texts.is_empty() {
            self.room = Room::default();
        }
        if let Some(text) = text.filter(|_| !self.follows) {
            self.kept.keep(text);
        }
    }

    fn keeps_closed(&self) -> bool {
        !self.follows && self.kept.limits().closed > 0
    }

    fn token_bytes(&self) -> u64 {
        self.transformer.token_bytes()
    }

    fn state_bytes(&self) -> u64 {
        // The state, and that of the end of its prompt.
        2 * self.transformer.config.state_bytes()
    }

    fn len(&self, sequence: Sequence) -> usize {
        self.text(sequence).tokens().len()
    }

    fn extend(&mut self, sequence: Sequence, tokens: &[Token]) -> Result<()> {
        let vocabulary = self.info.vocabulary.size();
        if let Some(&got) = tokens.iter().find(|&&t| t as usize >= vocabulary) {
            return Err(polydraft::Error::Token { operation: "context", vocabulary, got }.into());
        }
        if self.text(sequence).tokens().is_empty() {
            self.adopt(sequence, tokens);
        }
        self.text_mut(sequence).extend(tokens);
        Ok(())
    }

    fn truncate(&mut self, sequence: Sequence, length: usize) {
        self.text_mut(sequence).truncate(length);
    }

    fn prepare(&mut self, sequence: Sequence, most: usize) -> Result<usize> {
        let text = self.text(sequence);
        self.check_room(text.tokens().len())?;
        let last = text.tokens().len().saturating_sub(1);
        let next = text.next(last);
        let end = last.min(next.saturating_add(most));
        if next < end {
            let work = vec![Work { sequence, next, end, tree: None }];
            self.compute(work).map_err(|e| self.failed(e))?;
        }
        Ok(last - self.text(sequence).next(last))
    }

    fn score(&mut self, batch: &[(Sequence, &DraftTree)]) -> Result<()> {
        let mut work = Vec::with_capacity(batch.len());
        for &(sequence, tree) in batch {
            let text = self.text(sequence);
            if text.tokens().is_empty() {
                return Err(EngineError::EmptyPrompt);
            }
            let slots = text.unscored(tree);
            let depth =
                (text.scored().max(1)..tree.len()).map(|node| tree.depth(node)).max().unwrap_or(0);
            if !slots.is_empty() {
                self.check_room(text.tokens().len() + depth)?;
                let (next, end) = (slots.start, slots.end);
                work.push(Work { sequence, next, end, tree: Some(tree) });
            }
        }
        if work.is_empty() { Ok(()) } else { self.compute(work).map_err(|e| self.failed(e)) }
    }

    fn commit(&mut self, sequence: Sequence, tree: &DraftTree, path: &[NodeId]) -> Result<()> {
        self.text_mut(sequence).commit(tree, path);
        Ok(())
    }
}

impl Model for TransformerModel {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn logits(&self, sequence: Sequence, node: NodeId) -> &[f32] {
        self.text(sequence).logits(node, self.width())
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

    fn threads(&self) -> Option<&dyn Threads> {
        Some(&Pool)
    }
}

/// The threads of the kernels.
struct Pool;

impl Threads for Pool {
    fn run(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        polydraft_kernels::spread(count, work);
    }
}

impl KvCacheFollower for TransformerModel {
    fn follow_kv_cache(&mut self, leader: &dyn Model) -> bool {
        self.follows = self.original(leader).is_some();
        self.follows
    }

    fn sync_kv_cache(
        &mut self,
        sequence: Sequence,
        leader: &dyn Model,
        of: Sequence,
        known: usize,
    ) -> Result<()> {
        let Some(leader) = self.original(leader).filter(|_| self.follows) else { return Ok(()) };
        let text = leader.text(of);
        let (held, cache) = text.beginning(known.min(text.computed()));
        self.text_mut(sequence).share_kv_cache(held, cache);
        Ok(())
    }
}

impl HiddenStates for TransformerModel {
    fn capture_hidden_states(&mut self, features: &[HiddenState]) -> Result<()> {
        let layers = self.transformer.config.layers;
        if features.iter().any(|feature| matches!(feature, HiddenState::After(n) if *n > layers)) {
            return no_hidden_states(&self.info, "layers that the model has");
        }
        if !self.texts.is_empty() {
            return no_hidden_states(&self.info, "to be asked for before a sequence is open");
        }
        self.transformer.capture_hidden_states(features);
        self.kept = Kept::new(self.kept.limits());
        Ok(())
    }

    fn hidden_states(&self, sequence: Sequence, tokens: Range<usize>) -> Result<Vec<f32>> {
        let text = self.text(sequence);
        if self.transformer.watched() == 0 {
            return no_hidden_states(&self.info, "some that are captured");
        }
        match tokens.end <= text.computed() {
            true => Ok(text.cache.watched(tokens)),
            false => no_hidden_states(&self.info, "tokens that are computed"),
        }
    }
}
