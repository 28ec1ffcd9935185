//! llama.cpp's C interface, made safe: all `unsafe` of this crate is in this file and those below.
//!
//! 1. Handles are owned: a context frees itself before the weights that it reads.
//! 2. Nothing is called with what llama.cpp would answer by ending the process: sequence ids and
//!    positions are checked against the context's sizes, a batch against its capacity, tokens
//!    against the vocabulary, and only logits that were asked for are read.
//! 3. A batch's arrays are ours, so a token may have as many ids as there are; `llama_batch_init`
//!    would have to be told.
//! 4. Where it still ends or throws, that is an error of the call: see `calls`.

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

/// A sequence id of llama.cpp: marks a sequence, or a branch of its tree, in the cache.
pub(crate) type Id = i32;

/// Tokens of a pass at most.
const ROWS: usize = 512;
/// Tokens with logits of a pass at most: each takes four bytes for every token of the vocabulary.
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
        // SAFETY: the callbacks are functions that live as long as the process.
        unsafe {
            sys::llama_log_set(Some(listen), null_mut());
            sys::ggml_set_abort_callback(Some(calls::end));
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

/// A token's position in its sequence, as llama.cpp has it.
fn position(number: usize) -> i32 {
    i32::try_from(number).expect("contexts are shorter")
}

// SAFETY: `native/` defines it so.
unsafe extern "C" {
    /// Ends the process without waiting for threads that never end.
    fn polydraft_llama_leave(code: i32);
}

/// Ends the process past C++'s own exit, which waits for threads.
pub(crate) fn leave(code: i32) {
    // SAFETY: it needs nothing.
    unsafe { polydraft_llama_leave(code) }
}
