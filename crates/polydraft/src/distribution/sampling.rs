//! Sampling settings and the softmax: temperature, top-k, top-p, min-p.
//!
//! Problem: the softmax of `logits / temperature`, restricted to the tokens that the filters keep.
//! Source: the filters and their order (temperature, top-k, top-p, min-p) are those of Hugging Face
//! transformers (`generation/logits_process.py`); top-p is Holtzman et al. 2020, min-p is Nguyen et
//! al. 2024.
//! Complexity: two passes without filters; with filters one selection in linear time plus a sort of
//! the candidates that top-p examines.
//! Deviations: (1) exactly k tokens are kept, the lowest ids on a tie at the k-th rank, where
//! transformers keeps all tied tokens; (2) temperature 0 puts all mass on the largest logit, the
//! lowest id on a tie.

use std::cmp::Ordering;

use pulp::{Arch, NullaryFnOnce};
use serde::{Deserialize, Serialize};

use super::{Distribution, sum_in_lanes};
use crate::{Error, Result, Token};

/// Settings that turn a model's logits into the distribution that tokens are drawn from.
///
/// ```
/// use polydraft::{Distribution, Sampling};
///
/// let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
/// assert_eq!(Distribution::from_logits(&[0.0, 1.0, 0.5], &greedy)?, Distribution::one_hot(3, 1)?);
/// assert!(Sampling { top_p: 1.5, ..Sampling::default() }.validate().is_err());
/// # Ok::<(), polydraft::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// Divides the logits; 0 always takes the largest logit. Default 1.
    pub temperature: f64,
    /// Keeps only the k most likely tokens. Default: all.
    pub top_k: Option<usize>,
    /// Keeps the smallest set of most likely tokens with at least this total probability, in (0,
    /// 1]. Default 1: all.
    pub top_p: f64,
    /// Keeps the tokens with at least this fraction of the largest probability, in [0, 1]. Default
    /// 0: all.
    pub min_p: f64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 1.0, top_k: None, top_p: 1.0, min_p: 0.0 }
    }
}

impl Sampling {
    /// Checks that every setting is in range.
    ///
    /// # Errors
    /// The first setting that is out of range.
    pub fn validate(&self) -> Result<()> {
        let check = |valid: bool, setting, expected, got: String| {
            if valid { Ok(()) } else { Err(Error::Setting { setting, expected, got }) }
        };
        // `Debug`, because `Display` writes all digits of 1e300.
        let short = |value: f64| format!("{value:?}");
        let t = self.temperature;
        check(
            t == 0.0 || (1e-30..=1e30).contains(&t),
            "temperature",
            "0, or from 1e-30 to 1e30",
            short(t),
        )?;
        check(self.top_k != Some(0), "top_k", "at least 1", "0".to_owned())?;
        check(
            self.top_p > 0.0 && self.top_p <= 1.0,
            "top_p",
            "above 0, at most 1",
            short(self.top_p),
        )?;
        check((0.0..=1.0).contains(&self.min_p), "min_p", "from 0 to 1", short(self.min_p))
    }

    fn filters(&self) -> bool {
        self.top_k.is_some() || self.top_p < 1.0 || self.min_p > 0.0
    }
}

/// Data stored beside the probabilities.
#[derive(Debug, Clone, Default)]
pub(super) struct Scratch {
    /// Scratch buffer of the filters.
    candidates: Vec<(f32, Token)>,
    /// The confidence of a draft's distribution, if set: the estimated probability that the drawn
    /// token is accepted. At temperature 0, the token's probability at temperature 1.
    pub confidence: Option<f64>,
}

/// Always equal: not part of a distribution's value.
impl PartialEq for Scratch {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// Fills in the vocabulary, the tokens and their unnormalised masses, and returns the sum of the
/// masses. Checks first, so that an error leaves `distribution` as it was.
pub(super) fn fill(
    distribution: &mut Distribution,
    logits: &[f32],
    sampling: &Sampling,
) -> Result<f64> {
    sampling.validate()?;
    let max = largest(logits)?;
    distribution.vocabulary = logits.len();
    distribution.tokens.clear();
    distribution.scratch.confidence = None;
    if sampling.temperature == 0.0 {
        let argmax = logits.iter().position(|x| *x == max).unwrap_or(0);
        distribution.tokens.push(argmax as Token);
        distribution.mass.clear();
        distribution.mass.push(1.0);
        Ok(1.0)
    } else if sampling.filters() {
        Ok(filtered(distribution, logits, max, sampling))
    } else {
        // The old contents are overwritten.
        distribution.mass.resize(logits.len(), 0.0);
        let mass = &mut distribution.mass;
        Ok(Arch::new().dispatch(Softmax {
            mass,
            logits,
            max,
            rate: (1.0 / sampling.temperature) as f32,
        }))
    }
}

/// True for NaN and +∞.
fn is_invalid_logit(x: f32) -> bool {
    x.is_nan() | (x == f32::INFINITY)
}

/// The largest logit.
fn largest(logits: &[f32]) -> Result<f32> {
    let operation = "distribution from logits";
    if logits.is_empty() || logits.len() > Token::MAX as usize {
        let expected = "from 1 to 2^32 - 1".to_owned();
        return Err(Error::Length { operation, expected, got: logits.len() });
    }
    let (max, valid) = Arch::new().dispatch(Largest(logits));
    if !valid {
        let index = logits.iter().position(|x| is_invalid_logit(*x)).unwrap_or(0);
        let got = f64::from(logits[index]);
        return Err(Error::Entry { operation, index, expected: "a number below +infinity", got });
    }
    if max == f32::NEG_INFINITY {
        let got = f64::from(max);
        return Err(Error::Entry {
            operation,
            index: 0,
            expected: "finite here or in another entry",
            got,
        });
    }
    Ok(max)
}

/// Kernel: the maximum of the logits, and false if any is NaN or +∞.
struct Largest<'a>(&'a [f32]);

impl NullaryFnOnce for Largest<'_> {
    type Output = (f32, bool);

    #[inline(always)]
    fn call(self) -> (f32, bool) {
        // Lanes let the compiler use vector instructions; the invalid flags are integers for the
        // same reason.
        let (chunks, rest) = self.0.as_chunks::<32>();
        let (mut lanes, mut invalid) = ([f32::NEG_INFINITY; 32], [0_u32; 32]);
        for chunk in chunks {
            for i in 0..32 {
                invalid[i] |= u32::from(is_invalid_logit(chunk[i]));
                lanes[i] = if chunk[i] > lanes[i] { chunk[i] } else { lanes[i] };
            }
        }
        let max = lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| a.max(b));
        (max, invalid == [0; 32] && !rest.iter().any(|x| is_invalid_logit(*x)))
    }
}

/// The probability of the most likely token at temperature 1, for logits that [`fill`] has
/// validated.
pub(super) fn confidence(logits: &[f32]) -> f64 {
    let (max, _) = Arch::new().dispatch(Largest(logits));
    1.0 / Arch::new().dispatch(Total { logits, max })
}

/// Kernel: Σ exp(x − max) over all logits.
struct Total<'a> {
    logits: &'a [f32],
    max: f32,
}

impl NullaryFnOnce for Total<'_> {
    type Output = f64;

    #[inline(always)]
    fn call(self) -> f64 {
        let Self { logits, max } = self;
        let (chunks, rest) = logits.as_chunks::<32>();
        let mut lanes = [0.0_f32; 32];
        for chunk in chunks {
            for (lane, x) in lanes.iter_mut().zip(chunk) {
                *lane += exp(x - max);
            }
        }
        lanes
            .iter()
            .map(|sum| f64::from(*sum))
            .chain(rest.iter().map(|x| f64::from(exp(x - max))))
            .sum()
    }
}

/// Kernel: writes exp((x − max)·rate) of every logit to `mass` and returns the sum.
struct Softmax<'a> {
    /// One output per logit.
    mass: &'a mut [f64],
    logits: &'a [f32],
    max: f32,
    rate: f32,
}

impl NullaryFnOnce for Softmax<'_> {
    type Output = f64;

    #[inline(always)]
    fn call(self) -> f64 {
        /// Fits the L1 cache; each of the loops below is simple enough to vectorise.
        const CHUNK: usize = 256;
        let Self { mass, logits, max, rate } = self;
        let mut sum = 0.0;
        let mut powers = [0.0_f32; CHUNK];
        for (input, output) in logits.chunks(CHUNK).zip(mass.chunks_mut(CHUNK)) {
            for (power, x) in powers.iter_mut().zip(input) {
                *power = exp((x - max) * rate);
            }
            for (output, power) in output.iter_mut().zip(&powers) {
                *output = f64::from(*power);
            }
            sum += sum_in_lanes(output, |power| power);
        }
        sum
    }
}

/// e^t for t ≤ 0 in single precision: error below 2 units in the last place, 0 below −87. Without
/// branches or calls, so that the compiler vectorises the loops around it.
#[inline(always)]
fn exp(t: f32) -> f32 {
    /// Adding this rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = if t > -87.0 { t } else { -87.0 };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let k = shifted - ROUND;
    let f = (clamped - k * LN2_HIGH) - k * LN2_LOW;
    // Cephes' polynomial for expf.
    let mut series = 1.987_569_1e-4_f32;
    series = series * f + 1.398_199_9e-3;
    series = series * f + 8.333_452e-3;
    series = series * f + 4.166_579_6e-2;
    series = series * f + 1.666_666_5e-1;
    series = series * f + 0.5;
    let value = series * f * f + f + 1.0;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    if t > -87.0 { value * power } else { 0.0 }
}

/// Stores the tokens that pass the filters, ascending, with exp((x − max)/temperature), and returns
/// the sum of these.
fn filtered(distribution: &mut Distribution, logits: &[f32], max: f32, sampling: &Sampling) -> f64 {
    let rate = (1.0 / sampling.temperature) as f32;
    let candidates = &mut distribution.scratch.candidates;
    candidates.clear();
    candidates.extend(
        logits.iter().zip(0..).filter(|(x, _)| **x > f32::NEG_INFINITY).map(|(&x, t)| (x, t)),
    );
    if let Some(k) = sampling.top_k.filter(|k| *k < candidates.len()) {
        candidates.select_nth_unstable_by(k, most_likely_first);
        candidates.truncate(k);
    }
    candidates.iter_mut().for_each(|c| c.0 = exp((c.0 - max) * rate));
    candidates.retain(|c| c.0 > 0.0);
    if sampling.top_p < 1.0 {
        let total: f64 = candidates.iter().map(|c| f64::from(c.0)).sum();
        let length = smallest_prefix(candidates, sampling.top_p * total);
        candidates.truncate(length);
    }
    if sampling.min_p > 0.0 {
        // The largest weight is exp(0) = 1.
        candidates.retain(|c| f64::from(c.0) >= sampling.min_p);
    }
    candidates.sort_unstable_by_key(|c| c.1);
    distribution.mass.clear();
    distribution.mass.extend(candidates.iter().map(|c| f64::from(c.0)));
    if candidates.len() < logits.len() {
        distribution.tokens.extend(candidates.iter().map(|c| c.1));
    }
    distribution.mass.iter().sum()
}

/// Order by falling probability, then by token id.
fn most_likely_first<P: Into<f64> + Copy>(a: &(P, Token), b: &(P, Token)) -> Ordering {
    b.0.into().total_cmp(&a.0.into()).then(a.1.cmp(&b.1))
}

/// Sorts the smallest prefix of `candidates` by falling probability that reaches `mass`, and
/// returns its length.
pub(super) fn smallest_prefix<P: Into<f64> + Copy>(
    candidates: &mut [(P, Token)],
    mass: f64,
) -> usize {
    let (mut start, mut width, mut sum) = (0, 256, 0.0);
    while start < candidates.len() {
        let rest = &mut candidates[start..];
        let width_here = width.min(rest.len());
        if width_here < rest.len() {
            rest.select_nth_unstable_by(width_here, most_likely_first);
        }
        rest[..width_here].sort_unstable_by(most_likely_first);
        for (index, candidate) in rest[..width_here].iter().enumerate() {
            sum += candidate.0.into();
            if sum >= mass {
                return start + index + 1;
            }
        }
        start += width_here;
        width *= 4;
    }
    candidates.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_accurate() {
        for i in 0..870_000 {
            let t = -1e-4 * i as f32;
            let exact = f64::from(t).exp();
            assert!((f64::from(exp(t)) - exact).abs() <= 1.3e-7 * exact, "{t}");
        }
        assert_eq!((exp(0.0), exp(f32::NEG_INFINITY), exp(-1000.0)), (1.0, 0.0, 0.0));
    }
}
