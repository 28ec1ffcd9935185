//! Traces: the input of verification, recorded at positions of a target's own output, and verifiers
//! replayed on it.
//!
//! A trace is a folder. `trace.json` contains the models, settings and program. `index.jsonl` has a
//! line per recorded prompt. Each prompt is a file, called a *shard*: columns of numbers in
//! safetensors, compressed with gzip. Reasons:
//! - A shard is written to a temporary file, renamed, and only then added to the index. So an
//!   interruption, even by `kill -9`, loses only the current prompt, and appending writes further
//!   shards.
//! - Jobs of a cluster can process shards independently, because each shard is self-contained.
//! - Python can read traces with `gzip`, `safetensors` and `json`. The alternative, Parquet, would
//!   take most of the build time, and trees whose distributions differ in length do not fit the
//!   rows of a table.
//! - The gzip library is already in Cargo.lock and needs no C compiler. Checksums detect every
//!   changed bit: the index has a checksum of each file, and each shard that of `trace.json`.
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
