//! Throughput of a batch of sequences, one token of each per pass.

use std::time::Instant;

use anyhow::{Result, ensure};
use polydraft::{DraftTree, Token};
use polydraft_engine::{Model, Sequence};
use serde::Serialize;

use super::median;

/// A batch size, and its throughput.
#[derive(Serialize)]
pub struct Throughput {
    /// How many sequences.
    pub sequences: usize,
    /// Of a pass, the median.
    pub seconds: f64,
    /// Of all sequences.
    pub tokens_per_second: f64,
    /// The ratio to one sequence's.
    pub relative: f64,
}

/// Sequences with no common prefix, of `context` tokens each, at most what leaves room for another.
struct Texts {
    open: Vec<Sequence>,
    length: usize,
    tree: DraftTree,
}

impl Texts {
    fn read(model: &mut impl Model, count: usize, context: usize) -> Result<Self> {
        let length = context.min(model.info().context - 1);
        let vocabulary = model.info().vocabulary.size();
        let mut open = Vec::new();
        for number in 0..count {
            let text: Vec<Token> = (0..length)
                .map(|i| ((i * 7919 + 31 * number + 17) % vocabulary) as Token)
                .collect();
            let sequence = model.open()?;
            model.extend(sequence, &text)?;
            while model.prepare(sequence, 256)? > 0 {}
            open.push(sequence);
        }
        Ok(Self { open, length, tree: DraftTree::new() })
    }

    /// One token more in each of the first `count` sequences; seconds.
    fn step(&self, model: &mut impl Model, count: usize) -> Result<f64> {
        for &sequence in &self.open[..count] {
            model.truncate(sequence, self.length);
            model.extend(sequence, &[1])?;
        }
        let batch: Vec<_> =
            self.open[..count].iter().map(|sequence| (*sequence, &self.tree)).collect();
        let clock = Instant::now();
        model.score(&batch)?;
        Ok(clock.elapsed().as_secs_f64())
    }
}

/// Times passes over one token of each of so many sequences, in turn, so that other load of the
/// machine is the same for all.
///
/// It is checked first that each sequence is scored as it is alone, to the last bit. `go_on` is
/// called before each turn.
pub fn measure(
    model: &mut impl Model,
    counts: &[usize],
    context: usize,
    passes: usize,
    go_on: &impl Fn() -> Result<()>,
) -> Result<Vec<Throughput>> {
    let mut counts = counts.to_vec();
    counts.push(1);
    counts.sort_unstable();
    counts.dedup();
    let most = counts[counts.len() - 1];
    let texts = Texts::read(model, most, context)?;
    texts.step(model, 1)?;
    let alone = model.logits(texts.open[0], DraftTree::ROOT).to_vec();
    texts.step(model, most)?;
    let same = alone.iter().zip(model.logits(texts.open[0], DraftTree::ROOT));
    ensure!(
        same.into_iter().all(|(a, b)| a.to_bits() == b.to_bits()),
        "a sequence is not scored as it is alone"
    );

    let mut seconds = vec![Vec::new(); counts.len()];
    for pass in 0..passes + 2 {
        go_on()?;
        for (&count, seconds) in counts.iter().zip(&mut seconds) {
            let time = texts.step(model, count)?;
            // The first ones find caches and clocks cold.
            if pass >= 2 {
                seconds.push(time);
            }
        }
    }
    texts.open.iter().for_each(|sequence| model.close(*sequence));
    let seconds: Vec<f64> = seconds.into_iter().map(|all| median(all.into_iter())).collect();
    let throughput = |(&sequences, &pass): (&usize, &f64)| Throughput {
        sequences,
        seconds: pass,
        tokens_per_second: sequences as f64 / pass,
        // One is the first of them.
        relative: sequences as f64 * seconds[0] / pass,
    };
    Ok(counts.iter().zip(&seconds).map(throughput).collect())
}
