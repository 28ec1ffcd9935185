//! Rotary embedding: at which frequencies queries and keys turn.
//!
//! Source: Su et al. 2021 (RoFormer); Chen et al. 2023 (linear); Peng et al. 2023 (YaRN); Dubey et
//! al. 2024 (Llama 3). Field names and defaults as in Hugging Face transformers, old style
//! (`rope_theta`, `rope_scaling`) and new (`rope_parameters`).

use std::f64::consts::TAU;

use polydraft_text::Fields;

type Result<T> = std::result::Result<T, String>;

/// How queries and keys are rotated.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// What is done to them for contexts longer than those of the training.
    pub scaling: Scaling,
    /// What they are divided by before that, `[head / 2]`; empty where by nothing.
    pub divisors: Vec<f32>,
    /// Cosines and sines are multiplied by this.
    pub amplitude: f64,
}

/// A change of the frequencies θ^(−2i/head).
#[derive(Debug, Clone, PartialEq)]
pub enum Scaling {
    /// None.
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// By how much the context is longer.
        factor: f64,
    },
    /// Low frequencies divided by `factor`, high ones kept, those between mixed by their
    /// wavelength.
    Llama3 {
        /// By how much the context is longer.
        factor: f64,
        /// Wavelengths above `original / low` are scaled.
        low: f64,
        /// Wavelengths below `original / high` are kept.
        high: f64,
        /// The context of the training.
        original: f64,
    },
    /// As `Llama3`, but mixed by the index of the frequency; all rotations are scaled, by
    /// [`Rope::amplitude`].
    Yarn {
        /// By how much the context is longer.
        factor: f64,
        /// Rotations over the training's context above which a frequency is kept.
        fast: f64,
        /// Rotations below which it is scaled.
        slow: f64,
        /// The context of the training.
        original: f64,
        /// Whether the range between is widened to whole indices.
        truncate: bool,
    },
}

/// The frequencies of a head, and a factor for all cosines and sines.
#[derive(Debug, Clone, PartialEq)]
pub struct Frequencies {
    /// Radians per position, `[head / 2]`.
    pub values: Vec<f64>,
    /// Cosines and sines are multiplied by this.
    pub amplitude: f64,
}

impl Rope {
    pub(crate) fn read(fields: &Fields, context: usize) -> Result<Self> {
        // As transformers 5 reads them: the older object replaces the newer one, and what stands
        // in it goes before a field of the same name outside.
        let object = match fields.object("rope_scaling")? {
            Some(scaling) => Some(("rope_scaling", scaling)),
            None => fields.object("rope_parameters")?.map(|p| ("rope_parameters", p)),
        };
        let number = |name: &str| {
            let inner =
                object.as_ref().map(|(_, object)| object.number(name)).transpose()?.flatten();
            Ok::<_, String>(inner.or(fields.number(name)?))
        };
        let theta = number("rope_theta")?.unwrap_or(10_000.0);
        let partial = number("partial_rotary_factor")?;
        if let Some(got) = partial.filter(|f| *f != 1.0) {
            return Err(format!("partial_rotary_factor: expected 1, got {got}"));
        }
        Self::of(theta, object, context)
    }

    /// From a base, and the fields of a scaling with the name of the object that they are in.
    pub(crate) fn of(theta: f64, scaling: Option<(&str, Fields)>, context: usize) -> Result<Self> {
        let (scaling, amplitude) = match scaling {
            None => (Scaling::None, 1.0),
            Some((name, fields)) => {
                Scaling::read(&fields, context).map_err(|e| format!("{name}: {e}"))?
            }
        };
        Ok(Self { theta, scaling, divisors: Vec::new(), amplitude })
    }

    /// The frequencies of heads of this width.
    pub fn frequencies(&self, head: usize) -> Frequencies {
        let divisor = |i| self.divisors.get(i).map_or(1.0, |divisor| f64::from(*divisor));
        let plain =
            (0..head / 2).map(|i| self.theta.powf(-2.0 * i as f64 / head as f64) / divisor(i));
        let values = match self.scaling {
            Scaling::None => plain.collect(),
            Scaling::Linear { factor } => plain.map(|f| f / factor).collect(),
            Scaling::Llama3 { factor, low, high, original } => plain
                .map(|f| {
                    // Rotations over the training's context, between the two bounds.
                    let kept = ((original * f / TAU - low) / (high - low)).clamp(0.0, 1.0);
                    kept * f + (1.0 - kept) * f / factor
                })
                .collect(),
            Scaling::Yarn { factor, fast, slow, original, truncate } => {
                // The index at which a frequency makes so many rotations over the training's
                // context.
                let index = |turns: f64| {
                    head as f64 * (original / (turns * TAU)).ln() / (2.0 * self.theta.ln())
                };
                let (mut from, mut to) = (index(fast), index(slow));
                if truncate {
                    (from, to) = (from.floor(), to.ceil());
                }
                (from, to) = (from.max(0.0), to.min(head as f64 - 1.0));
                if from == to {
                    to += 0.001;
                }
                let mix = |(i, f): (usize, f64)| {
                    let scaled = ((i as f64 - from) / (to - from)).clamp(0.0, 1.0);
                    scaled * f / factor + (1.0 - scaled) * f
                };
                plain.enumerate().map(mix).collect()
            }
        };
        Frequencies { values, amplitude: self.amplitude }
    }
}

impl Scaling {
    const KNOWN: &str = "default, linear, llama3, yarn";

    /// With the amplitude.
    fn read(fields: &Fields, context: usize) -> Result<(Self, f64)> {
        let kind = fields.get::<String>("rope_type")?;
        let kind = match kind {
            Some(kind) => kind,
            None => fields.get("type")?.unwrap_or_else(|| "default".to_owned()),
        };
        let needed = |field: &str| {
            let value = fields.number(field)?;
            value.ok_or_else(|| format!("{field}: expected a number, got none"))
        };
        let or =
            |field: &str, default: f64| Ok::<_, String>(fields.number(field)?.unwrap_or(default));
        let original = or("original_max_position_embeddings", context as f64)?;
        match kind.as_str() {
            "default" => Ok((Self::None, 1.0)),
            "linear" => Ok((Self::Linear { factor: needed("factor")? }, 1.0)),
            "llama3" => {
                let (low, high) = (needed("low_freq_factor")?, needed("high_freq_factor")?);
                if low >= high {
                    return Err(format!(
                        "low_freq_factor: expected less than high_freq_factor = {high}, got {low}"
                    ));
                }
                Ok((Self::Llama3 { factor: needed("factor")?, low, high, original }, 1.0))
            }
            "yarn" => {
                let factor = fields.number("factor")?.unwrap_or(context as f64 / original);
                let log =
                    |weight: f64| if factor > 1.0 { 0.1 * weight * factor.ln() + 1.0 } else { 1.0 };
                let amplitude = match (fields.number("mscale")?, fields.number("mscale_all_dim")?) {
                    (Some(one), Some(all)) => log(one) / log(all),
                    _ => log(1.0),
                };
                let scaling = Self::Yarn {
                    factor,
                    fast: or("beta_fast", 32.0)?,
                    slow: or("beta_slow", 1.0)?,
                    original,
                    truncate: fields.flag("truncate", true)?,
                };
                Ok((scaling, or("attention_factor", amplitude)?))
            }
            other => Err(format!("rope_type: expected one of {}, got {other:?}", Self::KNOWN)),
        }
    }
}
