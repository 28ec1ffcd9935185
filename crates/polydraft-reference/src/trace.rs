//! Traces: what verification needs, recorded at positions of a target's own text, and verifiers
//! replayed on it.
//!
//! A trace is a folder: `trace.json` says which models, settings and program; `index.jsonl` has a
//! line for each prompt that is there; and each prompt is one file, a *shard*: columns of numbers
//! in safetensors, compressed with gzip. Why:
//! - A shard is written beside its place, renamed, and only then named in the index: who is
//!   interrupted, even by `kill -9`, loses the prompt that was at work and nothing else, and adding
//!   is writing more shards.
//! - A cluster's job maps over shards; each is whole by itself.
//! - Python reads both with `gzip`, `safetensors` and `json`. Parquet, the other candidate, is most
//!   of a build's time, and a tree with laws of different lengths is no row of a table.
//! - gzip comes with a library that is in Cargo.lock already and needs no C. Its checksum, one of
//!   the whole file in the index, and in each shard that of `trace.json` say of every changed bit
//!   where it is.
//!
//! [`Writer`] and [`Recording`] record, [`Trace`] and [`Shard`] read, [`Replay`] compares verifiers
//! on what was recorded. The format is in `docs/traces.md`.

mod columns;
mod distributions;
mod error;
mod folder;
mod header;
mod parts;
mod recording;
mod replay;
mod shard;
mod writer;

pub use error::{Error, Result};
pub use folder::Trace;
pub use header::{FORMAT, Header, VERSION};
pub use recording::Recording;
pub use replay::{Replay, in_rounds, replay};
pub use shard::{Position, Shard, Text};
pub use writer::Writer;
