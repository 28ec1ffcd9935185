//! Sampling from a distribution.

use super::{BLOCK, Distribution};
use crate::Token;
use crate::random::{Outcomes, RandomSource};

impl Distribution {
    /// Draws a token in time logarithmic in the size of the support, plus a constant.
    pub fn sample<C: RandomSource + ?Sized>(&self, rng: &mut C) -> Token {
        rng.choose(self) as Token
    }
}

impl Outcomes for Distribution {
    fn draw(&self, uniform: &mut dyn FnMut() -> f64) -> usize {
        let position = uniform() * self.cumulative.last().copied().unwrap_or(0.0);
        let block =
            self.cumulative.partition_point(|&sum| sum <= position).min(self.cumulative.len() - 1);
        let mut left = position - if block == 0 { 0.0 } else { self.cumulative[block - 1] };
        let mut last = block * BLOCK;
        for (index, &mass) in self.mass.iter().enumerate().skip(last).take(BLOCK) {
            if mass > 0.0 {
                last = index;
                if left < mass {
                    break;
                }
                left -= mass;
            }
        }
        if self.is_dense() { last } else { self.tokens[last] as usize }
    }

    fn weights(&self) -> Vec<f64> {
        self.to_vec()
    }

    fn are_tokens(&self) -> bool {
        true
    }
}
