//! Distributions shared by the benchmarks.

#![allow(dead_code)] // not every benchmark uses everything

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// Vocabulary sizes: a toy, Llama 2, Llama 3, Gemma.
pub const VOCABULARIES: [usize; 4] = [1_000, 32_000, 128_256, 262_144];

/// Shapes of the distributions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shape {
    /// Similar to a language model: normal logits of standard deviation 4, the draft's with an
    /// error of 1.
    Peaked,
    /// Nearly uniform: normal logits of standard deviation 0.3, independent.
    Flat,
    /// Zipf's distribution with exponent 1.1, the draft's logits with an error of 1.
    Heavy,
}

pub const SHAPES: [Shape; 3] = [Shape::Peaked, Shape::Flat, Shape::Heavy];

/// Logits of target and draft.
pub fn logits(shape: Shape, vocabulary: usize, seed: u64) -> (Vec<f32>, Vec<f32>) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut normal = || {
        // Sum of twelve uniform numbers: close enough to normal, and the same on every machine.
        (0..12).map(|_| f64::from(rand::Rng::next_u32(&mut rng)) / f64::from(u32::MAX)).sum::<f64>()
            - 6.0
    };
    let mut ranks: Vec<(f64, usize)> = (0..vocabulary).map(|token| (normal(), token)).collect();
    ranks.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut rank = vec![0; vocabulary];
    ranks.iter().zip(1..).for_each(|(&(_, token), position)| rank[token] = position);
    let pair = |token: usize| {
        let (a, b) = (normal(), normal());
        match shape {
            Shape::Peaked => (4.0 * a, 4.0 * a + b),
            Shape::Flat => (0.3 * a, 0.3 * b),
            Shape::Heavy => {
                let level = -1.1 * (rank[token] as f64).ln();
                (level, level + b)
            }
        }
    };
    (0..vocabulary).map(pair).map(|(p, q)| (p as f32, q as f32)).unzip()
}
