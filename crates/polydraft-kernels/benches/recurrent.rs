//! Benchmark of the gated delta rule in the shape of Qwen3.5 0.8B: one layer, with 256 prompt
//! tokens and with trees.

use std::hint::black_box;
use std::time::Instant;

use polydraft_kernels::{DeltaRule, KeyHeadOrder, RecurrentState, TreeToken, Walk, convolve};

const RULE: DeltaRule = DeltaRule {
    key_heads: 16,
    value_heads: 16,
    key: 128,
    value: 128,
    order: KeyHeadOrder::Grouped,
};

/// Returns the median time of 15 runs, in microseconds.
fn micros(mut run: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..15)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let _ = polydraft_kernels::use_threads(1);
    let rows: Vec<f32> = (0..256 * RULE.width()).map(|i| (i as f32 * 1.618).sin() / 12.0).collect();
    let mut state = vec![0f32; RULE.state_size()];
    for tokens in [1, 16, 256] {
        let rows = &rows[..tokens * RULE.width()];
        let time = micros(|| {
            let state = RecurrentState::Updated(&mut state);
            let walk = Walk { state, rows, committed: tokens, tree: &[], first_output: 0 };
            black_box(RULE.forward(&mut [walk]));
        });
        println!("a prompt of {tokens:3}: {:7.1} us per token", time / tokens as f64);
    }
    let chain: Vec<TreeToken> = (0..16).map(|row| TreeToken { row, depth: row }).collect();
    let star: Vec<TreeToken> = (0..16).map(|row| TreeToken { row, depth: 0 }).collect();
    for (name, tree) in [("chain", &chain), ("star", &star)] {
        let rows = &rows[..16 * RULE.width()];
        let time = micros(|| {
            let state = RecurrentState::ReadOnly(&state);
            let walk = Walk { state, rows, committed: 0, tree, first_output: 0 };
            black_box(RULE.forward(&mut [walk]));
        });
        println!("a {name} of 16:  {:7.1} us per token", time / 16.0);
    }
    let channels = RULE.mixed_width();
    let weights = vec![0.5f32; 4 * channels];
    let row = |at: usize| &rows[at * channels..][..channels];
    let windows: Vec<Vec<&[f32]>> = (0..128).map(|at| (at..at + 4).map(row).collect()).collect();
    let time = micros(|| {
        black_box(convolve(&windows, &weights, None, channels));
    });
    println!("convolution:      {:7.1} us per token", time / 128.0);
}
