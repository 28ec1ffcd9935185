//! `cargo bench -p polydraft-kernels --bench attention [-- f16]`: what attention costs beside
//! reading keys and values once, in the shape of SmolLM2-135M (30 layers, 9 query heads that share
//! 3 key heads of 64 numbers).
//!
//! Numbers are the lower quartile of passes through all layers of several texts in turn, so that no
//! cache near the cores holds them; one and two threads, each in a process of its own
//! (`ATTENTION_THREADS=N RAYON_NUM_THREADS=N` for one of them).

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use polydraft_kernels::{
    AttentionParams, CacheType, Mask, PAGE_SLOTS, Page, PageLayout, SequenceInput, attend,
};

const SHAPE: [usize; 4] = [30, 9, 3, 64];
/// Tokens of a text, and rows behind it.
const CASES: [[usize; 2]; 6] = [[128, 1], [128, 8], [1000, 1], [1000, 8], [4000, 1], [4000, 8]];
/// Bytes of the texts together, at least.
const BYTES: usize = 64 << 20;
/// For one measurement.
const TIME: Duration = Duration::from_millis(1500);

fn main() {
    // Cargo says `--bench`.
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
        // The pool of threads is made once in a process.
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
    println!("held as  tokens  rows        ms      GB/s  multiply-adds/ns");
    for (held, [tokens, rows]) in kinds.iter().flat_map(|held| CASES.map(|case| (*held, case))) {
        let [layers, heads, _, head] = SHAPE;
        let layout = PageLayout { layers, heads: SHAPE[2], head_size: head, cache_type: held };
        let bytes = 2 * tokens * layers * layout.heads * head * held.bytes();
        let texts: Vec<Vec<Arc<Page>>> =
            (0..BYTES.div_ceil(bytes)).map(|_| text(layout, tokens + rows)).collect();
        // A path of tokens behind the text.
        let mask = |row| Mask { context: tokens, path: (tokens..=tokens + row).collect() };
        let masks: Vec<Mask> = (0..rows).map(mask).collect();
        let queries: Vec<f32> =
            (0..rows * heads * head).map(|i| (i as f32 * 1.618).sin()).collect();
        let (mut seconds, start) = (Vec::new(), Instant::now());
        while seconds.len() < 8 || start.elapsed() < TIME {
            for pages in &texts {
                let part = SequenceInput { pages, masks: &masks, end: tokens + rows };
                let clock = Instant::now();
                for layer in 0..layers {
                    let stride = heads * head;
                    let (window, softcap, sinks) = (None, None, None);
                    let rules =
                        AttentionParams { layer, layout, heads, stride, window, softcap, sinks };
                    black_box(attend(&[part], &queries, rules));
                }
                seconds.push(clock.elapsed().as_secs_f64());
            }
        }
        seconds.sort_by(f64::total_cmp);
        let time = seconds[seconds.len() / 4];
        let work = (2 * rows * tokens * layers * heads * head) as f64;
        println!(
            "{:<7} {tokens:>7} {rows:>5} {:>9.3} {:>9.1} {:>17.1}",
            held.name(),
            1e3 * time,
            bytes as f64 / time / 1e9,
            work / time / 1e9
        );
    }
}

/// A text of made-up keys and values.
fn text(layout: PageLayout, slots: usize) -> Vec<Arc<Page>> {
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
