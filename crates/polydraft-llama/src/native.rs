//! Safe wrapper of llama.cpp's C interface: all `unsafe` of this crate is in this file and those
//! below.
//!
//! 1. Handles are owned: a context frees itself before the weights that it reads.
//! 2. llama.cpp is never called with arguments for which it aborts: sequence ids and positions are
//!    checked against the context's sizes, a batch against its capacity, tokens against the
//!    vocabulary, and only logits that were requested are read.
//! 3. The arrays of a batch are ours, so a token may have any number of ids; `llama_batch_init`
//!    needs a maximum in advance.
//! 4. Where llama.cpp still aborts or throws, the call returns an error: see `calls`.

#![allow(unsafe_code)]

mod batch;
mod calls;
mod context;
mod devices;
mod quantise;
mod rpc;
mod throwing;
mod weights;

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::{Mutex, Once, PoisonError};

use llama_cpp_sys_2 as sys;

use crate::{Error, Result};

pub(crate) use batch::Batch;
pub(crate) use calls::has_ended;
pub use calls::host;
pub(crate) use context::Context;
pub use quantise::quantise;
pub use rpc::serve_rpc;
pub(crate) use weights::Weights;

/// Sequence id of llama.cpp: marks a sequence, or a branch of its tree, in the cache.
pub(crate) type Id = i32;

/// Maximum number of tokens per pass.
const MAX_ROWS: usize = 512;
/// Maximum number of tokens with logits per pass: each takes four bytes for every token of the
/// vocabulary.
pub(crate) const MAX_LOGITS: usize = 128;

/// Errors that llama.cpp has logged since [`take_logged_errors`] was last called.
static LOGGED_ERRORS: Mutex<String> = Mutex::new(String::new());

/// Collects the errors that llama.cpp logs.
extern "C" fn log_callback(level: sys::ggml_log_level, text: *const c_char, _: *mut c_void) {
    /// Maximum length, enough for the cause and its consequences.
    const MAX_BYTES: usize = 2_000;
    if level != sys::GGML_LOG_LEVEL_ERROR || text.is_null() {
        return;
    }
    // SAFETY: `text` is not null; llama.cpp passes a string that ends in 0 and lives until this
    // returns.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let mut errors = LOGGED_ERRORS.lock().unwrap_or_else(PoisonError::into_inner);
    if errors.len() + text.len() <= MAX_BYTES {
        errors.push_str(&text);
    }
}

/// Takes the errors that llama.cpp has logged since the last call, on one line.
fn take_logged_errors() -> String {
    let errors = std::mem::take(&mut *LOGGED_ERRORS.lock().unwrap_or_else(PoisonError::into_inner));
    let lines: Vec<&str> = errors.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("; ")
}

/// Initialises llama.cpp; called before anything else of it.
fn start() {
    static START: Once = Once::new();
    START.call_once(|| {
        // SAFETY: the callbacks are functions that live as long as the process.
        unsafe {
            sys::llama_log_set(Some(log_callback), null_mut());
            sys::ggml_set_abort_callback(Some(calls::abort_callback));
            sys::llama_backend_init();
        }
    });
    take_logged_errors();
}

/// Path as a C string.
fn c_path(path: &Path) -> Result<CString> {
    let invalid = |_| Error::File {
        path: path.to_owned(),
        expected: "a path without a zero byte".to_owned(),
        got: "a path with one".to_owned(),
    };
    CString::new(path.as_os_str().as_encoded_bytes()).map_err(invalid)
}

/// Position of a token in its sequence, in llama.cpp's type.
fn position(number: usize) -> i32 {
    i32::try_from(number).expect("contexts are shorter")
}

// SAFETY: the declaration matches the definition in `native/border.cpp`.
unsafe extern "C" {
    /// Ends the process without waiting for threads.
    fn polydraft_llama_leave(code: i32);
}

/// Ends the process without C++'s exit handlers, which wait for threads.
pub(crate) fn leave(code: i32) {
    // SAFETY: the function has no preconditions.
    unsafe { polydraft_llama_leave(code) }
}
