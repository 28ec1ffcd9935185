//! Opens thousands of corrupted files, which must not panic, nor allocate more memory than the size
//! of the file justifies.

#![allow(unsafe_code)] // the counting allocator

mod fuzz_bodies;
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use polydraft_gguf::Gguf;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use support::{Writer, model};

thread_local! {
    /// Allocated bytes of this thread: current and maximum.
    static ALLOCATED: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

/// Allocator that counts the bytes of each thread.
struct Counting;

fn count(change: isize) {
    // A thread that ends may free memory after its counter is destroyed.
    let _ = ALLOCATED.try_with(|allocated| {
        let (now, max) = allocated.get();
        allocated.set((now + change, max.max(now + change)));
    });
}

// SAFETY: all calls are forwarded to the system allocator; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's guarantees are those of the system allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's guarantees are those of the system allocator.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs a function; returns its result and its peak of allocated bytes.
fn peak_bytes<T>(call: impl FnOnce() -> T) -> (T, usize) {
    let now = ALLOCATED.get().0;
    ALLOCATED.set((now, now));
    let result = call();
    (result, (ALLOCATED.get().1 - now) as usize)
}

/// Returns files with all kinds of content.
fn seeds() -> Vec<Vec<u8>> {
    let words: Vec<String> = (0..300).map(|i| format!("w{i}")).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let tokens = ["<s>", "a", "b", "ab", "<|im_end|>"];
    let with_tokens = |writer: Writer| {
        writer
            .str("tokenizer.ggml.model", "gpt2")
            .str("tokenizer.ggml.pre", "llama-bpe")
            .strings("tokenizer.ggml.tokens", &tokens)
            .strings("tokenizer.ggml.merges", &["a b"])
            .i32s("tokenizer.ggml.token_type", &[3, 1, 1, 1, 4])
            .u32("tokenizer.ggml.bos_token_id", 0)
    };
    let llama = model("llama").f32_tensor("rope_freqs.weight", &[2], &[1.0, 2.0]);
    vec![
        with_tokens(llama).finish(),
        model("gemma3").u32("gemma3.attention.sliding_window", 8).finish(),
        Writer { alignment: 64, ..Writer::default() }
            .u32("general.alignment", 64)
            .strings("words", &words)
            .f32s("scores", &[0.5; 100])
            .tensor("q", 12, &[256, 2], &[7; 288])
            .finish(),
    ]
}

/// Flips bits, truncates, copies and removes chunks, and writes numbers that are special as
/// lengths.
fn mutate(rng: &mut ChaCha8Rng, bytes: &mut Vec<u8>) {
    const SPECIAL: [u64; 14] = [
        0,
        1,
        31,
        255,
        256,
        65_536,
        u32::MAX as u64,
        1 << 32,
        1 << 40,
        i64::MAX as u64,
        1 << 63,
        u64::MAX,
        u64::MAX - 31,
        u64::MAX / 4 + 1,
    ];
    let mut below = |max: usize| rng.next_u64() as usize % max.max(1);
    // Most mutations are in the header.
    let length = bytes.len();
    let position = |r: usize| {
        if r.is_multiple_of(4) { r / 4 % length.max(1) } else { r / 4 % length.clamp(1, 1_500) }
    };
    for _ in 0..1 + below(3) {
        let at = position(below(usize::MAX)).min(bytes.len().saturating_sub(1));
        match below(6) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << below(8),
            1 => bytes.truncate(at),
            2 => {
                let chunk = bytes[at..(at + below(64)).min(bytes.len())].to_vec();
                let to = below(bytes.len() + 1);
                bytes.splice(to..to, chunk);
            }
            3 => drop(bytes.drain(at..(at + 1 + below(16)).min(bytes.len()))),
            width => {
                let value = SPECIAL[below(SPECIAL.len())].to_le_bytes();
                let end = (at + if width == 4 { 4 } else { 8 }).min(bytes.len());
                bytes[at..end].copy_from_slice(&value[..end - at]);
            }
        }
    }
}

#[test]
fn random_mutations_do_not_panic_or_exhaust_memory() {
    const RUNS: usize = 30_000;
    let seeds = seeds();
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut opened = 0;
    for run in 0..RUNS {
        let mut bytes = seeds[run % seeds.len()].clone();
        mutate(&mut rng, &mut bytes);
        // Entries of keys and tensors take a few times their size in the file.
        let copy = bytes.clone();
        let (_, peak) = peak_bytes(|| Gguf::from_bytes("mutant", copy).map(drop));
        let allowed = 16 * bytes.len() + 8_192;
        assert!(peak <= allowed, "run {run}: {peak} bytes for a file of {}", bytes.len());
        opened += usize::from(fuzz_bodies::gguf(&bytes));
    }
    // Both outcomes must be frequent for the test to be meaningful.
    assert!(opened > RUNS / 20 && opened < RUNS * 19 / 20, "{opened} of {RUNS}");
}

#[test]
fn extreme_numbers_at_every_offset_do_not_panic_or_exhaust_memory() {
    for seed in seeds() {
        assert!(fuzz_bodies::gguf(&seed));
        for at in 4..seed.len().min(1_200) {
            for value in [u64::MAX, 1 << 62, 1 << 33, 0] {
                let mut bytes = seed.clone();
                let end = (at + 8).min(bytes.len());
                bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
                let (_, peak) = peak_bytes(|| Gguf::from_bytes("mutant", bytes.clone()).map(drop));
                assert!(peak <= 16 * bytes.len() + 8_192, "{value} at {at}: {peak} bytes");
                fuzz_bodies::gguf(&bytes);
            }
        }
    }
}

#[test]
fn allocator_counts_bytes() {
    let (_, peak) = peak_bytes(|| drop(vec![0_u8; 1 << 20]));
    assert!(peak >= 1 << 20);
}
