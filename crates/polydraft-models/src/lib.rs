//! Language models for polydraft, on its CPU kernels.
//!
//! [`load`] reads a directory in Hugging Face layout, of any family in [`architectures`], or a GGUF
//! file. The forward pass is our own: it scores trees of tokens and takes tokens back. What is
//! computed with one token after the other is [`polydraft_kernels`]'s; what needs no tensors
//! (tokenizer, chat template) is [`polydraft_text`]'s.

#![forbid(unsafe_code)]

mod cache;
mod config;
mod copy_reader;
mod description;
mod error;
mod family;
mod head;
mod importance;
mod linear;
mod load;
mod model;
mod names;
mod precision;
mod quantisation;
mod self_draft_cache;
mod self_draft_file;
mod transformer;
mod weights;

pub use config::{
    Attention, Biases, Blocks, Config, Experts, FeedForward, Frequencies, Groups, HeadNorms,
    Latent, Mixer, NormKind, NormOrder, Pairs, Positions, Recurrent, Rope, Scaling, Scores, Shared,
    Stretch,
};
pub use description::{Description, LoadOptions, is_gguf};
pub use error::{Bytes, Error, Result};
pub use family::file::file_architectures;
pub use family::{architectures, architectures_around_text};
pub use head::Head;
pub use head::block::BlockHead;
pub use head::block::load::{is_block_head, load_block_head};
pub use head::describe::HeadDescription;
pub use head::further::load_mtp;
pub use head::kind::{HeadKind, head_kind};
pub use head::load::{is_head, load_head};
pub use head::options::HeadOptions;
pub use head::target::HeadTarget;
pub use head::vocabulary::read_tokens;
pub use load::{EmbeddingAndHead, Loaded, Opened, load};
pub use model::{SequenceLimits, TransformerModel};
pub use polydraft_kernels::{
    Activation, CacheType, available_memory, give_back_memory, keep_memory, use_threads,
};
pub use precision::Precision;
pub use self_draft_cache::SelfDraftCache;
pub use self_draft_file::SelfDraftFile;
