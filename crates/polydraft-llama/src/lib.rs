//! Language models for polydraft on llama.cpp: any GGUF file that it runs, as target or draft.
//!
//! [`load`] checks the file's header with [`polydraft_gguf`] and hands it to llama.cpp. The
//! tokenizer and the chat template are [`polydraft_text`]'s, so that tokens are the same with every
//! backend. The model is a [`Model`](polydraft_engine::Model) like any other: many sequences in one
//! KV cache, the draft tree of each scored in one pass.
//!
//! What differs from a model on our own kernels: a token's logits depend, in their last bits, on
//! the number of tokens per forward pass, because llama.cpp picks its products by that number. So
//! the output at temperature 0 is plain decoding's up to ties within that rounding, and a seed
//! reproduces its output only with the same other requests in the batch.
//!
//! llama.cpp is C++: it throws, and it ends the process where it finds itself wrong or has lost
//! another machine. Both are errors here: of a call, and of every call from then on
//! ([`Error::Ended`], [`leave`]). What cannot be guarded is a crash; `docs/models.md` says what
//! stands before it.
//!
//! Without the feature `native` there is no C++ here: [`load`] says how to build it.

mod error;
mod load;
mod options;

#[cfg(feature = "native")]
mod model;
#[cfg(feature = "native")]
mod native;

pub use error::{Error, Result};
pub use load::{Description, load};
pub use options::{BUILT, CacheType, FlashAttention, LlamaOptions, Split};

/// Runs a program that uses models of this crate. Without the feature `native` it is just run.
///
/// # Errors
/// None.
#[cfg(not(feature = "native"))]
pub fn host<T>(program: impl FnOnce() -> T) -> Result<T> {
    Ok(program())
}

/// Computes for other machines. Without the feature `native` there is nothing to compute with.
///
/// # Errors
/// [`Error::NotBuilt`].
#[cfg(not(feature = "native"))]
pub fn serve_rpc(_endpoint: &str, _threads: usize) -> Result<()> {
    Err(Error::NotBuilt)
}

/// Whether llama.cpp has given up in this process ([`Error::Ended`]).
pub fn has_ended() -> bool {
    #[cfg(feature = "native")]
    return native::has_ended();
    #[cfg(not(feature = "native"))]
    return false;
}

/// Ends the process with an exit code. Where llama.cpp has given up ([`Error::Ended`]), some of its
/// threads never end, and `std::process::exit` would wait for them: so whoever may own a model of
/// this crate leaves by this.
pub fn leave(code: i32) -> ! {
    #[cfg(feature = "native")]
    if native::has_ended() {
        flush();
        native::leave(code);
    }
    std::process::exit(code)
}

/// What was written is not lost, unless it is locked by a thread that never ends.
#[cfg(feature = "native")]
fn flush() {
    use std::io::Write;
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // That nobody may read it any more is no reason to stay.
        let _ = std::io::stdout().flush();
        let _ = done.send(());
    });
    let _ = wait.recv_timeout(std::time::Duration::from_millis(200));
}

#[cfg(feature = "native")]
pub use load::load_model;
#[cfg(feature = "native")]
pub use model::LlamaModel;
#[cfg(feature = "native")]
pub use native::{host, quantise, serve_rpc};
