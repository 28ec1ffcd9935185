//! Traces: what is recorded, what is read of damaged and hostile files, and what is replayed.

mod common;
mod damage;
mod fuzz_bodies;
mod hostile;
mod replay;
