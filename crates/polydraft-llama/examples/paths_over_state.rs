//! What a pass over K paths of L tokens costs on llama.cpp where a model keeps a state: all paths
//! in one pass, and each in a pass of its own. Relative to a pass over one token; medians.
//!
//!     cargo run --release -p polydraft-llama --features native --example paths_over_state MODEL

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use polydraft::{DraftTree, Token};
use polydraft_engine::{Model as _, Sequence, Sequences as _};
use polydraft_llama::{LlamaModel, LlamaOptions, load_model};

const PROMPT: usize = 64;
const TIMES: usize = 9;

/// Median milliseconds of scoring a tree after a sequence that goes on by one token each time.
fn clocked(
    model: &mut LlamaModel,
    sequence: Sequence,
    paths: usize,
    length: usize,
) -> Result<f64, Box<dyn Error>> {
    let vocabulary = model.info().vocabulary.size();
    let mut times = Vec::with_capacity(TIMES);
    for turn in 0..TIMES {
        let token = |at: usize| ((at * 7919 + turn * 104_729) % vocabulary) as Token;
        model.extend(sequence, &[token(0)])?;
        let mut tree = DraftTree::new();
        for path in 0..paths {
            let mut node = DraftTree::ROOT;
            for step in 0..length {
                node = tree.add(node, token(1 + path * length + step));
            }
        }
        let start = Instant::now();
        model.score(&[(sequence, &tree)])?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[TIMES / 2])
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("expected the path of a GGUF file, got none")?;
    let open = |is_together: bool| -> Result<(LlamaModel, Sequence), Box<dyn Error>> {
        let options = LlamaOptions { context: Some(1024), ..LlamaOptions::default() };
        let mut model = load_model(Path::new(&path), &options)?.0;
        let sequence = model.open()?;
        if !is_together {
            model.leave_ids(0);
        }
        let prompt: Vec<Token> = (0..PROMPT as Token).map(|token| token * 13 + 5).collect();
        model.extend(sequence, &prompt)?;
        Ok((model, sequence))
    };
    let (mut together, first) = open(true)?;
    let (mut apart, second) = open(false)?;
    let one = clocked(&mut together, first, 0, 0)?;
    println!("one token: {one:.1} ms; a state: {}", together.has_state());
    println!("paths  together, ms  of one  apart, ms  of one");
    for (paths, length) in [(1, 4), (2, 3), (2, 4), (4, 2), (4, 4)] {
        let a = clocked(&mut together, first, paths, length)?;
        let b = clocked(&mut apart, second, paths, length)?;
        println!("{paths} x {length}  {a:12.1} {:7.2} {b:10.1} {:7.2}", a / one, b / one);
    }
    Ok(())
}
