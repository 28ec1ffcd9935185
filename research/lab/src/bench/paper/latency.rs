//! SpecTr (Sun et al. 2023), tables 2 and 3: time of a pass over several sequences with several
//! tokens each, relative to a pass of the target over one sequence of four tokens.
//!
//! The paper's times are of a GPU, where such passes are memory bound; ours are of this machine's
//! CPU, with the models' number of threads. All sizes are timed in turn, and a ratio is between
//! passes of the same round.

use std::time::Instant;

use anyhow::Result;
use polydraft::{DraftTree, Token};
use polydraft_cli::output::Terminal;
use polydraft_engine::{Model, Sequence};
use polydraft_reference::comparison::Sample;

use super::lab::Lab;
use super::table::Table;

const LENGTHS: [usize; 2] = [4, 8];
const BATCHES: [usize; 4] = [1, 2, 4, 8];
/// Number of context tokens.
const CONTEXT: usize = 64;

pub fn measure(lab: &mut Lab) -> Result<()> {
    if lab.is_interrupted() {
        return Ok(());
    }
    lab.note("passes over several sequences");
    let rounds = if lab.quick { 6 } else { 60 };
    let text: Vec<Token> = lab.prompts.iter().flatten().copied().collect();
    let target = seconds(lab.models.engine.target(), &text, rounds)?;
    // No table for a draft that is not a model.
    let draft = lab.options.load_both(&Terminal).ok();
    let draft =
        draft.map(|(_, mut draft)| seconds(&mut *draft.model, &text, rounds)).transpose()?;
    let remark = "theirs are of a GPU: a pass there hardly grows with its tokens; here it does";
    let mut keep = |name: &str, whose: &str, own: &[Vec<f64>]| {
        let title = format!("Time of a pass of the {whose}, relative to the target's of 1 × 4");
        let mut table = Table::new(name, &title, 2);
        table.remark = Some(remark.to_owned());
        for (size, own) in sizes().zip(own) {
            let ratio = |(round, (own, one)): (usize, (&f64, &f64))| Sample {
                prompt: round,
                positions: 1,
                drafts: 1,
                nodes: size.0 * size.1,
                tokens: vec![own / one],
            };
            let series = own.iter().zip(&target[0]).enumerate().map(ratio).collect();
            table.add_series(format!("L = {}", size.1), format!("batch = {}", size.0), series);
        }
        lab.keep(table);
    };
    keep("latency", "target", &target);
    if let Some(draft) = draft {
        keep("latency-draft", "draft", &draft);
    }
    Ok(())
}

/// Returns the numbers of sequences and of tokens per sequence.
fn sizes() -> impl Iterator<Item = (usize, usize)> {
    LENGTHS.into_iter().flat_map(|length| BATCHES.map(|batch| (batch, length)))
}

/// Returns the seconds of a pass, by size and round.
fn seconds(model: &mut dyn Model, text: &[Token], rounds: usize) -> Result<Vec<Vec<f64>>> {
    let context: Vec<Token> = text.iter().copied().cycle().take(CONTEXT).collect();
    let most = BATCHES[BATCHES.len() - 1];
    let sequences = (0..most).map(|_| model.open()).collect::<Result<Vec<Sequence>, _>>()?;
    for &sequence in &sequences {
        model.extend(sequence, &context)?;
    }
    let mut all = vec![Vec::new(); sizes().count()];
    // The first round computes the context and serves as warm-up.
    for round in 0..=rounds {
        for ((batch, length), own) in sizes().zip(&mut all) {
            // The last context token is part of the pass.
            let mut tree = DraftTree::new();
            let mut node = DraftTree::ROOT;
            for &token in text.iter().cycle().skip(CONTEXT).take(length - 1) {
                node = tree.add(node, token);
            }
            let batch: Vec<_> = sequences[..batch].iter().map(|own| (*own, &tree)).collect();
            let begin = Instant::now();
            model.score(&batch)?;
            let taken = begin.elapsed().as_secs_f64();
            if round > 0 {
                own.push(taken);
            }
            for (sequence, tree) in batch {
                // Commits nothing, so that the next round computes the last token again.
                model.commit(sequence, tree, &[])?;
                model.truncate(sequence, CONTEXT - 1);
                model.extend(sequence, &context[CONTEXT - 1..])?;
            }
        }
    }
    sequences.into_iter().for_each(|sequence| model.close(sequence));
    Ok(all)
}
