//! Thousands of damaged files: an error or a file, no panic, and no more memory than the bytes
//! justify.

#![allow(unsafe_code)] // the allocator that counts

mod fuzz_bodies;
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use polydraft_gguf::Gguf;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use support::{Writer, model};

thread_local! {
    /// Bytes that this thread holds now, and held at most.
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

/// Counts what each thread holds.
struct Counting;

fn count(change: isize) {
    // A thread that ends may free what is counted no more.
    let _ = HELD.try_with(|held| {
        let (now, most) = held.get();
        held.set((now + change, most.max(now + change)));
    });
}

// SAFETY: all is left to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a call takes at most, in bytes.
fn taken<T>(call: impl FnOnce() -> T) -> (T, usize) {
    let now = HELD.get().0;
    HELD.set((now, now));
    let result = call();
    (result, (HELD.get().1 - now) as usize)
}

/// A file with something of everything.
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

/// Flips bits, cuts, doubles and moves pieces, writes numbers that are special for lengths.
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
    let mut below = |most: usize| rng.next_u64() as usize % most.max(1);
    // Most of what can go wrong is in the header.
    let length = bytes.len();
    let place = |r: usize| {
        if r.is_multiple_of(4) { r / 4 % length.max(1) } else { r / 4 % length.clamp(1, 1_500) }
    };
    for _ in 0..1 + below(3) {
        let at = place(below(usize::MAX)).min(bytes.len().saturating_sub(1));
        match below(6) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << below(8),
            1 => bytes.truncate(at),
            2 => {
                let piece = bytes[at..(at + below(64)).min(bytes.len())].to_vec();
                let to = below(bytes.len() + 1);
                bytes.splice(to..to, piece);
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
fn damaged_files() {
    const RUNS: usize = 30_000;
    let seeds = seeds();
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut fine = 0;
    for run in 0..RUNS {
        let mut bytes = seeds[run % seeds.len()].clone();
        mutate(&mut rng, &mut bytes);
        // Opening: keys and tensors are small things in maps, so a few times what they take in the
        // file.
        let copy = bytes.clone();
        let (_, most) = taken(|| Gguf::from_bytes("mutant", copy).map(drop));
        let allowed = 16 * bytes.len() + 8_192;
        assert!(most <= allowed, "run {run}: {most} bytes for a file of {}", bytes.len());
        fine += usize::from(fuzz_bodies::gguf(&bytes));
    }
    // Both happen often, or the mutants are too wild or too tame.
    assert!(fine > RUNS / 20 && fine < RUNS * 19 / 20, "{fine} of {RUNS}");
}

#[test]
fn numbers_in_every_place() {
    for seed in seeds() {
        assert!(fuzz_bodies::gguf(&seed));
        for at in 4..seed.len().min(1_200) {
            for value in [u64::MAX, 1 << 62, 1 << 33, 0] {
                let mut bytes = seed.clone();
                let end = (at + 8).min(bytes.len());
                bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
                let (_, most) = taken(|| Gguf::from_bytes("mutant", bytes.clone()).map(drop));
                assert!(most <= 16 * bytes.len() + 8_192, "{value} at {at}: {most} bytes");
                fuzz_bodies::gguf(&bytes);
            }
        }
    }
}

/// The allocator counts, or the bounds above would say nothing.
#[test]
fn counting() {
    let (_, most) = taken(|| drop(vec![0_u8; 1 << 20]));
    assert!(most >= 1 << 20);
}
