//! `cargo bench -p polydraft-models --bench attention [-- f16]`: what attention costs beside
//! reading keys and values once, in the shape of SmolLM2-135M (30 layers, 9 query heads that share
//! 3 key heads of 64 numbers).
//!
//! Numbers are the lower quartile of passes through all layers of several texts in turn, so that no
//! cache near the cores holds them; one and two threads, each in a process of its own
//! (`ATTENTION_THREADS=N RAYON_NUM_THREADS=N` for one of them).

use std::hint::black_box;
use std::time::{Duration, Instant};

use polydraft_models::{AttentionProbe, CacheType};

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
        let text = || AttentionProbe::new(SHAPE, [tokens, rows], held).expect("memory");
        let first = text();
        let bytes = first.bytes();
        let mut texts = vec![first];
        texts.extend((1..BYTES.div_ceil(bytes)).map(|_| text()));
        let queries: Vec<f32> =
            (0..rows * heads * head).map(|i| (i as f32 * 1.618).sin()).collect();
        let (mut seconds, start) = (Vec::new(), Instant::now());
        while seconds.len() < 8 || start.elapsed() < TIME {
            for text in &mut texts {
                let clock = Instant::now();
                for layer in 0..layers {
                    black_box(text.attend(layer, &queries).expect("room for the rows"));
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
