//! Throughput of batches of sequences, one token each per pass.

use std::time::Instant;

use anyhow::{Result, ensure};
use polydraft::{DraftTree, Token};
use polydraft_engine::{Model, Sequence};
use serde::Serialize;

use super::median;

/// Throughput at one batch size.
#[derive(Serialize)]
pub struct Throughput {
    /// Batch size.
    pub sequences: usize,
    /// Median time of a pass.
    pub seconds: f64,
    /// Tokens per second over all sequences.
    pub tokens_per_second: f64,
    /// Ratio to the throughput of one sequence.
    pub relative: f64,
}

/// Sequences without a common prefix, of at most `context` tokens each, with space for one more.
struct Sequences {
    open: Vec<Sequence>,
    length: usize,
    tree: DraftTree,
}

impl Sequences {
    fn open(model: &mut impl Model, count: usize, context: usize) -> Result<Self> {
        let length = context.min(model.info().context - 1);
        let vocabulary = model.info().vocabulary.size();
        let mut open = Vec::new();
        for number in 0..count {
            let tokens: Vec<Token> = (0..length)
                .map(|i| ((i * 7919 + 31 * number + 17) % vocabulary) as Token)
                .collect();
            let sequence = model.open()?;
            model.extend(sequence, &tokens)?;
            while model.prepare(sequence, 256)? > 0 {}
            open.push(sequence);
        }
        Ok(Self { open, length, tree: DraftTree::new() })
    }

    /// Adds one token to each of the first `count` sequences; returns the seconds.
    fn step(&self, model: &mut impl Model, count: usize) -> Result<f64> {
        for &sequence in &self.open[..count] {
            model.truncate(sequence, self.length);
            model.extend(sequence, &[1])?;
        }
        let batch: Vec<_> =
            self.open[..count].iter().map(|sequence| (*sequence, &self.tree)).collect();
        let start = Instant::now();
        model.score(&batch)?;
        Ok(start.elapsed().as_secs_f64())
    }
}

/// Times passes over one token of each sequence in batches of the sizes `counts`, interleaved, so
/// that other load of the machine affects all alike.
///
/// First checks that scores of a batched sequence are bitwise equal to its scores alone.
/// `check_interrupt` is called before each round.
pub fn measure(
    model: &mut impl Model,
    counts: &[usize],
    context: usize,
    passes: usize,
    check_interrupt: &impl Fn() -> Result<()>,
) -> Result<Vec<Throughput>> {
    let mut counts = counts.to_vec();
    counts.push(1);
    counts.sort_unstable();
    counts.dedup();
    let most = counts[counts.len() - 1];
    let batch_sequences = Sequences::open(model, most, context)?;
    batch_sequences.step(model, 1)?;
    let alone = model.logits(batch_sequences.open[0], DraftTree::ROOT).to_vec();
    batch_sequences.step(model, most)?;
    let same = alone.iter().zip(model.logits(batch_sequences.open[0], DraftTree::ROOT));
    ensure!(
        same.into_iter().all(|(a, b)| a.to_bits() == b.to_bits()),
        "the scores of a sequence in a batch differ from its scores alone"
    );

    let mut seconds = vec![Vec::new(); counts.len()];
    for pass in 0..passes + 2 {
        check_interrupt()?;
        for (&count, seconds) in counts.iter().zip(&mut seconds) {
            let time = batch_sequences.step(model, count)?;
            // The first passes run with cold caches and low clock rates.
            if pass >= 2 {
                seconds.push(time);
            }
        }
    }
    batch_sequences.open.iter().for_each(|sequence| model.close(*sequence));
    let seconds: Vec<f64> = seconds.into_iter().map(|all| median(all.into_iter())).collect();
    let throughput = |(&sequences, &pass): (&usize, &f64)| Throughput {
        sequences,
        seconds: pass,
        tokens_per_second: sequences as f64 / pass,
        // Batch size one is the first.
        relative: sequences as f64 * seconds[0] / pass,
    };
    Ok(counts.iter().zip(&seconds).map(throughput).collect())
}
