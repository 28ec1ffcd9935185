//! What passes of target and draft cost here, measured: what trees that choose themselves go by.
//!
//! Method: a text of 128 tokens; passes over 1, 2, 3, .. rows, in turn, the median of each; then
//! whole steps (`costs/steps.rs`), and what a longer text adds (`costs/longer.rs`). It takes
//! fifteen seconds at most where passes are not long.

mod longer;
mod steps;
mod timed;

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use polydraft::policy::{Costs, Guess, Longer, Passes};
use polydraft::{PolicyKind, Sampling, Token};

use crate::{Drafter, Model, Reads, Request, Result};
use longer::longer;
pub(crate) use steps::steps;
use timed::{Draft, Target, Timed};

/// Rows of the passes that are measured: a staircase, whose steps are small where trees are.
const TARGET: [usize; 10] = [1, 2, 3, 4, 5, 6, 8, 12, 16, 32];
const DRAFT: [usize; 5] = [1, 2, 4, 8, 32];
/// The same where a pass takes long ([`LONG`]).
const FEW: [usize; 4] = [1, 4, 8, 16];
const LONG: Duration = Duration::from_millis(200);
/// Tokens of the text: as many as texts usually have before long, for every row attends to all of
/// them.
const TEXT: usize = 128;
/// Passes of each kind: as many as fit in the time, within these.
const PASSES: RangeInclusive<usize> = 3..=15;
const TIME: Duration = Duration::from_millis(2500);
/// Passes of one kind whose median is so many times the least tell of a machine that does something
/// else.
const BUSY: f64 = 1.4;

/// Makes the requests whose steps are measured.
pub(crate) type Requests<'a> = dyn FnMut(Vec<Token>, PolicyKind) -> Result<Request<'static>> + 'a;

/// What was measured, and how well.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Seconds of passes.
    pub costs: Costs,
    /// Whether the machine was busy with something else: then the costs are worth little.
    pub busy: bool,
}

/// Passes over 1, 2, 4, .. rows, each with the distributions that are made of it at every node.
pub(crate) fn passes(
    target: &mut dyn Model,
    drafter: &mut dyn Drafter,
    text: &[Token],
    [of_target, of_draft]: [&Sampling; 2],
) -> Result<Measured> {
    let size = target.facts().vocabulary.size().max(1);
    let context = target.facts().context.min(drafter.context());
    let most = context.saturating_sub(text.len()).min(size).max(1);

    let follows = drafter.reads() == Reads::Kept;
    let mut timed = Target { target: &mut *target, sampling: of_target };
    let (of_target, busy) = by_rows(&mut timed, text, &TARGET, most)?;
    let (of_draft, _) =
        by_rows(&mut Draft { drafter, target, sampling: of_draft }, text, &DRAFT, most)?;
    let ([target, more_of_target], [draft, more_of_draft]) = (of_target, of_draft);
    let longer =
        Box::new(Longer { than: text.len(), target: more_of_target, draft: more_of_draft });
    let costs = Costs {
        target,
        draft,
        first: 0.0,
        verification: Passes::free(),
        follows,
        longer,
        guess: Guess::default(),
    };
    Ok(Measured { costs, busy })
}

/// Passes of one of both, what a token of the text adds to them, and whether the machine was busy.
fn by_rows(
    timed: &mut impl Timed,
    text: &[Token],
    rows: &[usize],
    most: usize,
) -> Result<([Passes; 2], bool)> {
    timed.with_text(text, |timed, short| {
        let reading = timed.pass(short, 1)?;
        let (passes, busy) = repeat(rows, most, |rows| timed.pass(short, rows))?;
        Ok(([Passes::new(passes)?, longer(timed, short, text, reading)?], busy))
    })
}

/// The text, or a made-up one, as far as there is room.
pub(crate) fn text(text: &[Token], target: &dyn Model, drafter: &dyn Drafter) -> Vec<Token> {
    let (context, size) =
        (target.facts().context.min(drafter.context()), target.facts().vocabulary.size());
    let most = TEXT.min(context / 2);
    match text {
        [] => (0..most).map(|n| any_token(n, size.max(1))).collect(),
        text => text[..most.min(text.len())].to_vec(),
    }
}

/// Any tokens do: what a pass costs does not depend on them.
fn any_token(n: usize, size: usize) -> Token {
    (n * 7919 % size) as Token
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
    // The first of each kind pays for memory and threads.
    pass(1)?;
    let long = pass(1)? > LONG.as_secs_f64();
    let rows: Vec<usize> = if long { &FEW } else { rows }
        .iter()
        .copied()
        .filter(|&rows| rows == 1 || rows < most)
        .collect();
    for &rows in rows.iter().filter(|_| !long) {
        pass(rows)?;
    }
    let seconds = in_turn(&rows, PASSES, TIME, pass)?;
    let least = seconds.iter().map(|seconds| seconds.iter().copied().fold(f64::INFINITY, f64::min));
    let least: Vec<f64> = least.collect();
    // What is usual, not the least: caches are rarely as warm.
    let mut usual: Vec<f64> = seconds.into_iter().filter_map(median).collect();
    let spread = usual.iter().zip(&least).map(|(usual, least)| usual / least).sum::<f64>();
    let busy = spread / rows.len() as f64 > BUSY;
    never_cheaper(&mut usual);
    Ok((rows.into_iter().zip(usual).collect(), busy))
}

/// What passes over so many rows take, by rows: as many turns as fit in the time, within these.
fn in_turn(
    rows: &[usize],
    turns: RangeInclusive<usize>,
    time: Duration,
    mut pass: impl FnMut(usize) -> Result<f64>,
) -> Result<Vec<Vec<f64>>> {
    let (mut seconds, start) = (vec![Vec::new(); rows.len()], Instant::now());
    for turn in 0..*turns.end() {
        if turn >= *turns.start() && start.elapsed() > time {
            break;
        }
        for (&rows, seconds) in rows.iter().zip(&mut seconds) {
            seconds.push(pass(rows)?);
        }
    }
    Ok(seconds)
}

/// Between the two in the middle where there is none: of two samples the larger one is no middle.
fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    let (below, above) = (numbers.len().checked_sub(1)? / 2, numbers.len() / 2);
    Some(0.5 * (numbers[below] + numbers[above]))
}

/// More is never cheaper: where it seems so, chance did it, and what was measured is met halfway
/// from both sides.
fn never_cheaper(seconds: &mut [f64]) {
    let mut below = seconds.to_vec();
    for n in (1..below.len()).rev() {
        below[n - 1] = below[n - 1].min(below[n]);
    }
    let mut most = 0.0_f64;
    for (seconds, below) in seconds.iter_mut().zip(below) {
        most = most.max(*seconds);
        *seconds = 0.5 * (most + below);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_is_never_cheaper() {
        let mut seconds = [1.0, 3.0, 2.0, 4.0];
        never_cheaper(&mut seconds);
        assert_eq!(seconds, [1.0, 2.5, 2.5, 4.0]);
    }
}
