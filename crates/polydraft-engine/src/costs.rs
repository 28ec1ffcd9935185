//! What passes of target and draft cost here, measured: what trees that choose themselves go by.
//!
//! Method: a text of a few dozen tokens; passes over 1, 2, 4, .. rows, in turn, each with the distributions that are made
//! from its logits; the least of each. It takes about a second for models that take a tenth of one for a pass, less
//! for smaller ones.

use std::time::{Duration, Instant};

use polydraft::policy::{Costs, Passes};
use polydraft::{Distribution, DraftTree, Sampling, Token};

use crate::{Drafter, Model, Result};

/// Rows of the passes that are measured.
const TARGET: [usize; 6] = [1, 2, 4, 8, 16, 32];
const DRAFT: [usize; 5] = [1, 2, 4, 8, 32];
/// Tokens of the text.
const TEXT: usize = 32;
/// Passes of each kind: as many as fit in the time, within these.
const PASSES: std::ops::RangeInclusive<usize> = 3..=15;
const TIME: Duration = Duration::from_millis(1200);
/// Passes of one kind whose median is so many times the least tell of a machine that does something else.
const BUSY: f64 = 1.4;

/// What was measured, and how well.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Seconds of passes.
    pub costs: Costs,
    /// Whether the machine was busy with something else: then the costs are worth little.
    pub busy: bool,
}

/// Measures. `sampling` is the target's and the draft's.
///
/// # Errors
/// Failures of the models; as many sequences open as they can hold.
pub fn measure(
    target: &mut dyn Model,
    drafter: &mut dyn Drafter,
    sampling: [&Sampling; 2],
) -> Result<Measured> {
    let size = target.facts().vocabulary.size().max(1);
    // Any tokens do: what a pass costs does not depend on them.
    let token = |n: usize| (n * 7919 % size) as Token;
    let context = target.facts().context.min(drafter.context());
    let text: Vec<Token> = (0..TEXT.min(context / 2)).map(token).collect();
    let most = context.saturating_sub(text.len()).min(size).max(1);

    let sequence = target.open()?;
    let of_target = target.extend(sequence, &text).and_then(|()| {
        repeat(&TARGET, most, |rows| {
            target.extend(sequence, &[])?;
            let tree = star(rows - 1, token);
            timed(|| {
                target.score(&[(sequence, &tree)])?;
                (0..rows).try_for_each(|node| {
                    Distribution::from_logits(target.logits(sequence, node), sampling[0])?;
                    Ok(())
                })
            })
        })
    });
    // Only for drafters that read them, whose target has them.
    let states = target.features(sequence, 0..text.len().saturating_sub(1));
    target.close(sequence);
    let sequence = drafter.open()?;
    let of_draft = drafter.extend(sequence, &text).and_then(|()| {
        if drafter.told(sequence).is_some() {
            drafter.tell(sequence, &states?)?;
        }
        repeat(&DRAFT, most, |rows| {
            drafter.extend(sequence, &[])?;
            // A pass of one row is the root's; of more, a level below it.
            let (tree, nodes) = match rows {
                1 => (DraftTree::new(), 0..1),
                _ => (star(rows, token), 1..rows + 1),
            };
            if rows > 1 {
                drafter.score(&[(sequence, &DraftTree::new())])?;
            }
            timed(|| {
                drafter.score(&[(sequence, &tree)])?;
                nodes.clone().try_for_each(|node| {
                    drafter.distribution(sequence, node, sampling[1], None)?;
                    Ok(())
                })
            })
        })
    });
    drafter.close(sequence);
    let ((target, busy), (draft, _)) = (of_target?, of_draft?);
    Ok(Measured { costs: Costs { target: Passes::new(target)?, draft: Passes::new(draft)? }, busy })
}

/// A root and so many children.
fn star(children: usize, token: impl Fn(usize) -> Token) -> DraftTree {
    let mut tree = DraftTree::new();
    (0..children).for_each(|n| {
        tree.add(DraftTree::ROOT, token(n));
    });
    tree
}

fn timed(mut pass: impl FnMut() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    pass()?;
    Ok(start.elapsed().as_secs_f64())
}

/// Seconds by rows, as far as there is room for so many, and whether the machine was busy.
fn repeat(
    rows: &[usize],
    most: usize,
    mut pass: impl FnMut(usize) -> Result<f64>,
) -> Result<(Vec<(usize, f64)>, bool)> {
    let rows: Vec<usize> = rows.iter().copied().filter(|&rows| rows == 1 || rows < most).collect();
    let mut seconds = vec![Vec::new(); rows.len()];
    // The first of each kind pays for memory and threads.
    for &rows in &rows {
        pass(rows)?;
    }
    let start = Instant::now();
    for round in 0..*PASSES.end() {
        if round >= *PASSES.start() && start.elapsed() > TIME {
            break;
        }
        for (&rows, seconds) in rows.iter().zip(&mut seconds) {
            seconds.push(pass(rows)?);
        }
    }
    seconds.iter_mut().for_each(|seconds| seconds.sort_by(f64::total_cmp));
    let spread = |seconds: &Vec<f64>| seconds[seconds.len() / 2] / seconds[0];
    let busy = seconds.iter().map(spread).sum::<f64>() / rows.len() as f64 > BUSY;
    // The least of each: whatever else the machine does only adds. And more rows are never cheaper.
    let mut least: Vec<f64> = seconds.iter().map(|seconds| seconds[0]).collect();
    for n in (1..least.len()).rev() {
        least[n - 1] = least[n - 1].min(least[n]);
    }
    Ok((rows.into_iter().zip(least).collect(), busy))
}
