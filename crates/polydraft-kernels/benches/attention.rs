//! Benchmark of attention in the shape of SmolLM2-135M (30 layers, 9 query heads, 3 key heads of
//! width 64): `cargo bench -p polydraft-kernels --bench attention [-- f16]`.
//!
//! Reports the lower quartile of passes through all layers, alternating between sequences, so that
//! the KV cache is read from memory. Runs with one and with two threads, each in a separate process
//! (`ATTENTION_THREADS=N RAYON_NUM_THREADS=N` selects one of them).

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use polydraft_kernels::{
    AttentionParams, CacheType, Mask, PAGE_SLOTS, Page, PageLayout, SequenceInput, attend,
};

const SHAPE: [usize; 4] = [30, 9, 3, 64];
/// Length of the sequence, and number of rows after it.
const CASES: [[usize; 2]; 6] = [[128, 1], [128, 8], [1000, 1], [1000, 8], [4000, 1], [4000, 8]];
/// Minimum number of bytes of all sequences.
const BYTES: usize = 64 << 20;
/// Duration of a measurement.
const TIME: Duration = Duration::from_millis(1500);

fn main() {
    // Cargo passes `--bench`.
    let named: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let kinds: Vec<CacheType> = match named.iter().map(|name| name.parse()).collect() {
        Ok(kinds) => kinds,
        Err(error) => {
            let error: String = error;
            eprintln!("{error}");
            std::process::exit(2)
        }
    };
    let kinds = if kinds.is_empty() { CacheType::ALL.to_vec() } else { kinds };
    match std::env::var("ATTENTION_THREADS") {
        Ok(threads) => measure(&threads, &kinds),
        // A process has one thread pool, so each thread count needs a process.
        Err(_) => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            for threads in [1, 2].into_iter().filter(|t| *t <= cores) {
                let mut command =
                    std::process::Command::new(std::env::current_exe().expect("a path"));
                command.args(&named).env("ATTENTION_THREADS", threads.to_string());
                command.env("RAYON_NUM_THREADS", threads.to_string());
                assert!(command.status().expect("a process").success());
            }
        }
    }
}

fn measure(threads: &str, kinds: &[CacheType]) {
    println!("{threads} thread(s)");
    println!("type     tokens  rows        ms      GB/s  multiply-adds/ns");
    let cases = kinds.iter().flat_map(|kind| CASES.map(|case| (*kind, case)));
    for (cache_type, [tokens, rows]) in cases {
        let [layers, heads, _, head] = SHAPE;
        let layout = PageLayout { layers, heads: SHAPE[2], head_size: head, cache_type };
        let bytes = 2 * tokens * layers * layout.heads * head * cache_type.bytes();
        let sequences: Vec<Vec<Arc<Page>>> =
            (0..BYTES.div_ceil(bytes)).map(|_| sequence(layout, tokens + rows)).collect();
        // A path of tokens after the sequence.
        let mask = |row| Mask { context: tokens, path: (tokens..=tokens + row).collect() };
        let masks: Vec<Mask> = (0..rows).map(mask).collect();
        let queries: Vec<f32> =
            (0..rows * heads * head).map(|i| (i as f32 * 1.618).sin()).collect();
        let (mut seconds, start) = (Vec::new(), Instant::now());
        while seconds.len() < 8 || start.elapsed() < TIME {
            for pages in &sequences {
                let sequence = SequenceInput { pages, masks: &masks, end: tokens + rows };
                let start = Instant::now();
                for layer in 0..layers {
                    let stride = heads * head;
                    let (window, softcap, sinks) = (None, None, None);
                    let params =
                        AttentionParams { layer, layout, heads, stride, window, softcap, sinks };
                    black_box(attend(&[sequence], &queries, params));
                }
                seconds.push(start.elapsed().as_secs_f64());
            }
        }
        seconds.sort_by(f64::total_cmp);
        let time = seconds[seconds.len() / 4];
        let work = (2 * rows * tokens * layers * heads * head) as f64;
        println!(
            "{:<7} {tokens:>7} {rows:>5} {:>9.3} {:>9.1} {:>17.1}",
            cache_type.name(),
            1e3 * time,
            bytes as f64 / time / 1e9,
            work / time / 1e9
        );
    }
}

/// Returns a sequence of synthetic keys and values.
fn sequence(layout: PageLayout, slots: usize) -> Vec<Arc<Page>> {
    let page = |first: usize| {
        let mut page = Page::new(layout).expect("memory");
        for slot in first..slots.min(first + PAGE_SLOTS) {
            for layer in 0..layout.layers {
                let number = |i: usize| {
                    ((slot * 31 + layer * 17 + i * 7) as u32 as f32 * 0.618).fract() - 0.5
                };
                let numbers: Vec<f32> =
                    (0..2 * layout.heads * layout.head_size).map(number).collect();
                let (key, value) = numbers.split_at(layout.heads * layout.head_size);
                page.write(layer, slot % PAGE_SLOTS, key, value);
            }
        }
        Arc::new(page)
    };
    (0..slots).step_by(PAGE_SLOTS).map(page).collect()
}
