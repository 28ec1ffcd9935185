//! Mixtures of two distributions.

use super::{Distribution, Token};
use crate::{Error, Result};

impl Distribution {
    /// The mixture (1 − share) · self + share · other.
    ///
    /// ```
    /// use polydraft::Distribution;
    ///
    /// let probs = Distribution::new(vec![0.5, 0.5, 0.0])?;
    /// let mixed = probs.mixed(&Distribution::one_hot(3, 2)?, 0.2)?;
    /// assert_eq!(mixed.to_vec(), [0.4, 0.4, 0.2]);
    /// # Ok::<(), polydraft::Error>(())
    /// ```
    ///
    /// # Errors
    /// Vocabularies of different sizes; a share outside 0 to 1.
    pub fn mixed(&self, other: &Self, share: f64) -> Result<Self> {
        if self.vocabulary != other.vocabulary {
            return Err(Error::Length {
                operation: "mixture of distributions",
                expected: self.vocabulary.to_string(),
                got: other.vocabulary,
            });
        }
        if !(0.0..=1.0).contains(&share) {
            return Err(Error::Setting {
                setting: "share of a mixture",
                expected: "from 0 to 1",
                got: share.to_string(),
            });
        }
        let rest = 1.0 - share;
        if self.is_dense() {
            let mut mass: Vec<f64> = self.mass.iter().map(|p| rest * p).collect();
            other.support().for_each(|(token, p)| mass[token as usize] += share * p);
            return Self::new(mass);
        }
        let capacity = self.support_size + other.support_size;
        let (mut tokens, mut mass) = (Vec::with_capacity(capacity), Vec::with_capacity(capacity));
        let mut add = |token: Token, p: f64| {
            // A sparse distribution stores no zeros and no near-zeros.
            if p > 1e-290 {
                tokens.push(token);
                mass.push(p);
            }
        };
        let mut others = other.support().peekable();
        for (token, p) in self.support() {
            while let Some((token, p)) = others.next_if(|next| next.0 < token) {
                add(token, share * p);
            }
            let same = others.next_if(|next| next.0 == token).map_or(0.0, |next| next.1);
            add(token, rest * p + share * same);
        }
        others.for_each(|(token, p)| add(token, share * p));
        Self::from_parts(self.vocabulary, tokens, mass)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_probabilities_token_by_token() {
        let dense = Distribution::new(vec![0.1; 10]).unwrap();
        let some = |tokens: &[Token], mass: &[f64]| {
            Distribution::from_parts(10, tokens.to_vec(), mass.to_vec()).unwrap()
        };
        let sparse = some(&[2, 5], &[0.25, 0.75]);
        let disjoint = some(&[0, 9], &[0.5, 0.5]);
        let overlapping = some(&[1, 5, 7], &[0.2, 0.3, 0.5]);
        let all = [dense, sparse, disjoint, overlapping];
        for a in &all {
            for b in &all {
                for share in [0.0, 1e-3, 0.4, 1.0] {
                    let mixed = a.mixed(b, share).unwrap();
                    for token in 0..10 {
                        let expected =
                            (1.0 - share) * a.probability(token) + share * b.probability(token);
                        assert!((mixed.probability(token) - expected).abs() < 1e-15);
                    }
                }
            }
        }
    }

    #[test]
    fn rejects_other_vocabularies_and_shares_out_of_range() {
        let two = Distribution::new(vec![0.5, 0.5]).unwrap();
        let three = Distribution::one_hot(3, 1).unwrap();
        assert!(two.mixed(&three, 0.5).unwrap_err().to_string().contains("expected 2"));
        for share in [-0.1, 1.1, f64::NAN] {
            assert!(two.mixed(&two, share).unwrap_err().to_string().contains("share"));
        }
    }
}
