//! Language models for polydraft on candle.
//!
//! [`load`] reads a directory in Hugging Face layout, of any family in [`architectures`], or a GGUF
//! file. The forward pass is our own: the models of candle-transformers build their masks inside,
//! take scalar positions and keep private caches, so they can neither score a tree nor take tokens
//! back. What needs no tensors (tokenizer, chat template) is [`polydraft_text`]'s.

mod cache;
mod config;
mod copies;
mod copy_file;
mod device;
mod error;
mod family;
mod head;
mod importance;
mod linear;
mod load;
mod model;
mod packed;
mod rows;
mod threads;
mod transformer;
mod weights;

pub use cache::CacheType;
pub use config::{
    Activation, Attention, Biases, Config, FeedForward, Frequencies, NormKind, NormOrder,
    Positions, Rope, Scaling,
};
pub use copies::Copies;
pub use copy_file::CopyFile;
pub use device::{DeviceName, available_memory, give_back_memory, keep_memory};
pub use error::{Bytes, Error, Result};
pub use family::architectures;
pub use head::{
    Head, HeadDescription, HeadOptions, is_head, load_head, load_head_beside, read_tokens,
};
pub use linear::Precision;
pub use load::{Description, Ends, LoadOptions, Loaded, Opened, is_gguf, load};
pub use model::{SequenceLimits, TransformerModel};
#[doc(hidden)]
pub use packed::ProductProbe;
pub use threads::use_threads;
#[doc(hidden)]
pub use transformer::AttentionProbe;
