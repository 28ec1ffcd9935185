//! CPU kernels of polydraft: products with packed matrices, attention over a paged KV cache,
//! recurrent layers, norms and activations. They are independent of models and weight files.
//!
//! Every kernel gives a token bitwise the same result, whatever other tokens are in the pass. All
//! `unsafe` code of the CPU backend is in this crate: files with `unsafe` code allow it at their
//! top, and every block states why it is sound.

mod activation;
mod attention;
mod error;
mod exp;
mod fetch;
mod halves;
mod memory;
mod norm;
mod packed;
mod pool;
mod recurrent;
mod rows;
mod stack;
mod system;
mod threads;

pub use activation::Activation;
pub use attention::{
    AttentionParams, CacheType, Mask, PAGE_SLOTS, Page, PageLayout, SequenceInput, attend, rotate,
    rotate_neighbours,
};
pub use error::{Error, Result};
pub use norm::Norm;
pub use packed::{Format, Packed, ReadBlocks, ReadRows};
pub use recurrent::{
    DeltaRule, KeyHeadOrder, RecurrentState, StateSpace, TreeToken, Walk, convolve,
};
pub use rows::Rows;
pub use system::{available_memory, release_freed_memory, retain_freed_memory};
pub use threads::{parallel_for, parallel_for_each, use_threads};
