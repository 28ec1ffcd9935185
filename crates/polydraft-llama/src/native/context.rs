//! A llama.cpp context: weights with a KV cache and compute buffers.

use std::cell::RefCell;
use std::path::Path;
use std::ptr::NonNull;

use llama_cpp_sys_2 as sys;

use super::calls::{SendPtr, call, catch_exception, has_ended};
use super::{Batch, Id, MAX_LOGITS, MAX_ROWS, Weights, position, take_logged_errors, throwing};
use crate::{CacheType, Error, FlashAttention, LlamaOptions, Result};

/// Change of the cache that is applied before the next pass; applying each at once would cost a
/// call to another thread.
#[derive(Debug, Clone, Copy)]
enum CacheUpdate {
    /// Marks the tokens of `from` before `end`, or all if it is negative, as tokens of `to` too.
    Copy { from: Id, to: Id, end: i32 },
    /// Removes the tokens of `id` from `start` on, or all if it is negative.
    Remove { id: Id, start: i32 },
}

impl CacheUpdate {
    /// Applies the change; returns whether that was possible.
    ///
    /// # Safety
    /// - The context of `memory` must be alive.
    /// - The ids must be below its number of sequences.
    unsafe fn apply(self, memory: sys::llama_memory_t) -> bool {
        // SAFETY: the caller guarantees both preconditions.
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

/// Weights with a KV cache for sequences and compute buffers.
#[derive(Debug)]
pub(crate) struct Context {
    // Freed in `drop`, before the weights.
    context: NonNull<sys::llama_context>,
    weights: Weights,
    ids: usize,
    cells: usize,
    /// Maximum number of tokens per pass: [`MAX_ROWS`], or fewer with a small cache.
    rows: usize,
    /// For each token of the last pass, whether its logits were requested.
    wanted: Vec<i8>,
    updates: RefCell<Vec<CacheUpdate>>,
    /// Captured layers, and the addresses of their inputs in the last pass: `[rows, hidden]` each.
    captured: Vec<(u32, *const f32)>,
}

// SAFETY: a llama.cpp context is not bound to a thread, and `Context` is not `Sync`.
unsafe impl Send for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        if !has_ended() {
            // SAFETY: no other thread uses the context, and it is not used after this.
            let context = unsafe { SendPtr::new(self.context.as_ptr()) };
            // SAFETY: `llama_init_from_model` returned the pointer; this is its last use.
            let _ =
                call(move || catch_exception(|| unsafe { throwing::llama_free(context.take()) }));
        }
    }
}

impl Context {
    /// Creates a context with a cache of `cells` tokens and ids from 0 to `ids - 1`.
    pub fn new(
        weights: Weights,
        path: &Path,
        cells: usize,
        ids: usize,
        options: &LlamaOptions,
    ) -> Result<Self> {
        take_logged_errors();
        // SAFETY: the function has no preconditions.
        let mut params = unsafe { sys::llama_context_default_params() };
        let threads = |threads: u32| i32::try_from(threads.max(1)).unwrap_or(i32::MAX);
        params.n_ctx = u32::try_from(cells).unwrap_or(u32::MAX);
        params.n_batch = MAX_ROWS as u32;
        params.n_ubatch = MAX_ROWS as u32;
        params.n_outputs_max = MAX_LOGITS.max(ids) as u32;
        params.n_seq_max = ids as u32;
        params.n_threads = threads(options.threads);
        params.n_threads_batch = threads(options.batch_threads);
        // One cache for all ids: adding an id to a token copies nothing.
        params.kv_unified = true;
        // Sliding windows keep all tokens, so that a tree can be rolled back.
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
        // SAFETY: the model outlives the context: both are in the same struct, which frees the
        // context first. The parameters are values.
        let sent_pointers = unsafe { SendPtr::new((weights.0.as_ptr(), params)) };
        let created = call(move || {
            let (model, params) = sent_pointers.take();
            // SAFETY: `model` is a live model, and `params` come from the defaults.
            catch_exception(|| unsafe {
                SendPtr::new(throwing::llama_init_from_model(model, params))
            })
        })?;
        let refused = |problem| Error::Refused { path: path.to_owned(), problem };
        let context = created.map(SendPtr::take).map_err(refused)?;
        let Some(context) = NonNull::new(context) else {
            return Err(refused(format!(
                "could not allocate a cache of {cells} tokens: {}",
                take_logged_errors()
            )));
        };
        // SAFETY: the context was just created.
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
            updates: RefCell::default(),
            captured: Vec::new(),
        };
        // SAFETY: the context is alive.
        match unsafe { sys::llama_get_memory(context.context.as_ptr()) }.is_null() {
            true => Err(refused(
                "expected a model that continues sequences, got one without a cache".to_owned(),
            )),
            false => Ok(context),
        }
    }

    /// Capacity of the cache in tokens.
    pub fn cells(&self) -> usize {
        self.cells
    }

    /// Maximum number of tokens per pass.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Weights of the model.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Captures the inputs of these layers from now on. The architecture must support this.
    pub fn capture_hidden_states(&mut self, layers: &[u32]) -> Result<()> {
        assert!(
            layers.iter().all(|layer| (*layer as usize) < self.weights.layers()),
            "layers of the model"
        );
        // SAFETY: the context lives until this returns, and `&mut self` excludes other users.
        let context = unsafe { SendPtr::new(self.context.as_ptr()) };
        let numbers = layers.to_vec();
        let capture = move || {
            let context = context.take();
            catch_exception(|| {
                for layer in &numbers {
                    // SAFETY: the context is alive, and the layer was checked to exist.
                    unsafe { throwing::polydraft_llama_capture_input(context, *layer) }
                }
            })
        };
        call(capture)?.map_err(|problem| Error::Pass { rows: 0, problem })?;
        self.captured = layers.iter().map(|layer| (*layer, std::ptr::null())).collect();
        Ok(())
    }

    /// Copies the inputs of the captured layers at a token of the last pass to `to`, concatenated:
    /// `[captured · hidden]`.
    pub fn hidden_states(&self, row: usize, to: &mut [f32]) {
        assert!(row < self.wanted.len(), "row {row} of {}", self.wanted.len());
        let hidden = self.weights.hidden();
        for ((_, states), to) in self.captured.iter().zip(to.chunks_exact_mut(hidden)) {
            assert!(!states.is_null(), "no pass was computed");
            // SAFETY:
            // - the pass computed more than `row` rows of `hidden` numbers each, as asserted above;
            // - the rows stay valid until the next pass, which needs `&mut self`.
            to.copy_from_slice(unsafe {
                std::slice::from_raw_parts(states.add(row * hidden), hidden)
            });
        }
    }

    fn memory(&self) -> sys::llama_memory_t {
        // SAFETY: the context is alive; `new` has checked that it has a memory.
        unsafe { sys::llama_get_memory(self.context.as_ptr()) }
    }

    /// Asserts that an id is in range.
    fn check_id(&self, id: Id) {
        assert!(usize::try_from(id).is_ok_and(|id| id < self.ids), "id {id} of {}", self.ids);
    }

    /// Marks the first `length` tokens of `from`, or all, as tokens of `to` too, which has none.
    pub fn copy(&mut self, from: Id, to: Id, length: Option<usize>) {
        self.check_id(from);
        self.check_id(to);
        self.updates.get_mut().push(CacheUpdate::Copy {
            from,
            to,
            end: length.map_or(-1, position),
        });
    }

    /// Removes the tokens of an id from position `from` on. Returns `false`, and changes nothing,
    /// where a part cannot be removed.
    pub fn remove(&mut self, id: Id, from: usize) -> bool {
        self.check_id(id);
        let update = CacheUpdate::Remove { id, start: if from == 0 { -1 } else { position(from) } };
        if from == 0 || !self.weights.has_state() {
            self.updates.get_mut().push(update);
            return true;
        }
        // SAFETY: `with_memory` passes the memory of a live context; the id was checked. After an
        // abort the next pass returns the error.
        self.with_memory(move |memory| unsafe { update.apply(memory) }).unwrap_or(true)
    }

    /// Position of the first token that an id still has in all layers; `None` if a sliding-window
    /// layer has none.
    pub fn first(&self, id: Id) -> Option<usize> {
        self.check_id(id);
        // SAFETY: `with_memory` passes the memory of a live context; the id was checked. -1 stands
        // for no token.
        let first =
            self.with_memory(move |memory| unsafe { sys::llama_memory_seq_pos_min(memory, id) });
        first.ok().and_then(|first| usize::try_from(first).ok())
    }

    /// Calls `query` with the cache after applying all pending updates.
    fn with_memory<T: Send + 'static>(
        &self,
        query: impl FnOnce(sys::llama_memory_t) -> T + Send + 'static,
    ) -> Result<T> {
        let updates = self.updates.take();
        // SAFETY: the context lives until this returns, and no other thread uses it.
        let memory = unsafe { SendPtr::new(self.memory()) };
        call(move || {
            let memory = memory.take();
            // SAFETY: the context is alive; the ids were checked when the updates were queued.
            updates.into_iter().for_each(|update| _ = unsafe { update.apply(memory) });
            query(memory)
        })
    }

    /// Computes a batch. After [`Error::Full`] nothing has changed; after another error the content
    /// of the batch's ids is undefined.
    pub fn decode(&mut self, batch: &mut Batch) -> Result<()> {
        let (rows, vocabulary) = (batch.len(), self.weights.vocabulary());
        self.wanted.clear();
        assert!(rows > 0 && rows <= self.rows && batch.wanted() <= MAX_LOGITS, "{rows} rows");
        batch.ids().iter().for_each(|&id| self.check_id(id));
        assert!(
            batch.tokens().iter().all(|&token| (token as usize) < vocabulary),
            "tokens of the vocabulary"
        );
        take_logged_errors();
        let (updates, sent) = (self.updates.take(), std::mem::take(batch));
        let layers: Vec<u32> = self.captured.iter().map(|(layer, _)| *layer).collect();
        // SAFETY: the context lives until this returns, and no other thread uses it.
        let sent_pointers = unsafe { SendPtr::new((self.context.as_ptr(), self.memory())) };
        let (sent, done) = call(move || {
            let (context, memory) = sent_pointers.take();
            let done = sent.with(|raw| {
                catch_exception(|| {
                    // SAFETY:
                    // - the context and its memory are alive;
                    // - the ids were checked when the updates were queued and above;
                    // - the batch's arrays live until `with` returns and have the lengths in the
                    //   batch;
                    // - its tokens were checked above.
                    unsafe {
                        updates.iter().for_each(|update| _ = update.apply(memory));
                        let code = throwing::llama_decode(context, raw);
                        // GPUs and servers may still be computing; their failures belong to this
                        // call.
                        throwing::llama_synchronize(context);
                        let layers = if code == 0 { &layers[..] } else { &[] };
                        let inputs = layers
                            .iter()
                            .map(|layer| throwing::polydraft_llama_captured_input(context, *layer));
                        // The pointers are returned to the context's owner.
                        (code, SendPtr::new(inputs.collect::<Vec<_>>()))
                    }
                })
            });
            (sent, done)
        })?;
        *batch = sent;
        match done.map(|(code, inputs)| (code, inputs.take())) {
            Ok((0, inputs)) => {
                self.captured
                    .iter_mut()
                    .zip(inputs)
                    .for_each(|((_, captured), input)| *captured = input);
                self.wanted.extend_from_slice(batch.wants());
                Ok(())
            }
            Ok((1, _)) => Err(Error::Full { cells: self.cells, more: rows }),
            Ok((code, _)) => {
                let errors = take_logged_errors();
                let errors = if errors.is_empty() { errors } else { format!(": {errors}") };
                Err(Error::Pass { rows, problem: format!("code {code}{errors}") })
            }
            Err(problem) => Err(Error::Pass { rows, problem }),
        }
    }

    /// Logits of a token of the last pass, which must have been requested.
    pub fn logits(&self, row: usize) -> &[f32] {
        assert_eq!(self.wanted.get(row), Some(&1), "the logits of row {row} were not requested");
        // SAFETY: the context is alive, and the row's logits were requested, as asserted above.
        let logits = unsafe { sys::llama_get_logits_ith(self.context.as_ptr(), row as i32) };
        assert!(!logits.is_null(), "row {row} has no logits");
        // SAFETY:
        // - a row of logits has one number per token of the vocabulary;
        // - it stays valid until the next pass, which needs `&mut self`.
        unsafe { std::slice::from_raw_parts(logits, self.weights.vocabulary()) }
    }
}
