//! Traces: the input of verification, recorded at positions of a target's own output, and verifiers
//! replayed on it.
//!
//! A trace is a folder. `trace.json` contains the models, settings and program. `index.jsonl` has a
//! line per recorded prompt. Each prompt is a file, called a *shard*: columns of numbers in
//! safetensors, compressed with gzip. Reasons:
//! - A shard is written beside its place, renamed, and only then named in the index: an
//!   interruption, even by `kill -9`, loses the current prompt and nothing else, and appending is
//!   writing more shards.
//! - A cluster's job maps over shards; each is whole by itself.
//! - Python reads both with `gzip`, `safetensors` and `json`. Parquet, the other candidate, is most
//!   of a build's time, and a tree with distributions of different lengths is no row of a table.
//! - gzip comes with a library that is in Cargo.lock already and needs no C. The checksums locate
//!   every changed bit: the index has one of each whole file, and each shard has that of
//!   `trace.json`.
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
