//! Expected acceptance of the draft, fitted to the output as it is generated.
//!
//! Problem: estimate the probability that a drafted token is rejected, before it is drawn, from the
//! draft's uncertainty there: u = 1 − its confidence ([`Distribution::confidence`]).
//! Source: ours; the leaf rule's estimate κ·u ([`stop_below`](super::super::stop_below)), fitted.
//! Method: a line a + b·s, s = u^0.7, by least squares over the verified nodes, with exponential
//! forgetting, and a prior that counts as a few nodes: half of them certain and accepted, half
//! uncertain and rejected twice as often as the prior's average. A draft whose confidence carries
//! no information gets a flat line, so its uncertain nodes are tried too.
//! Deviations: none.
//!
//! [`Distribution::confidence`]: crate::Distribution::confidence

/// Statistics of rejections, and the line fitted to them.
#[derive(Debug, Clone, Default)]
pub(super) struct Acceptance {
    /// Sums over the prior's nodes, and over the verified ones: 1, s, s², r and s·r, where r is 1
    /// where the token was rejected.
    sums: [[f64; 5]; 2],
    /// The coefficients a and b.
    line: (f64, f64),
    /// The average probability that a token is rejected.
    pub average: f64,
}

/// Exponent of u: where the draft is uncertain the target often is too, and they agree by chance.
/// With exponent 1 gains are 0.003 less, on code at T = 0 0.01 less.
const EXPONENT: f64 = 0.7;
/// Weight of the prior, in nodes: with three the quantised self-draft of a target in f32 lost up to
/// 0.04.
const PRIOR_NODES: f64 = 5.0;
/// Decay per node, because outputs change. Within 64 tokens the value makes no difference.
const DECAY: f64 = 0.99;
/// Minimum rejection probability, so that divisions by it stay finite.
const MIN_REJECTION: f64 = 0.01;

impl Acceptance {
    /// Starts with a prior rejection rate, at most 0.5.
    pub fn new(rejected: f64) -> Self {
        let prior =
            add(add([0.0; 5], 0.0, 0.0, 0.5 * PRIOR_NODES), 1.0, 2.0 * rejected, 0.5 * PRIOR_NODES);
        let mut new = Self { sums: [prior, [0.0; 5]], ..Self::default() };
        new.fit();
        new
    }

    /// The probability that a token is rejected where the draft's uncertainty is `uncertain`.
    pub fn rejection(&self, uncertain: f64) -> f64 {
        (self.line.0 + self.line.1 * uncertain.powf(EXPONENT)).clamp(MIN_REJECTION, 1.0)
    }

    /// Records whether the token at a verified node was rejected.
    pub fn observe(&mut self, uncertain: f64, rejected: bool) {
        let past = self.sums[1].map(|sum| DECAY * sum);
        self.sums[1] = add(past, uncertain.powf(EXPONENT), f64::from(u8::from(rejected)), 1.0);
        self.fit();
    }

    fn fit(&mut self) {
        let [prior, seen] = self.sums;
        let [n, s, ss, r, sr] = std::array::from_fn(|sum| prior[sum] + seen[sum]);
        // The prior has two distinct values of s, so the line is determined.
        let slope = ((sr - s * r / n) / (ss - s * s / n)).max(0.0);
        self.line = ((r - slope * s) / n, slope);
        self.average = (r / n).clamp(MIN_REJECTION, 1.0);
    }
}

fn add(sums: [f64; 5], s: f64, r: f64, nodes: f64) -> [f64; 5] {
    let new = [1.0, s, s * s, r, s * r];
    std::array::from_fn(|sum| sums[sum] + nodes * new[sum])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_converge_to_the_rejection_rate() {
        for truth in [0.02, 0.3, 0.95] {
            let mut acceptance = Acceptance::new(0.5);
            let before = acceptance.rejection(0.6);
            for n in 0..400 {
                acceptance.observe(0.6, (f64::from(n) * truth).fract() + truth >= 1.0);
            }
            let after = acceptance.rejection(0.6);
            assert!((after - truth).abs() < 0.04, "{truth}: {before} became {after}");
        }
    }

    /// For any prior and any history, estimates are probabilities, and more confident drafts are
    /// not expected to be rejected more often.
    #[test]
    fn estimates_are_probabilities_that_rise_with_uncertainty() {
        for rejected in [0.0, 0.3, 0.5] {
            let mut acceptance = Acceptance::new(rejected);
            for n in 0..300 {
                acceptance.observe([0.0, 0.5, 1.0][n % 3], n > 200);
                let estimates = [0.0, 0.4, 1.0].map(|uncertain| acceptance.rejection(uncertain));
                assert!(
                    estimates.iter().all(|p| (MIN_REJECTION..=1.0).contains(p)),
                    "{estimates:?}"
                );
                assert!(estimates.is_sorted(), "{estimates:?}");
            }
        }
    }

    /// The expectation for nodes with more uncertainty than any so far depends on whether
    /// rejections were more frequent at uncertain nodes or equally frequent everywhere.
    #[test]
    fn slope_follows_the_correlation_of_confidence_and_rejection() {
        let fitted = |sure: f64, uncertain: f64| {
            let mut acceptance = Acceptance::new(0.5);
            for n in 0..200 {
                let (u, truth) = [(0.1, sure), (0.6, uncertain)][n % 2];
                acceptance.observe(u, ((n / 2) as f64 * truth).fract() + truth >= 1.0);
            }
            acceptance
        };
        let (flat, steep) = (fitted(0.75, 0.75), fitted(0.25, 0.75));
        assert!((flat.rejection(0.9) - 0.75).abs() < 0.1, "{flat:?}");
        assert!((flat.rejection(0.1) - 0.75).abs() < 0.1, "{flat:?}");
        assert!(steep.rejection(0.9) > 0.85 && steep.rejection(0.1) < 0.3, "{steep:?}");
    }

    #[test]
    fn confident_but_rejected_drafts_are_detected() {
        let mut acceptance = Acceptance::new(0.5);
        (0..30).for_each(|_| acceptance.observe(0.0, true));
        assert!(acceptance.rejection(0.0) > 0.9);
    }
}
