//! Storage of the distributions of many nodes: by support, exact or truncated.
//!
//! Problem: a distribution over a large vocabulary consists mostly of tokens that are never drawn,
//! and the softmax of single-precision logits does not need double precision.
//! Source: ours. A distribution is stored as weights times a scale. A softmax is a list of
//! single-precision powers, the largest of which is 1, times a double: the powers are the weights,
//! and the stored distribution equals the recorded one bit for bit. For distributions that do not
//! have this form (counts of n-grams) the weights are the probabilities.
//! Complexity: one pass, and for truncation a selection of the likeliest tokens.
//! Deviations: a distribution stored up to a mass below 1 contains the likeliest tokens with this
//! mass and all drafted tokens. Weights are rounded to a relative error of 1 − mass, and the
//! distribution is scaled to sum to 1.

use polydraft::{Distribution, Token};
use safetensors::tensor::Dtype;

use crate::trace::columns::{In, Out};
use crate::trace::{Error, Result};

/// A distribution in stored form.
pub(crate) struct Packed {
    /// `None` if the full vocabulary is stored.
    tokens: Vec<Token>,
    weights: Vec<f64>,
    scale: f64,
    /// Omitted probability.
    pub left_out: f64,
}

impl Packed {
    /// Packs a distribution up to `mass`, including the `drafted` tokens.
    pub fn new(probs: &Distribution, mass: f64, drafted: &[Token]) -> Self {
        let (tokens, probabilities) = probs.parts();
        let (weights, scale) = powers(probabilities);
        if mass >= 1.0 {
            return Self { tokens: tokens.to_vec(), weights, scale, left_out: 0.0 };
        }
        let mut retained = probs.nucleus(mass);
        retained.extend(drafted.iter().filter(|&&token| probs.probability(token) > 0.0));
        retained.sort_unstable();
        retained.dedup();
        let there: f64 = retained.iter().map(|&token| probs.probability(token)).sum();
        let left_out =
            if retained.len() == probs.support_size() { 0.0 } else { (1.0 - there).max(0.0) };
        let weight = |token: &Token| {
            let location =
                if tokens.is_empty() { Ok(*token as usize) } else { tokens.binary_search(token) };
            rounded(location.map_or(0.0, |location| weights[location]), 1.0 - mass)
        };
        let mut weights: Vec<f64> = retained.iter().map(weight).collect();
        let scale = 1.0 / weights.iter().sum::<f64>();
        // Zeros take less space than the indices of most tokens.
        if 2 * retained.len() > probs.vocabulary() {
            let mut all = vec![0.0; probs.vocabulary()];
            retained
                .drain(..)
                .zip(weights)
                .for_each(|(token, weight)| all[token as usize] = weight);
            weights = all;
        }
        Self { tokens: retained, weights, scale, left_out }
    }
}

/// Rounds a weight to single precision, with trailing zeros beyond a relative `error` of at least
/// 2^-24, because zeros compress well. A positive weight stays positive, because its token was
/// drafted.
fn rounded(weight: f64, error: f64) -> f64 {
    let bits = (weight as f32).to_bits();
    // Of 23 fraction bits, the last retained one has twice the error.
    let dropped = 23_i32.saturating_add(error.log2() as i32).clamp(0, 23) as u32;
    let half = if dropped == 0 { 0 } else { 1 << (dropped - 1) };
    let rounded = f32::from_bits((bits + half) >> dropped << dropped);
    f64::from(if weight > 0.0 { rounded.max(f32::MIN_POSITIVE) } else { rounded })
}

/// Returns single-precision weights and a scale whose products equal the probabilities bit for bit;
/// if there are none, the probabilities and 1.
fn powers(probabilities: &[f64]) -> (Vec<f64>, f64) {
    let scale = probabilities.iter().copied().fold(0.0, f64::max);
    let weights: Vec<f64> = probabilities.iter().map(|p| f64::from((p / scale) as f32)).collect();
    match weights.iter().zip(probabilities).all(|(weight, p)| weight * scale == *p) {
        true => (weights, scale),
        false => (probabilities.to_vec(), 1.0),
    }
}

/// Weights in the stored type.
enum Weights {
    F32(Vec<f32>),
    F64(Vec<f64>),
}

/// Distributions of all nodes; those of leaves are empty.
pub(crate) struct Distributions {
    /// Number of weights of each node.
    entries: Vec<u32>,
    scale: Vec<f64>,
    /// Tokens of the distributions that do not store the full vocabulary.
    tokens: Vec<Token>,
    weights: Weights,
    /// First token and first weight of each node.
    starts: Vec<(usize, usize)>,
}

impl Default for Distributions {
    fn default() -> Self {
        let weights = Weights::F64(Vec::new());
        Self {
            entries: Vec::new(),
            scale: Vec::new(),
            tokens: Vec::new(),
            weights,
            starts: Vec::new(),
        }
    }
}

impl Distributions {
    /// Appends the distribution of the next node.
    pub fn push(&mut self, probs: Option<Packed>) {
        let Some(Packed { tokens, weights, scale, .. }) = probs else {
            self.entries.push(0);
            return self.scale.push(0.0);
        };
        self.entries.push(weights.len() as u32);
        self.scale.push(scale);
        self.tokens.extend(tokens);
        if let Weights::F64(all) = &mut self.weights {
            all.extend(weights);
        }
    }

    /// Returns an upper bound of the size in bytes before compression.
    pub fn size(&self) -> usize {
        let weights = match &self.weights {
            Weights::F32(weights) => 4 * weights.len(),
            Weights::F64(weights) => 8 * weights.len(),
        };
        12 * self.entries.len() + 4 * self.tokens.len() + weights
    }

    pub fn write(&self, role: &str, vocabulary: usize, out: &mut Out) {
        out.add(format!("{role}.entries"), self.entries.iter().copied());
        out.add(format!("{role}.scale"), self.scale.iter().copied());
        match vocabulary <= 1 << 16 {
            true => {
                out.add(format!("{role}.tokens"), self.tokens.iter().map(|token| *token as u16))
            }
            false => out.add(format!("{role}.tokens"), self.tokens.iter().copied()),
        }
        let name = format!("{role}.weights");
        match &self.weights {
            Weights::F32(weights) => out.add(name, weights.iter().copied()),
            Weights::F64(weights) => {
                match weights.iter().all(|weight| f64::from(*weight as f32) == *weight) {
                    true => out.add(name, weights.iter().map(|weight| *weight as f32)),
                    false => out.add(name, weights.iter().copied()),
                }
            }
        }
    }

    /// Checks that there is a distribution exactly where `has` is true, and that the number of
    /// weights is correct.
    pub fn read(role: &str, vocabulary: usize, has: &[bool], columns: &In) -> Result<Self> {
        let name = |column: &str| format!("{role}.{column}");
        let entries: Vec<u32> = columns.column_of(&name("entries"), has.len())?;
        let scale: Vec<f64> = columns.column_of(&name("scale"), has.len())?;
        let (mut starts, mut begin) = (Vec::with_capacity(has.len()), (0_usize, 0_usize));
        for (node, (&entries, &has)) in entries.iter().zip(has).enumerate() {
            let entries = entries as usize;
            if has != (entries > 0) || entries > vocabulary {
                let expected = if has { format!("from 1 to {vocabulary}") } else { "0".to_owned() };
                let location = format!("{}, node {node} of the file", columns.at(&name("entries")));
                return Err(Error::content(location, expected, entries));
            }
            starts.push(begin);
            // Cannot overflow: at most 2^24 per node, and at most as many nodes as the file has
            // bytes.
            begin.0 += if entries < vocabulary { entries } else { 0 };
            begin.1 += entries;
        }
        let tokens = match columns.dtype(&name("tokens"))? {
            Dtype::U16 => columns
                .column_of::<u16>(&name("tokens"), begin.0)?
                .into_iter()
                .map(u32::from)
                .collect(),
            _ => columns.column_of(&name("tokens"), begin.0)?,
        };
        let weights = match columns.dtype(&name("weights"))? {
            Dtype::F32 => Weights::F32(columns.column_of(&name("weights"), begin.1)?),
            _ => Weights::F64(columns.column_of(&name("weights"), begin.1)?),
        };
        Ok(Self { entries, scale, tokens, weights, starts })
    }

    /// Returns the distribution of a node, if it has one.
    pub fn distribution(
        &self,
        node: usize,
        vocabulary: usize,
    ) -> Option<polydraft::Result<Distribution>> {
        let (entries, scale, begin) =
            (self.entries[node] as usize, self.scale[node], self.starts[node]);
        let tokens = match entries < vocabulary {
            true => self.tokens[begin.0..begin.0 + entries].to_vec(),
            false => Vec::new(),
        };
        let range = begin.1..begin.1 + entries;
        let mass = match &self.weights {
            Weights::F32(weights) => {
                weights[range].iter().map(|weight| f64::from(*weight) * scale).collect()
            }
            Weights::F64(weights) => weights[range].iter().map(|weight| weight * scale).collect(),
        };
        (entries > 0).then(|| Distribution::from_parts(vocabulary, tokens, mass))
    }
}

#[cfg(test)]
mod tests {
    use polydraft::Sampling;

    use super::*;

    fn again(probs: &Distribution, mass: f64, drafted: &[Token]) -> (Distribution, f64) {
        let packed = Packed::new(probs, mass, drafted);
        let left_out = packed.left_out;
        let (mut distributions, mut out) = (Distributions::default(), Out::default());
        distributions.push(None);
        distributions.push(Some(packed));
        distributions.write("draft", probs.vocabulary(), &mut out);
        let file = crate::trace::columns::unpack("x", &out.file("{}".to_owned()).unwrap()).unwrap();
        let columns = In::new("x", &file).unwrap();
        assert!(Distributions::read("draft", probs.vocabulary(), &[true, true], &columns).is_err());
        let distributions =
            Distributions::read("draft", probs.vocabulary(), &[false, true], &columns).unwrap();
        assert!(distributions.distribution(0, probs.vocabulary()).is_none());
        (distributions.distribution(1, probs.vocabulary()).unwrap().unwrap(), left_out)
    }

    #[test]
    fn exact_distributions_are_the_same_to_the_last_bit() {
        let logits: Vec<f32> = (0..500).map(|i| ((i * 193) % 500) as f32 * 0.037 - 3.0).collect();
        let top = |top_p, temperature| Sampling { top_p, temperature, ..Sampling::default() };
        let counted = Distribution::new(vec![1.0 / 3.0, 0.0, 0.2, 0.0, 7.0 / 15.0]).unwrap();
        let mut distributions = vec![counted, Distribution::one_hot(9, 4).unwrap()];
        for sampling in
            [top(1.0, 1.0), top(1.0, 0.37), top(0.8, 1.0), top(1.0, 0.0), top(1.0, 0.01)]
        {
            distributions.push(Distribution::from_logits(&logits, &sampling).unwrap());
        }
        for probs in distributions {
            let (read, left_out) = again(&probs, 1.0, &[]);
            assert_eq!((read.parts(), left_out), (probs.parts(), 0.0));
        }
    }

    #[test]
    fn rounds_to_the_requested_precision() {
        for error in [0.5, 0.1, 1e-2, 1e-4, 1e-9] {
            for weight in [1.0, 0.3, 0.999_999_94, 1e-30] {
                let relative = rounded(weight, error) / f64::from(weight as f32) - 1.0;
                assert!(relative.abs() <= error, "{weight} {error}: {relative}");
            }
        }
        assert_eq!(rounded(0.1, 0.0), f64::from(0.1_f32));
    }

    #[test]
    fn truncated_distributions_keep_likely_and_drafted_tokens() {
        let logits: Vec<f32> = (0..100_000).map(|i| -0.001 * i as f32).collect();
        let probs = Distribution::from_logits(&logits, &Sampling::default()).unwrap();
        let (read, left_out) = again(&probs, 0.99, &[5, 70_000]);
        assert!(left_out <= 0.01 && left_out > 0.009, "{left_out}");
        assert!(read.probability(70_000) > 0.0 && read.probability(69_999) == 0.0);
        assert!(read.support_size() < 5000, "{}", read.support_size());
        let ratio = read.probability(5) / probs.probability(5);
        assert!((ratio * (1.0 - left_out) - 1.0).abs() < 0.01, "{ratio}");
        assert!((read.parts().1.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        // Drafted tokens are stored even if the target almost excludes them.
        let unlikely =
            Distribution::new([vec![1.0 - 1e-60], vec![0.0; 9], vec![1e-60]].concat()).unwrap();
        let (read, _) = again(&unlikely, 0.99, &[10]);
        assert!(read.probability(10) > 0.0 && read.probability(10) < 1e-37);
        // Almost all tokens are stored, so the full vocabulary is; the others are zeros.
        let flat = Distribution::new([vec![0.001; 999], vec![0.001]].concat()).unwrap();
        let (read, left_out) = again(&flat, 0.9, &[]);
        assert!(
            read.parts().0.is_empty()
                && read.support_size() == 900
                && (left_out - 0.1).abs() < 1e-9
        );
        assert_eq!(again(&flat, 0.4, &[]).0.parts().0.len(), 400);
        // A distribution without tokens to omit is exact.
        let one = Distribution::one_hot(100_000, 3).unwrap();
        assert_eq!(again(&one, 0.5, &[]).0, one);
    }
}
