//! Measures a pass over K paths of L tokens on llama.cpp with a model that has a recurrent state:
//! all paths in one pass, and each path in a pass of its own. Prints medians, also relative to a
//! pass over one token.
//!
//! cargo run --release -p polydraft-llama --features native --example paths_over_state MODEL

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use polydraft::{DraftTree, Token};
use polydraft_engine::{Model as _, Sequence, Sequences as _};
use polydraft_llama::{LlamaModel, LlamaOptions, load_model};

const PROMPT: usize = 64;
const REPETITIONS: usize = 9;

/// Median milliseconds of scoring a tree; the sequence grows by one token each time.
fn median_time(
    model: &mut LlamaModel,
    sequence: Sequence,
    paths: usize,
    length: usize,
) -> Result<f64, Box<dyn Error>> {
    let vocabulary = model.info().vocabulary.size();
    let mut times = Vec::with_capacity(REPETITIONS);
    for repetition in 0..REPETITIONS {
        let token = |at: usize| ((at * 7919 + repetition * 104_729) % vocabulary) as Token;
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
    Ok(times[REPETITIONS / 2])
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("expected the path of a GGUF file, got none")?;
    let open = |one_pass: bool| -> Result<(LlamaModel, Sequence), Box<dyn Error>> {
        let options = LlamaOptions { context: Some(1024), ..LlamaOptions::default() };
        let mut model = load_model(Path::new(&path), &options)?.0;
        let sequence = model.open()?;
        if !one_pass {
            model.limit_ids(0);
        }
        let prompt: Vec<Token> = (0..PROMPT as Token).map(|token| token * 13 + 5).collect();
        model.extend(sequence, &prompt)?;
        Ok((model, sequence))
    };
    let (mut one_pass, first) = open(true)?;
    let (mut path_by_path, second) = open(false)?;
    let one_token = median_time(&mut one_pass, first, 0, 0)?;
    println!("one token: {one_token:.1} ms; recurrent state: {}", one_pass.has_state());
    println!("paths  one pass, ms  of one  by path, ms  of one");
    for (paths, length) in [(1, 4), (2, 3), (2, 4), (4, 2), (4, 4)] {
        let a = median_time(&mut one_pass, first, paths, length)?;
        let b = median_time(&mut path_by_path, second, paths, length)?;
        println!(
            "{paths} x {length}  {a:12.1} {:7.2} {b:10.1} {:7.2}",
            a / one_token,
            b / one_token
        );
    }
    Ok(())
}
