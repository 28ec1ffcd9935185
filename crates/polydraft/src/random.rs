//! Random decisions, drawn or exactly enumerated by the same algorithm code.
//!
//! Every algorithm of the crate makes its decisions through a [`RandomSource`]. Any [`rand::Rng`]
//! is a `RandomSource` that draws them; [`enumerate`] runs a function once for every possible
//! series of decisions and returns each run's exact probability. Conformance tests therefore
//! enumerate the code that runs in production.

use crate::{Distribution, Token};

/// A set of weighted outcomes `0..`, of which one is chosen in proportion to its weight.
pub trait Outcomes {
    /// Draws an outcome; `uniform` returns independent uniform numbers in `[0, 1)`.
    fn draw(&self, uniform: &mut dyn FnMut() -> f64) -> usize;

    /// The weight of every outcome, not necessarily normalised. Used by enumeration only.
    fn weights(&self) -> Vec<f64>;

    /// True if the outcomes are the tokens of a vocabulary. An enumeration may leave those
    /// decisions out.
    fn are_tokens(&self) -> bool {
        false
    }
}

impl Outcomes for [f64] {
    fn draw(&self, uniform: &mut dyn FnMut() -> f64) -> usize {
        let mut left = uniform() * self.iter().sum::<f64>();
        let mut last = 0;
        for (index, &weight) in self.iter().enumerate() {
            if weight > 0.0 {
                last = index;
                if left < weight {
                    return index;
                }
                left -= weight;
            }
        }
        // Rounding can leave a remainder of one ulp, which counts for the last outcome with weight.
        last
    }

    fn weights(&self) -> Vec<f64> {
        self.to_vec()
    }
}

/// Source of all random decisions.
pub trait RandomSource {
    /// Returns true with the given probability (values outside `[0, 1]` are clamped, NaN counts as
    /// 0).
    fn coin(&mut self, probability: f64) -> bool;

    /// Returns one of the outcomes, in proportion to its weight.
    fn choose(&mut self, outcomes: &dyn Outcomes) -> usize;

    /// Returns an index into `weights`, in proportion to the weights (≥ 0, not necessarily
    /// normalised).
    fn pick(&mut self, weights: &[f64]) -> usize {
        self.choose(&weights)
    }

    /// Draws the key of a sequence's shared randomness ([`crate::gumbel`]); `None` under
    /// enumeration, which enumerates the outcomes themselves instead of keys.
    fn shared_key(&mut self) -> Option<[u64; 2]> {
        let mut half = || (self.choose(&Bits) as u64) << 32 | self.choose(&Bits) as u64;
        Some([half(), half()])
    }

    /// Returns the first `count` tokens of `probs` by shared randomness (Gumbel-top-k), at this
    /// depth below a draft's root; `None` without shared randomness.
    fn gumbel_top(
        &mut self,
        _depth: usize,
        _distribution: &Distribution,
        _count: usize,
    ) -> Option<Vec<Token>> {
        None
    }
}

/// 32 random bits.
struct Bits;

impl Outcomes for Bits {
    fn draw(&self, uniform: &mut dyn FnMut() -> f64) -> usize {
        (uniform() * (1_u64 << 32) as f64) as usize
    }

    fn weights(&self) -> Vec<f64> {
        vec![1.0]
    }
}

impl<T: Outcomes + ?Sized> Outcomes for &T {
    fn draw(&self, uniform: &mut dyn FnMut() -> f64) -> usize {
        (**self).draw(uniform)
    }

    fn weights(&self) -> Vec<f64> {
        (**self).weights()
    }

    fn are_tokens(&self) -> bool {
        (**self).are_tokens()
    }
}

/// A uniform number in `[0, 1)` with 53 random bits.
fn uniform<R: rand::Rng + ?Sized>(rng: &mut R) -> f64 {
    (rng.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
}

impl<R: rand::Rng + ?Sized> RandomSource for R {
    fn coin(&mut self, probability: f64) -> bool {
        uniform(self) < probability
    }

    fn choose(&mut self, outcomes: &dyn Outcomes) -> usize {
        outcomes.draw(&mut || uniform(self))
    }
}

/// One decision of a run under enumeration: the outcomes still to be tried, the current one last.
struct Decision {
    open: Vec<(usize, f64)>,
}

/// The [`RandomSource`] of [`enumerate`]: replays a prefix of decisions and records new ones. Used
/// directly for experiments that do not fit into one function.
///
/// ```
/// use polydraft::RandomSource;
/// use polydraft::random::Enumerator;
/// let mut rng = Enumerator::new();
/// let mut both = 0.0;
/// loop {
///     if rng.coin(0.5) && rng.coin(0.25) {
///         both += rng.probability();
///     }
///     if !rng.advance() {
///         break;
///     }
/// }
/// assert_eq!(both, 0.125);
/// ```
#[derive(Default)]
pub struct Enumerator {
    decisions: Vec<Decision>,
    made: usize,
}

impl Enumerator {
    /// Creates an enumerator before its first run.
    pub fn new() -> Self {
        Self::default()
    }

    /// The probability of the decisions of this run.
    pub fn probability(&self) -> f64 {
        self.decisions.iter().filter_map(|d| d.open.last()).map(|outcome| outcome.1).product()
    }

    /// Starts the next run; returns false if all have been tried.
    pub fn advance(&mut self) -> bool {
        self.made = 0;
        // Depth first: drops the outcome just tried, and every decision that has none left.
        while let Some(decision) = self.decisions.last_mut() {
            decision.open.pop();
            if !decision.open.is_empty() {
                return true;
            }
            self.decisions.pop();
        }
        false
    }

    fn decide(&mut self, weights: impl FnOnce() -> Vec<f64>) -> usize {
        if self.made == self.decisions.len() {
            let weights = weights();
            let total: f64 = weights.iter().sum();
            let mut open: Vec<_> = weights
                .iter()
                .enumerate()
                // NaN weights are kept, so that the total probability becomes NaN and the error is
                // visible.
                .filter(|(_, w)| **w > 0.0 || w.is_nan())
                .map(|(i, w)| (i, w / total))
                .rev()
                .collect();
            if open.is_empty() {
                open.push((0, 1.0));
            }
            self.decisions.push(Decision { open });
        }
        self.made += 1;
        self.decisions[self.made - 1].open.last().map_or(0, |outcome| outcome.0)
    }
}

impl RandomSource for Enumerator {
    fn coin(&mut self, probability: f64) -> bool {
        let probability = if probability > 0.0 { probability.min(1.0) } else { 0.0 };
        self.decide(|| vec![1.0 - probability, probability]) == 1
    }

    fn choose(&mut self, outcomes: &dyn Outcomes) -> usize {
        self.decide(|| outcomes.weights())
    }

    fn shared_key(&mut self) -> Option<[u64; 2]> {
        None
    }
}

/// For code that takes a source by value.
impl RandomSource for &mut Enumerator {
    fn coin(&mut self, probability: f64) -> bool {
        (**self).coin(probability)
    }

    fn choose(&mut self, outcomes: &dyn Outcomes) -> usize {
        (**self).choose(outcomes)
    }

    fn shared_key(&mut self) -> Option<[u64; 2]> {
        None
    }
}

/// A [`RandomSource`] that always takes the first possible outcome, for code whose result must not
/// depend on it.
#[cfg(feature = "conformance")]
pub(crate) struct FirstOutcome;

#[cfg(feature = "conformance")]
impl RandomSource for FirstOutcome {
    fn coin(&mut self, probability: f64) -> bool {
        probability >= 1.0
    }

    fn choose(&mut self, outcomes: &dyn Outcomes) -> usize {
        outcomes.weights().iter().position(|weight| *weight > 0.0).unwrap_or(0)
    }
}

/// Runs `experiment` once for every series of decisions that has positive probability.
///
/// Returns each run's exact probability and result; the probabilities sum to 1. Nothing but the
/// decisions may change between runs of `experiment`.
///
/// ```
/// use polydraft::{RandomSource, enumerate};
/// let heads = enumerate(|rng| (0..3).filter(|_| rng.coin(0.5)).count());
/// let three: f64 = heads.iter().filter(|(_, n)| *n == 3).map(|(p, _)| p).sum();
/// assert_eq!(three, 0.125);
/// ```
pub fn enumerate<T>(mut experiment: impl FnMut(&mut Enumerator) -> T) -> Vec<(f64, T)> {
    let mut rng = Enumerator::new();
    let mut results = Vec::new();
    loop {
        let result = experiment(&mut rng);
        results.push((rng.probability(), result));
        if !rng.advance() {
            return results;
        }
    }
}
