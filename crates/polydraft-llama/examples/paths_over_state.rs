//! What a pass over K paths of L tokens costs on llama.cpp where a model keeps a state: all paths
//! in one pass, and each in a pass of its own. Relative to a pass over one token; medians.
//!
//!     cargo run --release -p polydraft-llama --features native --example paths_over_state MODEL

use std::path::Path;
use std::time::Instant;

use polydraft::{DraftTree, Token};
use polydraft_engine::{Model as _, Sequence, Sequences as _};
use polydraft_llama::{LlamaModel, LlamaOptions, load_model};

const PROMPT: usize = 64;
const TIMES: usize = 9;

/// Median milliseconds of scoring a tree after a sequence that goes on by one token each time.
fn clocked(model: &mut LlamaModel, sequence: Sequence, paths: usize, length: usize) -> f64 {
    let vocabulary = model.info().vocabulary.size();
    let mut times: Vec<f64> = (0..TIMES)
        .map(|turn| {
            let token = |at: usize| ((at * 7919 + turn * 104_729) % vocabulary) as Token;
            model.extend(sequence, &[token(0)]).expect("room");
            let mut tree = DraftTree::new();
            for path in 0..paths {
                let mut node = DraftTree::ROOT;
                for step in 0..length {
                    node = tree.add(node, token(1 + path * length + step));
                }
            }
            let start = Instant::now();
            model.score(&[(sequence, &tree)]).expect("scores");
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[TIMES / 2]
}

fn main() {
    let path = std::env::args().nth(1).expect("the path of a GGUF file");
    let open = |is_together: bool| {
        let options = LlamaOptions { context: Some(1024), ..LlamaOptions::default() };
        let mut model = load_model(Path::new(&path), &options).expect("a model").0;
        let sequence = model.open().expect("a sequence");
        if !is_together {
            model.leave_ids(0);
        }
        let prompt: Vec<Token> = (0..PROMPT as Token).map(|token| token * 13 + 5).collect();
        model.extend(sequence, &prompt).expect("room");
        (model, sequence)
    };
    let (mut together, first) = open(true);
    let (mut apart, second) = open(false);
    let one = clocked(&mut together, first, 0, 0);
    println!("one token: {one:.1} ms; a state: {}", together.has_state());
    println!("paths  together, ms  of one  apart, ms  of one");
    for (paths, length) in [(1, 4), (2, 3), (2, 4), (4, 2), (4, 4)] {
        let a = clocked(&mut together, first, paths, length);
        let b = clocked(&mut apart, second, paths, length);
        println!("{paths} x {length}  {a:12.1} {:7.2} {b:10.1} {:7.2}", a / one, b / one);
    }
}
