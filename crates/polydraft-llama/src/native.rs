//! llama.cpp's C interface, made safe: all `unsafe` of this crate is in this file and those below.
//!
//! 1. Handles are owned: a context frees itself before the weights that it reads.
//! 2. Nothing is called with what llama.cpp would answer by ending the process: sequence ids and positions are checked against
//!    the context's sizes, a batch against its capacity, tokens against the vocabulary, and only rows whose logits were asked
//!    for are read.
//! 3. A batch's arrays are ours, so a token may have as many ids as there are; `llama_batch_init` would have to be told.

mod batch;
mod quantise;

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::ptr::{NonNull, null_mut};
use std::sync::{Mutex, Once, PoisonError};

use llama_cpp_sys_2 as sys;

use crate::{CacheType, Error, FlashAttention, LlamaOptions, Result, Split};

pub(crate) use batch::Batch;
pub use quantise::quantise;

/// What marks a text, or a branch of its tree, in the cache.
pub(crate) type Id = i32;

/// Tokens of a pass at most.
const ROWS: usize = 512;
/// Rows of logits of a pass at most: each takes four bytes for every token of the vocabulary.
pub(crate) const WANTED: usize = 128;

/// The last that llama.cpp said was wrong.
static SAID: Mutex<String> = Mutex::new(String::new());

extern "C" fn listen(level: sys::ggml_log_level, text: *const c_char, _: *mut c_void) {
    /// Enough for the cause and what follows from it.
    const MOST: usize = 2_000;
    if level != sys::GGML_LOG_LEVEL_ERROR || text.is_null() {
        return;
    }
    // SAFETY: llama.cpp gives a string that ends in 0 and lives until this returns.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.len() + text.len() <= MOST {
        said.push_str(&text);
    }
}

/// What llama.cpp has said was wrong since the last time, on one line.
fn said() -> String {
    let said = std::mem::take(&mut *SAID.lock().unwrap_or_else(PoisonError::into_inner));
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("; ")
}

/// Before anything else of llama.cpp.
fn start() {
    static START: Once = Once::new();
    START.call_once(|| {
        // SAFETY: the callback is a function that lives as long as the process.
        unsafe {
            sys::llama_log_set(Some(listen), null_mut());
            sys::llama_backend_init();
        }
    });
    said();
}

fn c_path(path: &Path) -> Result<CString> {
    let wrong = |_| Error::File {
        path: path.to_owned(),
        expected: "a path without a zero byte".to_owned(),
        got: "one with".to_owned(),
    };
    CString::new(path.as_os_str().as_encoded_bytes()).map_err(wrong)
}

/// A model's weights.
#[derive(Debug)]
pub(crate) struct Weights(NonNull<sys::llama_model>);

// SAFETY: nothing in a model belongs to a thread; we hand out no shared access.
unsafe impl Send for Weights {}

impl Drop for Weights {
    fn drop(&mut self) {
        // SAFETY: it was made by llama.cpp and nobody else has it; contexts are gone before (see `Context`).
        unsafe { sys::llama_model_free(self.0.as_ptr()) }
    }
}

impl Weights {
    /// Loads a file whose header was checked.
    pub fn load(path: &Path, options: &LlamaOptions) -> Result<Self> {
        start();
        let name = c_path(path)?;
        // SAFETY: plain calls; `shares` lives until the model is loaded.
        let (mut params, devices) = unsafe { (sys::llama_model_default_params(), sys::llama_max_devices()) };
        let mut shares = vec![0.0; devices];
        params.n_gpu_layers = match options.gpu_layers {
            None => -1,
            Some(layers) => i32::try_from(layers).unwrap_or(i32::MAX),
        };
        params.main_gpu = i32::try_from(options.main_gpu).unwrap_or(i32::MAX);
        params.split_mode = match &options.split {
            Split::None => sys::LLAMA_SPLIT_MODE_NONE,
            Split::Layer => sys::LLAMA_SPLIT_MODE_LAYER,
            Split::Row => sys::LLAMA_SPLIT_MODE_ROW,
            Split::Shares(given) => {
                if given.len() > devices {
                    let expected = format!("shares of at most {devices} cards");
                    return Err(Error::Setting { setting: "split", expected, got: given.len().to_string() });
                }
                shares[..given.len()].copy_from_slice(given);
                params.tensor_split = shares.as_ptr();
                sys::LLAMA_SPLIT_MODE_LAYER
            }
        };
        // SAFETY: as above; `name` ends in 0.
        let model = unsafe { sys::llama_model_load_from_file(name.as_ptr(), params) };
        let refused = || {
            let said = said();
            let problem = if said.is_empty() { "the file could not be loaded".to_owned() } else { said };
            Error::Refused { path: path.to_owned(), problem }
        };
        NonNull::new(model).map(Self).ok_or_else(refused)
    }

    /// Tokens of the vocabulary, which is how wide a row of logits is.
    pub fn vocabulary(&self) -> usize {
        // SAFETY: the model lives.
        let tokens = unsafe { sys::llama_vocab_n_tokens(sys::llama_model_get_vocab(self.0.as_ptr())) };
        usize::try_from(tokens).unwrap_or(0)
    }

    /// Tokens that it was trained for.
    pub fn trained_context(&self) -> usize {
        // SAFETY: the model lives.
        usize::try_from(unsafe { sys::llama_model_n_ctx_train(self.0.as_ptr()) }).unwrap_or(0)
    }

    /// The width of its sliding window, if some layers have one.
    pub fn window(&self) -> Option<usize> {
        // SAFETY: the model lives.
        usize::try_from(unsafe { sys::llama_model_n_swa(self.0.as_ptr()) }).ok().filter(|window| *window > 0)
    }

    /// Whether it keeps one state of a text, which cannot be taken back, beside keys and values or in place of them.
    pub fn has_state(&self) -> bool {
        // SAFETY: the model lives.
        unsafe {
            sys::llama_model_is_recurrent(self.0.as_ptr()) || sys::llama_model_is_hybrid(self.0.as_ptr())
        }
    }

    /// Why it cannot continue texts, if it cannot.
    pub fn unfit(&self) -> Option<&'static str> {
        let model = self.0.as_ptr();
        // SAFETY: the model lives.
        unsafe {
            if sys::llama_model_has_encoder(model) || !sys::llama_model_has_decoder(model) {
                Some("a model with an encoder")
            } else if sys::llama_model_is_diffusion(model) {
                Some("a model that writes by diffusion")
            } else {
                None
            }
        }
    }
}

/// Weights at work: a cache for texts, and memory to compute in.
#[derive(Debug)]
pub(crate) struct Context {
    // Freed in `drop`, before the weights.
    context: NonNull<sys::llama_context>,
    weights: Weights,
    ids: usize,
    cells: usize,
    /// Rows of a pass at most: [`ROWS`], or fewer in a small cache.
    rows: usize,
    /// For each row of the last pass, whether its logits were asked for.
    wanted: Vec<i8>,
}

// SAFETY: as for `Weights`.
unsafe impl Send for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was made by llama.cpp, and nobody else has it.
        unsafe { sys::llama_free(self.context.as_ptr()) }
    }
}

impl Context {
    /// Room for `cells` tokens of texts that `ids` tell apart.
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
        // SAFETY: the model lives as long as the context: it moves into the same struct, which frees it last.
        let context = unsafe { sys::llama_init_from_model(weights.0.as_ptr(), params) };
        let refused = |problem| Error::Refused { path: path.to_owned(), problem };
        let Some(context) = NonNull::new(context) else {
            return Err(refused(format!("no room for {cells} tokens: {}", said())));
        };
        // SAFETY: the context lives.
        let (cells, rows) = unsafe {
            let context = context.as_ptr();
            (sys::llama_n_ctx(context) as usize, sys::llama_n_batch(context) as usize)
        };
        let context = Self { context, weights, ids, cells, rows, wanted: Vec::new() };
        // SAFETY: as above.
        match unsafe { sys::llama_get_memory(context.context.as_ptr()) }.is_null() {
            true => {
                Err(refused("expected a model that continues texts, got one that has no cache".to_owned()))
            }
            false => Ok(context),
        }
    }

    /// Tokens that the cache holds.
    pub fn cells(&self) -> usize {
        self.cells
    }

    /// Rows of a pass at most.
    pub fn rows(&self) -> usize {
        self.rows
    }

    fn memory(&self) -> sys::llama_memory_t {
        // SAFETY: the context lives, and `new` has seen that it has a memory.
        unsafe { sys::llama_get_memory(self.context.as_ptr()) }
    }

    fn check(&self, id: Id) {
        assert!(usize::try_from(id).is_ok_and(|id| id < self.ids), "id {id} of {}", self.ids);
    }

    /// Marks the first `length` tokens of `from` as those of `to` too, which has none; all of them where nothing is said.
    pub fn copy(&mut self, from: Id, to: Id, length: Option<usize>) {
        self.check(from);
        self.check(to);
        let end = length.map_or(-1, position);
        // SAFETY: both ids are in range; in a unified cache this is a note in the cells.
        unsafe { sys::llama_memory_seq_cp(self.memory(), from, to, if end < 0 { -1 } else { 0 }, end) }
    }

    /// Takes the tokens from number `from` on from an id. False where that cannot be done in part, and nothing was done.
    pub fn remove(&mut self, id: Id, from: usize) -> bool {
        self.check(id);
        // SAFETY: the id is in range.
        unsafe {
            sys::llama_memory_seq_rm(self.memory(), id, if from == 0 { -1 } else { position(from) }, -1)
        }
    }

    /// The number of the first token that an id still has in all layers; none where a window's layers have none of it.
    pub fn first(&self, id: Id) -> Option<usize> {
        self.check(id);
        // SAFETY: the id is in range; -1 is none.
        usize::try_from(unsafe { sys::llama_memory_seq_pos_min(self.memory(), id) }).ok()
    }

    /// Computes a batch. After [`Error::Full`] all is as before; after another error what its ids hold is not known.
    pub fn decode(&mut self, batch: &Batch) -> Result<()> {
        let (rows, vocabulary) = (batch.len(), self.weights.vocabulary());
        self.wanted.clear();
        assert!(rows > 0 && rows <= self.rows && batch.wanted() <= WANTED, "{rows} rows");
        batch.ids().iter().for_each(|&id| self.check(id));
        assert!(
            batch.tokens().iter().all(|&token| (token as usize) < vocabulary),
            "tokens of the vocabulary"
        );
        said();
        let code = batch.with(|raw| {
            // SAFETY: the arrays live until `with` returns, are as long as the batch says, and were checked above.
            unsafe { sys::llama_decode(self.context.as_ptr(), raw) }
        });
        match code {
            0 => {
                self.wanted.extend_from_slice(batch.wants());
                Ok(())
            }
            1 => Err(Error::Full { cells: self.cells, more: rows }),
            code => {
                let said = said();
                let said = if said.is_empty() { said } else { format!(": {said}") };
                Err(Error::Pass { rows, code, said })
            }
        }
    }

    /// The logits of a row of the last pass, which were asked for.
    pub fn logits(&self, row: usize) -> &[f32] {
        assert_eq!(self.wanted.get(row), Some(&1), "the logits of row {row} were not asked for");
        // SAFETY: the context lives, and the row's logits were asked for.
        let logits = unsafe { sys::llama_get_logits_ith(self.context.as_ptr(), row as i32) };
        assert!(!logits.is_null(), "row {row} has no logits");
        // SAFETY: a row has as many numbers as the vocabulary has tokens, and stays until the next pass, which borrows
        // the context mutably.
        unsafe { std::slice::from_raw_parts(logits, self.weights.vocabulary()) }
    }
}

/// A token's number in its text, as llama.cpp has it.
fn position(number: usize) -> i32 {
    i32::try_from(number).expect("contexts are shorter")
}
