//! Tests of traces: recording, reading damaged and hostile files, and replaying.

mod common;
mod damage;
mod fuzz_bodies;
mod hostile;
mod replay;
