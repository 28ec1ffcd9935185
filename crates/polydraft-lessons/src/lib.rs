//! Text that a model writes itself, with what a draft head for it learns from: its hidden states
//! and its distributions.
//!
//! A head is taught on many millions of tokens, over and over, while the model that it drafts for
//! stands still. So the model computes once, on our own kernels and in the type of weights that it
//! will run in, and what it found lies on disk in 8 bits: [`write()`] fills a folder, shard by
//! shard, and goes on after the last one there. `python -m polydraft.train` learns from such a
//! folder.
//!
//! | file | holds |
//! |---|---|
//! | `origin.json` | what the text was made from: another model cannot go on with it |
//! | `model.json`, `model.safetensors` | its shape; embedding, output matrix, last norm |
//! | `shard-0000.safetensors` | samples: tokens, their states, the sums after their distributions |

//! Or nothing of it is kept but the likeliest tokens at each place, which [`learn_ngrams`] makes a
//! table of n-grams of.

#![forbid(unsafe_code)]

mod given;
mod kinds;
mod ngrams;
mod origin;
mod plan;
mod repeats;
mod shard;
mod talk;
mod target;
mod writer;

pub use kinds::Kind;
pub use ngrams::{NgramPlan, NgramProgress, learn_ngrams};
pub use plan::{ShardPlan, ShardProgress, write_shards};
pub use shard::{GROUP, Shard};
