//! Dependencies between the tokens of a block.
//!
//! Problem: a pass over a block predicts its tokens independently, so that paths of sampled tokens
//! are inconsistent.
//! Source: DSpark's Markov head and DFlash-2's candidate selector, as published with their weights
//! and computed by vLLM (`qwen3_dspark.py`, `qwen3_dflash2.py`).
//! Method: after token t, this term is added to the logits of a level:
//!     Markov:   W2 · w1[t], where w1[t] and the rows of W2 have a small rank;
//!     lattice:  Σ_r a[t]_r (P h)_r b[c]_r for each of the level's k most likely tokens c, where h
//!               is the state of the level; other tokens are not drafted.
//! In both, the distribution given the path depends on its last token alone, and is known exactly.
//! Complexity: rank × vocabulary per node for Markov, rank × k for the lattice.

use polydraft::Token;

use crate::error::Result;
use crate::linear::{Linear, Matrix};

/// A level of the block, without the dependency on a parent.
#[derive(Debug)]
pub(super) struct Level {
    /// Logits of the draft vocabulary or of the candidates.
    pub logits: Vec<f32>,
    /// Tokens that can be drafted, ascending; `None` for the full draft vocabulary.
    pub candidates: Option<Vec<Token>>,
    /// Weights P h of pairs of a parent and a candidate, `[rank]`.
    weights: Vec<f32>,
}

#[derive(Debug)]
pub(super) enum Link {
    /// Tokens depend on the context alone.
    None,
    Markov {
        /// w1, one row per token.
        from: Matrix,
        /// W2, with rows of the draft vocabulary.
        to: Linear,
    },
    Lattice {
        /// Number of candidates of a level.
        candidates: usize,
        /// a, one row per parent token.
        before: Matrix,
        /// b, one row per candidate token.
        after: Matrix,
        /// P.
        project: Linear,
    },
}

impl Link {
    /// Builds levels from states `[levels, hidden]` and logits `[levels, tokens]`.
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

    /// Logits of nodes, given as level and parent token, on levels with logits. `None` if they
    /// equal the logits of the level.
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
                    let logits = &levels[*level].logits;
                    Some(logits.iter().zip(bias).map(|(x, b)| x + b).collect())
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
                    let weighted: Vec<f32> =
                        parent.numbers().iter().zip(weights).map(|(a, h)| a * h).collect();
                    let edge = |(unary, row): (&f32, &[f32])| {
                        unary + row.iter().zip(&weighted).map(|(b, w)| b * w).sum::<f32>()
                    };
                    let rows = children.numbers().chunks_exact(weighted.len().max(1));
                    all.push(Some(logits.iter().zip(rows).map(edge).collect()));
                }
                Ok(all)
            }
        }
    }
}

/// Indices of the `count` largest numbers, ascending. The first of equal numbers take precedence.
fn largest(numbers: &[f32], count: usize) -> Vec<usize> {
    let mut indices: Vec<usize> = (0..numbers.len()).collect();
    let count = count.min(indices.len());
    let order = |a: &usize, b: &usize| numbers[*b].total_cmp(&numbers[*a]).then(a.cmp(b));
    if count < indices.len() {
        indices.select_nth_unstable_by(count, order);
        indices.truncate(count);
    }
    indices.sort_unstable();
    indices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_returns_ascending_indices_and_prefers_the_first_of_equals() {
        assert_eq!(largest(&[1.0, 5.0, -2.0, 5.0, 3.0], 3), [1, 3, 4]);
        assert_eq!(largest(&[1.0, 5.0, 5.0, 5.0], 2), [1, 2]);
        assert_eq!(largest(&[1.0, 2.0], 5), [0, 1]);
    }
}
