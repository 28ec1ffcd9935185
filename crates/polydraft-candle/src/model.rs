//! The engine's model interface on a decoder with a cache.

use candle_core::Tensor;
use polydraft::{DraftTree, NodeId, Token};
use polydraft_engine::{Error as EngineError, Model, Result, Vocabulary};

use crate::Config;
use crate::cache::Cache;
use crate::decoder::{Batch, Decoder};

/// Tokens of a prompt that are computed at once: enough to use the processor, few enough for small buffers.
const PROMPT_CHUNK: usize = 256;

/// A decoder with a text: its context, and behind it a speculative tree.
///
/// Slots of the cache: first the computed part of the context in order, then the scored nodes of the tree by id.
#[derive(Debug)]
pub struct CandleModel {
    name: String,
    vocabulary: Vocabulary,
    decoder: Decoder,
    cache: Cache,
    context: Vec<Token>,
    /// How much of the context is in the cache.
    computed: usize,
    /// How many nodes of the tree are scored, the root included; their logits follow, `[scored, vocabulary]`.
    scored: usize,
    logits: Vec<f32>,
    /// The text before the last [`reset`](Model::reset), as far as the cache still holds it from slot 0 on: a text that
    /// begins the same need not be computed again.
    past: Vec<Token>,
}

impl CandleModel {
    pub(crate) fn new(name: String, vocabulary: Vocabulary, decoder: Decoder) -> crate::Result<Self> {
        let cache = decoder.new_cache()?;
        Ok(Self {
            name,
            vocabulary,
            decoder,
            cache,
            context: Vec::new(),
            computed: 0,
            scored: 0,
            logits: Vec::new(),
            past: Vec::new(),
        })
    }

    /// The shape of the model.
    pub fn config(&self) -> &Config {
        &self.decoder.config
    }

    /// Bytes that the weight matrices take.
    pub fn weight_bytes(&self) -> usize {
        self.decoder.weight_bytes()
    }

    /// Bytes of weights that a pass over one token reads.
    pub fn bytes_per_pass(&self) -> usize {
        self.decoder.bytes_per_pass()
    }

    fn failed(&self, source: candle_core::Error) -> EngineError {
        EngineError::Model { model: self.name.clone(), source: Box::new(source) }
    }

    /// Computes a long prompt in chunks, until what is left of the context fits into one pass.
    fn catch_up(&mut self) -> candle_core::Result<()> {
        while self.computed + PROMPT_CHUNK < self.context.len() {
            let end = self.computed + PROMPT_CHUNK;
            let positions: Vec<usize> = (self.computed..end).collect();
            let start = self.computed;
            let [mask, window_mask] =
                self.masks(&positions, start, |row, slot| slot <= start + row, |slot| slot)?;
            let batch = Batch {
                tokens: &self.context[start..end],
                positions: &positions,
                start,
                mask,
                window_mask,
                first_output: PROMPT_CHUNK - 1,
            };
            self.decoder.forward(&batch, &mut self.cache)?;
            self.computed = end;
        }
        Ok(())
    }

    /// Computes in one pass what is left of the context, its last token at least, and the nodes of the tree that are
    /// not scored. If the root is scored, the context is done.
    fn compute(&mut self, tree: &DraftTree) -> candle_core::Result<()> {
        let length = self.context.len();
        // Node i lies in slot length - 1 + i, the root as node 0 among them.
        let (start, pending, first_node) = match self.scored {
            0 => {
                let start = self.computed.min(length - 1);
                (start, &self.context[start..], 1)
            }
            scored => (length - 1 + scored, &[][..], scored),
        };
        let nodes = first_node..tree.len();
        let mut tokens = pending.to_vec();
        let mut positions: Vec<usize> = (start..start + pending.len()).collect();
        for node in nodes {
            tokens.push(tree.token(node));
            positions.push(length - 1 + tree.depth(node));
        }
        let sees = |row: usize, slot: usize| {
            // The context's tokens see what comes before them, nodes the whole context and their ancestors.
            if start + row < length || slot < length {
                return slot <= start + row;
            }
            is_ancestor(tree, slot + 1 - length, start + row + 1 - length)
        };
        // Of a slot that some token sees, its position.
        let position = |slot: usize| match slot.checked_sub(length) {
            None => slot,
            Some(behind) => length - 1 + tree.depth(behind + 1),
        };
        let [mask, window_mask] = self.masks(&positions, start, sees, position)?;
        let batch = Batch {
            tokens: &tokens,
            positions: &positions,
            start,
            mask,
            window_mask,
            first_output: pending.len().saturating_sub(1),
        };
        let logits = self.decoder.forward(&batch, &mut self.cache)?;
        if self.scored == 0 {
            self.logits.clear();
        }
        self.logits.extend(logits.flatten_all()?.to_vec1::<f32>()?);
        self.scored = tree.len();
        self.computed = length;
        Ok(())
    }

    /// What the tokens at `positions`, in slots from `start` on, see of the slots up to theirs: in plain layers, and in
    /// those with a window.
    fn masks(
        &self,
        positions: &[usize],
        start: usize,
        sees: impl Fn(usize, usize) -> bool,
        position: impl Fn(usize) -> usize,
    ) -> candle_core::Result<[Option<Tensor>; 2]> {
        let (rows, common) = (positions.len(), start.min(self.context.len()));
        let plain = self.mask(rows, start, common, &sees)?;
        let last = positions.iter().max().copied().unwrap_or(0);
        match self.decoder.config.attention.window.filter(|window| last >= *window) {
            None => Ok([plain.clone(), plain]),
            Some(window) => {
                let near = |row: usize, slot: usize| {
                    sees(row, slot) && positions[row].saturating_sub(position(slot)) < window
                };
                Ok([plain, self.mask(rows, start, 0, near)?])
            }
        }
    }

    /// What each of `rows` new tokens sees of the slots up to its own and its fellows'; `None` if all see all. The
    /// first `common` slots are seen by every one.
    fn mask(
        &self,
        rows: usize,
        start: usize,
        common: usize,
        sees: impl Fn(usize, usize) -> bool,
    ) -> candle_core::Result<Option<Tensor>> {
        let slots = start + rows;
        let mut values = vec![0f32; rows * slots];
        let mut hides = false;
        for (row, values) in values.chunks_exact_mut(slots).enumerate() {
            for (slot, value) in values.iter_mut().enumerate().skip(common) {
                if !sees(row, slot) {
                    *value = f32::NEG_INFINITY;
                    hides = true;
                }
            }
        }
        hides.then(|| self.decoder.mask(values, (rows, slots))).transpose()
    }

    /// Appends decided tokens; as long as they are those of the text before the last reset, they are computed already.
    fn append(&mut self, tokens: impl IntoIterator<Item = Token>) {
        for token in tokens {
            let at = self.context.len();
            if self.computed == at && self.past.get(at) == Some(&token) {
                self.computed += 1;
            }
            self.context.push(token);
        }
    }
}

/// Whether `node` is `other` or below it.
fn is_ancestor(tree: &DraftTree, other: NodeId, mut node: NodeId) -> bool {
    // Parents have smaller ids.
    while node > other {
        node = tree.parent(node);
    }
    node == other
}

impl Model for CandleModel {
    fn name(&self) -> &str {
        &self.name
    }

    fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    fn context_length(&self) -> usize {
        self.decoder.config.context
    }

    fn len(&self) -> usize {
        self.context.len()
    }

    fn reset(&mut self) {
        if self.past.is_empty() {
            self.context.truncate(self.computed);
            self.past.append(&mut self.context);
        }
        self.context.clear();
        self.computed = 0;
        self.scored = 0;
    }

    fn extend(&mut self, tokens: &[Token]) -> Result<()> {
        let vocabulary = self.vocabulary.size();
        if let Some(&got) = tokens.iter().find(|&&t| t as usize >= vocabulary) {
            return Err(polydraft::Error::Token { operation: "context", vocabulary, got }.into());
        }
        self.append(tokens.iter().copied());
        self.scored = 0;
        Ok(())
    }

    fn score(&mut self, tree: &DraftTree) -> Result<()> {
        if self.context.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        if self.scored >= tree.len() {
            return Ok(());
        }
        let depth = (self.scored.max(1)..tree.len()).map(|node| tree.depth(node)).max().unwrap_or(0);
        if self.context.len() + depth > self.context_length() {
            return Err(EngineError::PromptTooLong {
                prompt: self.context.len() + depth,
                context: self.context_length(),
            });
        }
        // From here on the cache is written over.
        self.past.clear();
        // Inside rayon's pool at once: an operation that wants it would otherwise wake a thread of its own each time,
        // which takes a small model longer than the operation.
        rayon::scope(|_| self.catch_up().and_then(|()| self.compute(tree))).map_err(|e| self.failed(e))
    }

    fn logits(&self, node: NodeId) -> &[f32] {
        let width = self.vocabulary.size();
        &self.logits[node * width..(node + 1) * width]
    }

    fn commit(&mut self, tree: &DraftTree, path: &[NodeId]) -> Result<()> {
        let length = self.context.len();
        let slots: Vec<usize> =
            path.iter().filter(|&&node| node < self.scored).map(|&node| length - 1 + node).collect();
        self.cache.keep(length, &slots).map_err(|e| self.failed(e))?;
        if !slots.is_empty() {
            self.computed = length + slots.len();
        }
        self.append(path.iter().map(|&node| tree.token(node)));
        self.scored = 0;
        Ok(())
    }
}
