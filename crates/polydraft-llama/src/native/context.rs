//! Weights at work.

use std::cell::RefCell;
use std::path::Path;
use std::ptr::NonNull;

use llama_cpp_sys_2 as sys;

use super::calls::{Carried, attempt, call, has_ended};
use super::{Batch, Id, ROWS, WANTED, Weights, position, said, throwing};
use crate::{CacheType, Error, FlashAttention, LlamaOptions, Result};

/// What is to be noted in the cache before the next pass. Each alone would be a call that has to be
/// waited for.
#[derive(Debug, Clone, Copy)]
enum Note {
    /// The tokens before `end`, or all if that is negative, are of `to` too.
    Copy { from: Id, to: Id, end: i32 },
    /// The tokens from `start` on, or all if that is negative, are not of `id` any more.
    Remove { id: Id, start: i32 },
}

impl Note {
    /// # Safety
    /// The memory's context lives, and the ids are in its range.
    unsafe fn make(self, memory: sys::llama_memory_t) -> bool {
        // SAFETY: as the caller says.
        unsafe {
            match self {
                Self::Copy { from, to, end } => {
                    throwing::llama_memory_seq_cp(
                        memory,
                        from,
                        to,
                        if end < 0 { -1 } else { 0 },
                        end,
                    );
                    true
                }
                Self::Remove { id, start } => throwing::llama_memory_seq_rm(memory, id, start, -1),
            }
        }
    }
}

/// Weights at work: a KV cache for sequences, and memory to compute in.
#[derive(Debug)]
pub(crate) struct Context {
    // Freed in `drop`, before the weights.
    context: NonNull<sys::llama_context>,
    weights: Weights,
    ids: usize,
    cells: usize,
    /// Tokens of a pass at most: [`ROWS`], or fewer in a small cache.
    rows: usize,
    /// For each token of the last pass, whether its logits were asked for.
    wanted: Vec<i8>,
    notes: RefCell<Vec<Note>>,
    /// Layers whose inputs are captured, and where those are after the last pass: `[rows, hidden]`
    /// each.
    watched: Vec<(u32, *const f32)>,
}

// SAFETY: as for `Weights`.
unsafe impl Send for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        if !has_ended() {
            // SAFETY: it was made by llama.cpp, and nobody else has it.
            let context = unsafe { Carried::new(self.context.as_ptr()) };
            // SAFETY: as above; this is its last use.
            let _ = call(move || attempt(|| unsafe { throwing::llama_free(context.take()) }));
        }
    }
}

impl Context {
    /// Room for `cells` tokens of sequences that `ids` tell apart.
    pub fn new(
        weights: Weights,
        path: &Path,
        cells: usize,
        ids: usize,
        options: &LlamaOptions,
    ) -> Result<Self> {
        said();
        // SAFETY: plain calls with values.
        let mut params = unsafe { sys::llama_context_default_params() };
        let threads = |threads: u32| i32::try_from(threads.max(1)).unwrap_or(i32::MAX);
        params.n_ctx = u32::try_from(cells).unwrap_or(u32::MAX);
        params.n_batch = ROWS as u32;
        params.n_ubatch = ROWS as u32;
        params.n_outputs_max = WANTED.max(ids) as u32;
        params.n_seq_max = ids as u32;
        params.n_threads = threads(options.threads);
        params.n_threads_batch = threads(options.batch_threads);
        // One cache for all: an id more for a token is a note, not a copy.
        params.kv_unified = true;
        // Nothing of a window is given up while a tree may still be taken back.
        params.swa_full = true;
        params.no_perf = true;
        let kind = match options.cache_type {
            CacheType::F32 => sys::GGML_TYPE_F32,
            CacheType::F16 => sys::GGML_TYPE_F16,
            CacheType::Bf16 => sys::GGML_TYPE_BF16,
            CacheType::Q8_0 => sys::GGML_TYPE_Q8_0,
            CacheType::Q4_0 => sys::GGML_TYPE_Q4_0,
        };
        (params.type_k, params.type_v) = (kind, kind);
        params.flash_attn_type = match options.flash_attention {
            FlashAttention::Auto => sys::LLAMA_FLASH_ATTN_TYPE_AUTO,
            FlashAttention::On => sys::LLAMA_FLASH_ATTN_TYPE_ENABLED,
            FlashAttention::Off => sys::LLAMA_FLASH_ATTN_TYPE_DISABLED,
        };
        // SAFETY: the model lives as long as the context: it moves into the same struct, which
        // frees it last. The rest are values.
        let carried = unsafe { Carried::new((weights.0.as_ptr(), params)) };
        let made = call(move || {
            let (model, params) = carried.take();
            // SAFETY: as above.
            attempt(|| unsafe { Carried::new(throwing::llama_init_from_model(model, params)) })
        })?;
        let refused = |problem| Error::Refused { path: path.to_owned(), problem };
        let context = made.map(Carried::take).map_err(refused)?;
        let Some(context) = NonNull::new(context) else {
            return Err(refused(format!("no room for {cells} tokens: {}", said())));
        };
        // SAFETY: the context lives.
        let (cells, rows) = unsafe {
            let context = context.as_ptr();
            (sys::llama_n_ctx(context) as usize, sys::llama_n_batch(context) as usize)
        };
        let context = Self {
            context,
            weights,
            ids,
            cells,
            rows,
            wanted: Vec::new(),
            notes: RefCell::default(),
            watched: Vec::new(),
        };
        // SAFETY: as above.
        match unsafe { sys::llama_get_memory(context.context.as_ptr()) }.is_null() {
            true => Err(refused(
                "expected a model that continues sequences, got one that has no cache".to_owned(),
            )),
            false => Ok(context),
        }
    }

    /// Tokens that the cache holds.
    pub fn cells(&self) -> usize {
        self.cells
    }

    /// Tokens of a pass at most.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The weights at work.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Captures the inputs of these layers from now on; the architecture has to support that.
    pub fn capture_hidden_states(&mut self, layers: &[u32]) -> Result<()> {
        assert!(
            layers.iter().all(|layer| (*layer as usize) < self.weights.layers()),
            "layers that there are"
        );
        // SAFETY: the context lives until this returns, and nobody else has it.
        let context = unsafe { Carried::new(self.context.as_ptr()) };
        let of_call = layers.to_vec();
        let watch = move || {
            let context = context.take();
            attempt(|| {
                for layer in &of_call {
                    // SAFETY: as above; the layers were checked.
                    unsafe { throwing::polydraft_llama_watch(context, *layer) }
                }
            })
        };
        call(watch)?.map_err(|problem| Error::Pass { rows: 0, problem })?;
        self.watched = layers.iter().map(|layer| (*layer, std::ptr::null())).collect();
        Ok(())
    }

    /// The inputs of the captured layers at a token of the last pass, one after the other in `to`:
    /// `[watched · hidden]`.
    pub fn states(&self, row: usize, to: &mut [f32]) {
        assert!(row < self.wanted.len(), "row {row} of {}", self.wanted.len());
        let hidden = self.weights.hidden();
        for ((_, states), to) in self.watched.iter().zip(to.chunks_exact_mut(hidden)) {
            assert!(!states.is_null(), "no pass was made");
            // SAFETY: so many rows were computed, each of so many numbers, and they stay until the
            // next pass, which borrows the context mutably.
            to.copy_from_slice(unsafe {
                std::slice::from_raw_parts(states.add(row * hidden), hidden)
            });
        }
    }

    fn memory(&self) -> sys::llama_memory_t {
        // SAFETY: the context lives, and `new` has seen that it has a memory.
        unsafe { sys::llama_get_memory(self.context.as_ptr()) }
    }

    fn check(&self, id: Id) {
        assert!(usize::try_from(id).is_ok_and(|id| id < self.ids), "id {id} of {}", self.ids);
    }

    /// Marks the first `length` tokens of `from` as those of `to` too, which has none; all of them
    /// where nothing is said.
    pub fn copy(&mut self, from: Id, to: Id, length: Option<usize>) {
        self.check(from);
        self.check(to);
        self.notes.get_mut().push(Note::Copy { from, to, end: length.map_or(-1, position) });
    }

    /// Takes the tokens from number `from` on from an id. False where that cannot be done in part,
    /// and nothing was done.
    pub fn remove(&mut self, id: Id, from: usize) -> bool {
        self.check(id);
        let note = Note::Remove { id, start: if from == 0 { -1 } else { position(from) } };
        if from == 0 || !self.weights.has_state() {
            self.notes.get_mut().push(note);
            return true;
        }
        // SAFETY: the id is in range. Where llama.cpp has ended, the next pass says so.
        self.with_memory(move |memory| unsafe { note.make(memory) }).unwrap_or(true)
    }

    /// The number of the first token that an id still has in all layers; none where a window's
    /// layers have none of it.
    pub fn first(&self, id: Id) -> Option<usize> {
        self.check(id);
        // SAFETY: the id is in range; -1 is none.
        let first =
            self.with_memory(move |memory| unsafe { sys::llama_memory_seq_pos_min(memory, id) });
        first.ok().and_then(|first| usize::try_from(first).ok())
    }

    /// Asks the cache, in which all notes are made.
    fn with_memory<T: Send + 'static>(
        &self,
        ask: impl FnOnce(sys::llama_memory_t) -> T + Send + 'static,
    ) -> Result<T> {
        let notes = self.notes.take();
        // SAFETY: the context lives until this returns, and nobody else has it.
        let memory = unsafe { Carried::new(self.memory()) };
        call(move || {
            let memory = memory.take();
            // SAFETY: as above; the ids were checked when the notes were taken.
            notes.into_iter().for_each(|note| _ = unsafe { note.make(memory) });
            ask(memory)
        })
    }

    /// Computes a batch. After [`Error::Full`] all is as before; after another error the content of
    /// its ids is not known.
    pub fn decode(&mut self, batch: &mut Batch) -> Result<()> {
        let (rows, vocabulary) = (batch.len(), self.weights.vocabulary());
        self.wanted.clear();
        assert!(rows > 0 && rows <= self.rows && batch.wanted() <= WANTED, "{rows} rows");
        batch.ids().iter().for_each(|&id| self.check(id));
        assert!(
            batch.tokens().iter().all(|&token| (token as usize) < vocabulary),
            "tokens of the vocabulary"
        );
        said();
        let (notes, theirs) = (self.notes.take(), std::mem::take(batch));
        let layers: Vec<u32> = self.watched.iter().map(|(layer, _)| *layer).collect();
        // SAFETY: the context lives until this returns, and nobody else has it.
        let carried = unsafe { Carried::new((self.context.as_ptr(), self.memory())) };
        let (theirs, done) = call(move || {
            let (context, memory) = carried.take();
            let done = theirs.with(|raw| {
                attempt(|| {
                    // SAFETY: the ids were checked when the notes were taken. The arrays live until
                    // `with` returns, are as long as the batch says, and were checked above.
                    unsafe {
                        notes.iter().for_each(|note| _ = note.make(memory));
                        let code = throwing::llama_decode(context, raw);
                        // GPUs and servers may still be at it; their failures are this call's.
                        throwing::llama_synchronize(context);
                        let layers = if code == 0 { &layers[..] } else { &[] };
                        let states = layers
                            .iter()
                            .map(|layer| throwing::polydraft_llama_watched(context, *layer));
                        // They go to the context's owner.
                        (code, Carried::new(states.collect::<Vec<_>>()))
                    }
                })
            });
            (theirs, done)
        })?;
        *batch = theirs;
        match done.map(|(code, states)| (code, states.take())) {
            Ok((0, states)) => {
                self.watched
                    .iter_mut()
                    .zip(states)
                    .for_each(|((_, watched), states)| *watched = states);
                self.wanted.extend_from_slice(batch.wants());
                Ok(())
            }
            Ok((1, _)) => Err(Error::Full { cells: self.cells, more: rows }),
            Ok((code, _)) => {
                let said = said();
                let said = if said.is_empty() { said } else { format!(": {said}") };
                Err(Error::Pass { rows, problem: format!("code {code}{said}") })
            }
            Err(problem) => Err(Error::Pass { rows, problem }),
        }
    }

    /// The logits of a token of the last pass, which were asked for.
    pub fn logits(&self, row: usize) -> &[f32] {
        assert_eq!(self.wanted.get(row), Some(&1), "the logits of row {row} were not asked for");
        // SAFETY: the context lives, and the row's logits were asked for.
        let logits = unsafe { sys::llama_get_logits_ith(self.context.as_ptr(), row as i32) };
        assert!(!logits.is_null(), "row {row} has no logits");
        // SAFETY: a row has as many numbers as the vocabulary has tokens, and stays until the next
        // pass, which borrows the context mutably.
        unsafe { std::slice::from_raw_parts(logits, self.weights.vocabulary()) }
    }
}
