//! The CPU kernels of polydraft: products with packed matrices, attention over a paged KV cache,
//! norms and activations. They know nothing of models or weight files.
//!
//! Every kernel gives a token the same numbers, to the bit, whatever else is in the pass. All of
//! the CPU side's `unsafe` code is here; each file that has some says so, and every block says why
//! it is sound.

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
