//! Rotary embedding, read from the metadata.
//!
//! Source: Su et al. 2021 (RoFormer); Chen et al. 2023 (linear scaling); Peng et al. 2023 (YaRN);
//! keys and defaults of llama.cpp. Llama 3 has its own scaling in a tensor, `rope_freqs.weight`:
//! frequency i is divided by its number i.

use super::Architecture;
use super::fields::Fields;
use crate::Result;
use crate::error::Fault;

/// Pairs of a head's numbers that are rotated. The order of rows in the weights of a file matches
/// its pairs; [`deinterleave`](crate::deinterleave) converts from `Neighbours` to `Halves`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopePairs {
    /// Number 2i with number 2i + 1.
    Neighbours,
    /// Number i with number i + D/2, as in Hugging Face's layout.
    Halves,
}

/// Settings of the rotary embedding: frequency i is base^(−2i / dimensions), divided by
/// `factors[i]`, then scaled.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeSettings {
    /// Base of the frequencies.
    pub base: f64,
    /// Number of leading numbers of a head that are rotated.
    pub dimensions: usize,
    /// Pairs that are rotated.
    pub pairs: RopePairs,
    /// Scaling of frequencies for contexts longer than in training.
    pub scaling: RopeScaling,
    /// Divisors of the frequencies, `[dimensions / 2]`.
    pub factors: Option<Vec<f32>>,
    /// Factor of cosines and sines.
    pub amplitude: f64,
}

/// Scaling of all frequencies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// All frequencies are divided by `factor`.
    Linear {
        /// Extension of the context, relative to training.
        factor: f64,
    },
    /// Low frequencies are divided by `factor`, high ones are unchanged, and those between are
    /// interpolated. The gain of YaRN is part of [`amplitude`](RopeSettings::amplitude).
    Yarn {
        /// Extension of the context, relative to training.
        factor: f64,
        /// Number of rotations over the training context above which a frequency is unchanged.
        fast: f64,
        /// Number of rotations below which a frequency is fully scaled.
        slow: f64,
        /// Context length in training.
        original: usize,
    },
}

impl RopeSettings {
    pub(super) fn read(fields: &Fields, head: usize, context: usize) -> Result<Self> {
        const DIMENSIONS: &str = "rope.dimension_count";
        let dimensions = fields.size_or(DIMENSIONS, head, head)?;
        // All five architectures rotate full heads, which llama.cpp asserts.
        if dimensions != head || !head.is_multiple_of(2) {
            let expected = format!("the width of a head, {head}, which must be even");
            return Err(fields.invalid_key(DIMENSIONS, expected, dimensions.to_string()));
        }
        let pairs = match fields.architecture {
            Architecture::Llama => RopePairs::Neighbours,
            _ => RopePairs::Halves,
        };
        let (scaling, gain) = scaling(fields, context)?;
        let amplitude = gain * fields.positive_or("rope.scaling.attn_factor", 1.0)?;
        let factors = match fields.architecture {
            // llama.cpp reads factors for this architecture only.
            Architecture::Llama => factors(fields, dimensions / 2)?,
            _ => None,
        };
        let base = fields.positive_or("rope.freq_base", 10_000.0)?;
        Ok(Self { base, dimensions, pairs, scaling, factors, amplitude })
    }

    /// Reads the settings of layers with a sliding window, if they differ: Gemma 3 has another base
    /// there, and no scaling.
    pub(super) fn for_window(fields: &Fields, rope: &Self) -> Result<Option<Self>> {
        let (default, scaling) = match fields.architecture {
            Architecture::Gemma3 => (10_000.0, RopeScaling::None),
            _ => (rope.base, rope.scaling),
        };
        let base = fields.positive_or("rope.freq_base_swa", default)?;
        let settings = Self { base, scaling, ..rope.clone() };
        Ok(Some(settings).filter(|settings| settings != rope))
    }
}

/// Reads the scaling, and its gain.
fn scaling(fields: &Fields, context: usize) -> Result<(RopeScaling, f64)> {
    const TYPE: &str = "rope.scaling.type";
    let kind = fields.str_or(TYPE, "linear")?;
    // The second key is the old name. 0 stands for no scaling.
    let key = ["rope.scaling.factor", "rope.scale_linear"].into_iter().find(|key| fields.has(key));
    let factor = match key {
        Some(key) if fields.finite_or(key, 0.0)? != 0.0 => fields.positive(key)?,
        _ => 1.0,
    };
    match kind {
        "none" => Ok((RopeScaling::None, 1.0)),
        "linear" if factor == 1.0 => Ok((RopeScaling::None, 1.0)),
        "linear" => Ok((RopeScaling::Linear { factor }, 1.0)),
        "yarn" => {
            for key in ["yarn_log_multiplier", "yarn_ext_factor"] {
                let key = format!("rope.scaling.{key}");
                if fields.has(&key) {
                    return Err(fields.invalid_key(
                        &key,
                        "no such key with this architecture",
                        "one",
                    ));
                }
            }
            let original =
                fields.size_or("rope.scaling.original_context_length", context, 1 << 30)?;
            let fast = fields.positive_or("rope.scaling.yarn_beta_fast", 32.0)?;
            let slow = fields.positive_or("rope.scaling.yarn_beta_slow", 1.0)?;
            // llama.cpp divides by this gain on loading, multiplies by it in the rotation, and
            // multiplies once more for factors above 1. One gain remains.
            let gain = if factor > 1.0 { 1.0 + 0.1 * factor.ln() } else { 1.0 };
            // Another gain in the file replaces it, as in transformers; llama.cpp ignores it.
            let gain = fields.positive_or("rope.scaling.yarn_attn_factor", gain)?;
            Ok((RopeScaling::Yarn { factor, fast, slow, original }, gain))
        }
        other => Err(fields.invalid_key(TYPE, "none, linear or yarn", crate::error::shown(other))),
    }
}

fn factors(fields: &Fields, count: usize) -> Result<Option<Vec<f32>>> {
    const NAME: &str = "rope_freqs.weight";
    let Some(tensor) = fields.gguf.find(NAME) else { return Ok(None) };
    tensor.expect_shape(&[count])?;
    let factors = tensor.dequantize()?;
    match factors.iter().find(|factor| !(factor.is_finite() && **factor > 0.0)) {
        None => Ok(Some(factors)),
        Some(factor) => {
            Err(Fault::tensor(NAME, "positive numbers", factor.to_string()).at(tensor.path()))
        }
    }
}
