//! Whole steps, measured: what they take beside their passes, and what the passes of small models take among others.
//!
//! Problem: drawing, verifying and cutting back caches take time, most with several paths; and a small model's pass is faster or
//! slower by a third as its weights lie in a cache or do not, which passes of one model alone do not show.
//! Method: steps of a few trees and plain ones, in turn, the median of each.
//! 1. Where passes are short, chains say what the target's pass takes: the step less the draft's passes.
//! 2. What a step of several paths takes beyond its passes is its verification.

use std::time::{Duration, Instant};

use polydraft::policy::{Costs, Passes};
use polydraft::{PolicyKind, Token};

use super::{LONG, Requests, TIME, never_cheaper, timed};
use crate::{Engine, Result};

/// Passes that take less are measured in steps.
const SHORT: Duration = Duration::from_millis(20);
/// Paths and depth of the trees; nothing is drawn in plain steps.
const PLAIN: (usize, usize) = (0, 0);
const SHORT_TREES: [(usize, usize); 7] = [PLAIN, (1, 1), (1, 2), (1, 4), (1, 7), (2, 2), (4, 2)];
const TREES: [(usize, usize); 4] = [PLAIN, (1, 2), (2, 2), (4, 2)];
/// Steps of one tree before it is the next one's turn, behind a first one that reads the text.
const STEPS: usize = 4;
/// Turns at most.
const TURNS: usize = 12;

/// Steps of one kind.
struct Kind {
    paths: usize,
    depth: usize,
    /// Seconds, and nodes by level, the root first.
    steps: Vec<(f64, Vec<usize>)>,
}

impl Kind {
    /// What they usually take, less what `part` says of each.
    fn usual(&self, part: impl Fn(&[usize]) -> f64) -> Option<f64> {
        let mut rest: Vec<f64> = self.steps.iter().map(|(seconds, levels)| seconds - part(levels)).collect();
        rest.sort_by(f64::total_cmp);
        rest.get(rest.len() / 2).copied()
    }
}

/// Corrects the costs of passes and adds those of verification, for trees of up to `most` paths.
///
/// # Errors
/// Failures of the models; requests that are refused.
pub(crate) fn steps(
    engine: &mut Engine,
    text: &[Token],
    costs: &mut Costs,
    most: usize,
    request: &mut Requests,
) -> Result<()> {
    let pass = costs.target.at(1.0);
    if pass > LONG.as_secs_f64() {
        // What comes beside such a pass is little.
        return Ok(());
    }
    let short = pass < SHORT.as_secs_f64();
    let trees = if short { &SHORT_TREES[..] } else { &TREES };
    let mut kinds: Vec<Kind> = trees
        .iter()
        .filter(|(paths, _)| *paths <= most)
        .map(|&(paths, depth)| Kind { paths, depth, steps: Vec::new() })
        .collect();
    let start = Instant::now();
    for turn in 0..TURNS {
        if turn > 0 && start.elapsed() > TIME {
            break;
        }
        for kind in &mut kinds {
            take(engine, text, request, kind)?;
        }
    }
    if short {
        costs.target = by_chains(&kinds, costs)?;
    }
    let of_passes = |levels: &[usize]| {
        let drafted = levels[..levels.len() - 1].iter().map(|&rows| costs.draft.at(rows as f64));
        costs.target.at(levels.iter().sum::<usize>() as f64) + drafted.sum::<f64>()
    };
    // A plain step has a rest too, which is none of verification's.
    let plain =
        kinds.iter().find(|kind| kind.paths == 0).and_then(|kind| kind.usual(of_passes)).unwrap_or(0.0);
    let rests =
        kinds.iter().filter(|kind| kind.depth == 2).filter_map(|kind| Some((kind, kind.usual(of_passes)?)));
    let (paths, mut seconds): (Vec<usize>, Vec<f64>) =
        rests.map(|(kind, rest)| (kind.paths, (rest - plain).max(0.0))).unzip();
    never_cheaper(&mut seconds);
    if !paths.is_empty() {
        costs.verification = Passes::new(paths.into_iter().zip(seconds).collect())?;
    }
    Ok(())
}

/// Some steps of one kind.
fn take(engine: &mut Engine, text: &[Token], request: &mut Requests, kind: &mut Kind) -> Result<()> {
    let mut request = request(text.to_vec(), PolicyKind::paths(kind.paths.max(1), kind.depth.max(1)))?;
    if kind.paths == 0 {
        request.speculation = None;
    }
    let mut session = engine.open(request)?;
    let steps = (0..=STEPS).try_for_each(|step| {
        if session.is_done() {
            return Ok(());
        }
        let seconds = timed(|| engine.step(&mut [&mut session]))?;
        let levels = session.draft.tree().levels();
        // Near the end of the context less is drawn.
        if step > 0 && levels.len() == kind.depth + 1 {
            kind.steps.push((seconds, levels));
        }
        Ok(())
    });
    let closed = engine.close(session);
    steps.and(closed)?;
    Ok(())
}

/// The target's passes: of few rows by the steps of chains, of more in proportion to what passes alone took.
fn by_chains(kinds: &[Kind], costs: &Costs) -> Result<Passes> {
    let drafted = |levels: &[usize]| (levels.len() - 1) as f64 * costs.draft.at(1.0);
    let chains = kinds.iter().filter(|kind| kind.paths < 2);
    let (mut rows, mut seconds): (Vec<usize>, Vec<f64>) =
        chains.filter_map(|kind| Some((1 + kind.depth, kind.usual(drafted)?))).unzip();
    let Some(&plain) = seconds.first() else { return Ok(costs.target.clone()) };
    // On a busy machine the draft's passes may have taken longer alone than the steps that they are part of.
    seconds.iter_mut().for_each(|seconds| *seconds = seconds.max(plain));
    let (last, usual) = (rows[rows.len() - 1], seconds[seconds.len() - 1]);
    let ratio = usual / costs.target.at(last as f64);
    for &(more, alone) in costs.target.pairs().iter().filter(|(more, _)| *more > last) {
        rows.push(more);
        seconds.push(ratio * alone);
    }
    never_cheaper(&mut seconds);
    Ok(Passes::new(rows.into_iter().zip(seconds).collect())?)
}
