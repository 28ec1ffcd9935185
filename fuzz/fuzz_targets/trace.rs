#![no_main]

#[path = "../../crates/polydraft-trace/tests/fuzz_bodies/mod.rs"]
mod fuzz_bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_bodies::shard(bytes));
