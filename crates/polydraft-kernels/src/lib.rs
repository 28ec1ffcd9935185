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
    CacheType, Layout, Mask, PAGE, Page, Part, Rules, attend, rotate, rotate_neighbours,
};
pub use error::{Error, Result};
pub use norm::Norm;
pub use packed::{Blocks, Format, Packed, Read};
pub use recurrent::{DeltaRule, HeadsOfKeys, Memory, StateSpace, Step, Walk, convolve};
pub use rows::Rows;
pub use system::{available_memory, give_back_memory, keep_memory};
pub use threads::{each, spread, use_threads};
