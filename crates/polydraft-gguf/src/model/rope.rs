//! Rotary positions as the metadata describes them.
//!
//! Source: Su et al. 2021 (RoFormer); Chen et al. 2023 (linear); Peng et al. 2023 (YaRN);
//! llama.cpp's keys and defaults. Llama 3's own scaling is no key but a tensor,
//! `rope_freqs.weight`: frequency i is divided by its number i.

use super::Architecture;
use super::fields::Fields;
use crate::Result;
use crate::error::Fault;

/// Which numbers of a head are turned together. The rows of the weights are in the order that this
/// needs: [`deinterleave`](crate::deinterleave) leads from the first to the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopePairs {
    /// Number 2i with number 2i + 1.
    Neighbours,
    /// Number i with number i + D/2, as in Hugging Face's layout.
    Halves,
}

/// How queries and keys are rotated: frequency i is base^(−2i / dimensions), divided by
/// `factors[i]`, then scaled.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeSettings {
    /// Base of the frequencies.
    pub base: f64,
    /// How many numbers of a head are rotated, from its first.
    pub dimensions: usize,
    /// Which are turned together.
    pub pairs: RopePairs,
    /// What is done to the frequencies for contexts longer than those of the training.
    pub scaling: RopeScaling,
    /// Divides the frequencies one by one, `[dimensions / 2]`.
    pub factors: Option<Vec<f32>>,
    /// Cosines and sines are multiplied by this.
    pub amplitude: f64,
}

/// A change of all frequencies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    /// None.
    None,
    /// All divided by `factor`.
    Linear {
        /// By how much the context is longer.
        factor: f64,
    },
    /// Low ones divided by `factor`, high ones kept, those between mixed; its gain is in
    /// [`amplitude`](RopeSettings::amplitude).
    Yarn {
        /// By how much the context is longer.
        factor: f64,
        /// Rotations over the training's context above which a frequency is kept.
        fast: f64,
        /// Rotations below which it is scaled.
        slow: f64,
        /// The context of the training.
        original: usize,
    },
}

impl RopeSettings {
    pub(super) fn read(fields: &Fields, head: usize, context: usize) -> Result<Self> {
        const DIMENSIONS: &str = "rope.dimension_count";
        let dimensions = fields.size_or(DIMENSIONS, head, head)?;
        // All five turn whole heads; llama.cpp asserts it.
        if dimensions != head || !head.is_multiple_of(2) {
            let expected = format!("the width of a head, {head}, which must be even");
            return Err(fields.wrong(DIMENSIONS, expected, dimensions.to_string()));
        }
        let pairs = match fields.architecture {
            Architecture::Llama => RopePairs::Neighbours,
            _ => RopePairs::Halves,
        };
        let (scaling, gain) = scaling(fields, context)?;
        let amplitude = gain * fields.positive_or("rope.scaling.attn_factor", 1.0)?;
        let factors = match fields.architecture {
            // llama.cpp looks for them there only.
            Architecture::Llama => factors(fields, dimensions / 2)?,
            _ => None,
        };
        let base = fields.positive_or("rope.freq_base", 10_000.0)?;
        Ok(Self { base, dimensions, pairs, scaling, factors, amplitude })
    }

    /// That of the layers with a sliding window, if another: Gemma 3's turn faster and are never
    /// scaled.
    pub(super) fn of_window(fields: &Fields, rope: &Self) -> Result<Option<Self>> {
        let (default, scaling) = match fields.architecture {
            Architecture::Gemma3 => (10_000.0, RopeScaling::None),
            _ => (rope.base, rope.scaling),
        };
        let base = fields.positive_or("rope.freq_base_swa", default)?;
        let own = Self { base, scaling, ..rope.clone() };
        Ok(Some(own).filter(|own| own != rope))
    }
}

/// The scaling and its gain.
fn scaling(fields: &Fields, context: usize) -> Result<(RopeScaling, f64)> {
    const TYPE: &str = "rope.scaling.type";
    let kind = fields.text_or(TYPE, "linear")?;
    // The second is the old name. 0 is none.
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
            for key in ["yarn_log_multiplier", "yarn_ext_factor", "yarn_attn_factor"] {
                let key = format!("rope.scaling.{key}");
                if fields.has(&key) {
                    return Err(fields.wrong(&key, "no such key with this architecture", "one"));
                }
            }
            let original =
                fields.size_or("rope.scaling.original_context_length", context, 1 << 30)?;
            let fast = fields.positive_or("rope.scaling.yarn_beta_fast", 32.0)?;
            let slow = fields.positive_or("rope.scaling.yarn_beta_slow", 1.0)?;
            // llama.cpp divides by this gain where it reads the file and multiplies by it where it
            // rotates, once more for factors above 1: what is left is one gain.
            let gain = if factor > 1.0 { 1.0 + 0.1 * factor.ln() } else { 1.0 };
            Ok((RopeScaling::Yarn { factor, fast, slow, original }, gain))
        }
        other => Err(fields.wrong(TYPE, "none, linear or yarn", crate::error::shown(other))),
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
