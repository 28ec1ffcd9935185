//! Language models for polydraft, on its CPU kernels.
//!
//! [`load`] reads a directory in Hugging Face layout, of any family in [`architectures`], or a GGUF
//! file. The forward pass scores trees of tokens and can take tokens back. Matrix products,
//! attention and recurrences are in [`polydraft_kernels`]; the tokenizer and the chat template are
//! in [`polydraft_text`].

#![forbid(unsafe_code)]

mod cache;
mod config;
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
mod self_draft_reader;
mod transformer;
mod weights;

pub use config::{
    Attention, Biases, Config, ExpertGroups, Experts, FeedForward, Frequencies, LatentShape,
    LayerBlocks, Mixer, NormKind, NormOrder, Positions, QkNorm, QueryScaling, Recurrent, Rope,
    RotaryPairs, RouterScores, Scaling, SharedExpert,
};
pub use description::{Description, LoadOptions, is_gguf};
pub use error::{Bytes, Error, Result};
pub use family::gguf::gguf_architectures;
pub use family::{architectures, multimodal_architectures};
pub use head::DraftHead;
pub use head::block::BlockHead;
pub use head::block::load::{is_block_head, load_block_head};
pub use head::describe::HeadDescription;
pub use head::kind::{HeadKind, head_kind};
pub use head::load::{is_head, load_head};
pub use head::mtp::load_mtp;
pub use head::options::HeadOptions;
pub use head::target::HeadTarget;
pub use head::vocabulary::read_tokens;
pub use load::{EmbeddingAndOutput, Loaded, Opened, load};
pub use model::{SequenceLimits, TransformerModel};
pub use polydraft_kernels::{
    Activation, CacheType, available_memory, release_freed_memory, retain_freed_memory, use_threads,
};
pub use precision::Precision;
pub use self_draft_cache::SelfDraftCache;
pub use self_draft_file::SelfDraftFile;
