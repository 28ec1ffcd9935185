#![no_main]

#[path = "../../research/reference/tests/trace/fuzz_bodies.rs"]
mod fuzz_bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_bodies::shard(bytes));
