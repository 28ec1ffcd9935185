//! How the tokens of a block hang together.
//!
//! Problem: a pass over a block predicts each of its tokens without knowing the others, so that
//! paths through it contradict themselves.
//! Source: DSpark's Markov head and DFlash-2's candidate selector, as published with their weights
//! and computed by vLLM (`qwen3_dspark.py`, `qwen3_dflash2.py`).
//! Method: to the logits of a level comes, after token t,
//!     Markov:   W2 · w1[t], with w1[t] and the rows of W2 of a small rank;
//!     lattice:  Σ_r a[t]_r (P h)_r b[c]_r for each of the level's k likeliest tokens c, h being
//!               the state of the level; no other token is drafted.
//! In both the distribution given the path depends on its last token alone, and is known exactly.
//! Complexity: rank × vocabulary for a node of the first, rank × k of the second.

use polydraft::Token;

use crate::error::Result;
use crate::linear::{Linear, Matrix};

/// What a level says without its parent.
#[derive(Debug)]
pub(super) struct Level {
    /// Of all tokens that can be drafted, or of the candidates.
    pub logits: Vec<f32>,
    /// The tokens that come into question, ascending, where that is not all.
    pub candidates: Option<Vec<Token>>,
    /// What weighs the candidates' pairs with a parent, `[rank]`.
    weights: Vec<f32>,
}

#[derive(Debug)]
pub(super) enum Link {
    /// Tokens depend on nothing but the context.
    None,
    Markov {
        /// Rows by token.
        from: Matrix,
        /// Rows of the tokens that can be drafted.
        to: Linear,
    },
    Lattice {
        /// How many candidates a level has.
        candidates: usize,
        /// Rows by token, of what comes before and of what follows.
        before: Matrix,
        after: Matrix,
        project: Linear,
    },
}

impl Link {
    /// Levels, of their states `[levels, hidden]` and logits `[levels, tokens]`.
    pub fn levels(
        &self,
        tokens: &[Token],
        states: &polydraft_kernels::Rows,
        logits: &[f32],
    ) -> Result<Vec<Level>> {
        let rows = logits.chunks_exact(tokens.len());
        let Self::Lattice { candidates, project, .. } = self else {
            let level =
                |row: &[f32]| Level { logits: row.to_vec(), candidates: None, weights: Vec::new() };
            return Ok(rows.map(level).collect());
        };
        let projected = project.forward(states)?;
        let weights = projected.numbers().chunks_exact(projected.width().max(1));
        let level = |(row, weights): (&[f32], &[f32])| {
            let chosen = largest(row, *candidates);
            Level {
                logits: chosen.iter().map(|&at| row[at]).collect(),
                candidates: Some(chosen.iter().map(|&at| tokens[at]).collect()),
                weights: weights.to_vec(),
            }
        };
        Ok(rows.zip(weights).map(level).collect())
    }

    /// The logits after tokens at their levels, where they are not the levels' own.
    pub fn after(
        &self,
        levels: &[Level],
        nodes: &[(usize, Token)],
        scale: f64,
    ) -> Result<Vec<Option<Vec<f32>>>> {
        let known = || nodes.iter().filter(|(level, _)| *level < levels.len());
        match self {
            Self::None => Ok(known().map(|_| None).collect()),
            Self::Markov { from, to } => {
                let parents: Vec<Token> = known().map(|(_, token)| *token).collect();
                if parents.is_empty() {
                    return Ok(Vec::new());
                }
                let bias = to.forward(&from.rows(&parents)?)?.scaled(scale).into_numbers();
                let sum = |((level, _), bias): (&(usize, Token), &[f32])| {
                    let own = &levels[*level].logits;
                    Some(own.iter().zip(bias).map(|(x, b)| x + b).collect())
                };
                let width = bias.len() / parents.len();
                Ok(known().zip(bias.chunks_exact(width.max(1))).map(sum).collect())
            }
            Self::Lattice { before, after, .. } => {
                let mut all = Vec::new();
                for (level, token) in known() {
                    let Level { logits, candidates, weights } = &levels[*level];
                    let candidates = candidates.as_deref().unwrap_or_default();
                    let (parent, children) = (before.rows(&[*token])?, after.rows(candidates)?);
                    let weighed: Vec<f32> =
                        parent.numbers().iter().zip(weights).map(|(a, h)| a * h).collect();
                    let edge = |(unary, row): (&f32, &[f32])| {
                        unary + row.iter().zip(&weighed).map(|(b, w)| b * w).sum::<f32>()
                    };
                    let rows = children.numbers().chunks_exact(weighed.len().max(1));
                    all.push(Some(logits.iter().zip(rows).map(edge).collect()));
                }
                Ok(all)
            }
        }
    }
}

/// Places of the largest numbers, at most so many, ascending; of equals the first.
fn largest(numbers: &[f32], count: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..numbers.len()).collect();
    let count = count.min(places.len());
    let order = |a: &usize, b: &usize| numbers[*b].total_cmp(&numbers[*a]).then(a.cmp(b));
    if count < places.len() {
        places.select_nth_unstable_by(count, order);
        places.truncate(count);
    }
    places.sort_unstable();
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_the_largest_in_order_of_tokens() {
        assert_eq!(largest(&[1.0, 5.0, -2.0, 5.0, 3.0], 3), [1, 3, 4]);
        assert_eq!(largest(&[1.0, 5.0, 5.0, 5.0], 2), [1, 2]);
        assert_eq!(largest(&[1.0, 2.0], 5), [0, 1]);
    }
}
