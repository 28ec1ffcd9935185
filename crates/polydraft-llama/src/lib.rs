//! Language models for polydraft on llama.cpp: any GGUF file that it runs, as target or draft.
//!
//! [`load`] checks the file's header with [`polydraft_gguf`] and passes the file to llama.cpp. The
//! tokenizer and the chat template are [`polydraft_text`]'s, so that tokens are the same with every
//! backend. The model is a [`Model`](polydraft_engine::Model) like any other: many sequences in one
//! KV cache, the draft tree of each scored in one pass.
//!
//! Unlike with polydraft's own kernels, the last bits of a token's logits depend on the number of
//! tokens in the forward pass, because llama.cpp chooses its matrix products by that number. So the
//! output at temperature 0 is that of plain decoding up to ties within that rounding, and a seed
//! reproduces its output only with the same other requests in the batch.
//!
//! llama.cpp is C++: it throws exceptions, and it aborts the process on failed assertions and when
//! it loses a remote machine. Both become errors here: an exception fails its call; an abort fails
//! every call from then on ([`Error::Ended`], [`leave`]). Crashes cannot be caught;
//! `docs/models.md` lists the checks that prevent them.
//!
//! Without the feature `native` there is no C++: [`load`] returns an error that explains how to
//! build with it.

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

/// Runs a program that uses models of this crate. Without the feature `native`, just calls it.
///
/// # Errors
/// None.
#[cfg(not(feature = "native"))]
pub fn host<T>(program: impl FnOnce() -> T) -> Result<T> {
    Ok(program())
}

/// Computes for other machines. Without the feature `native` this is not possible.
///
/// # Errors
/// [`Error::NotBuilt`].
#[cfg(not(feature = "native"))]
pub fn serve_rpc(_endpoint: &str, _threads: usize) -> Result<()> {
    Err(Error::NotBuilt)
}

/// Whether llama.cpp has aborted in this process ([`Error::Ended`]).
pub fn has_ended() -> bool {
    #[cfg(feature = "native")]
    return native::has_ended();
    #[cfg(not(feature = "native"))]
    return false;
}

/// Ends the process with an exit code. After llama.cpp has aborted ([`Error::Ended`]) some of its
/// threads never end, and `std::process::exit` would wait for them: programs that may own a model
/// of this crate exit with this function.
pub fn leave(code: i32) -> ! {
    #[cfg(feature = "native")]
    if native::has_ended() {
        flush();
        native::leave(code);
    }
    std::process::exit(code)
}

/// Flushes standard output, unless its lock is held by a thread that never ends.
#[cfg(feature = "native")]
fn flush() {
    use std::io::Write;
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // Exit even if standard output is closed.
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
