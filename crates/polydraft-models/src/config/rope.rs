//! Rotary position embedding (RoPE): the frequencies at which queries and keys are rotated.
//!
//! Source: Su et al. 2021 (RoFormer); Chen et al. 2023 (linear); Peng et al. 2023 (YaRN); Dubey et
//! al. 2024 (Llama 3); Ding et al. 2024 (LongRoPE). Field names and defaults as in Hugging Face
//! transformers, old style (`rope_theta`, `rope_scaling`) and new (`rope_parameters`).

use std::f64::consts::TAU;

use polydraft_text::Fields;

type Result<T> = std::result::Result<T, String>;

/// Rotary position embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// Change of the frequencies for contexts longer than the training's.
    pub scaling: Scaling,
    /// Divisors of the frequencies before scaling, `[head_dim / 2]`; empty if there are none.
    pub divisors: Vec<f32>,
    /// Factor of cosines and sines.
    pub amplitude: f64,
    /// Number of leading dimensions of a head that are rotated, if not all.
    pub dimensions: Option<usize>,
    /// Pairing of the dimensions.
    pub pairs: RotaryPairs,
}

/// Pairs of dimensions of a head that are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RotaryPairs {
    /// Dimension i with dimension i + half.
    #[default]
    Halves,
    /// Dimension 2i with dimension 2i + 1.
    Neighbours,
}

/// Change of the frequencies θ^(−2i/head_dim).
#[derive(Debug, Clone, PartialEq)]
pub enum Scaling {
    /// No change.
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// Ratio of the extended context to the training's.
        factor: f64,
    },
    /// Low frequencies are divided by `factor`, high ones are unchanged, and those between are
    /// interpolated by wavelength.
    Llama3 {
        /// Ratio of the extended context to the training's.
        factor: f64,
        /// Wavelengths above `original / low` are scaled.
        low: f64,
        /// Wavelengths below `original / high` are unchanged.
        high: f64,
        /// Context length of the training.
        original: f64,
    },
    /// As `Llama3`, but interpolated by the index of the frequency, with scaled rotations
    /// ([`Rope::amplitude`]).
    Yarn {
        /// Ratio of the extended context to the training's.
        factor: f64,
        /// Rotations over the training's context above which a frequency is unchanged.
        fast: f64,
        /// Rotations over the training's context below which a frequency is scaled.
        slow: f64,
        /// Context length of the training.
        original: f64,
        /// Whether the bounds of the interpolated range are rounded outwards to integers.
        truncate: bool,
    },
    /// LongRoPE: each frequency has its own divisor. [`Rope::divisors`] are those of sequences up
    /// to the training's length; longer sequences have other divisors.
    Long {
        /// Divisors for sequences of up to `original` tokens.
        short: Vec<f32>,
        /// Context length of the training.
        original: usize,
    },
}

/// Frequencies of a head, with the factor of cosines and sines.
#[derive(Debug, Clone, PartialEq)]
pub struct Frequencies {
    /// Radians per position for every pair.
    pub values: Vec<f64>,
    /// Factor of cosines and sines.
    pub amplitude: f64,
    /// Pairing of the dimensions.
    pub pairs: RotaryPairs,
}

/// Context lengths that a file has outside of its RoPE scaling.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lengths {
    /// Context length.
    pub context: usize,
    /// Context length of the training.
    pub original: f64,
}

impl Lengths {
    /// Lengths for a file that does not state the context length of the training.
    pub fn new(context: usize) -> Self {
        Self { context, original: context as f64 }
    }
}

impl Rope {
    /// Reads the embedding of a family that rotates all dimensions of a head.
    pub(crate) fn read(fields: &Fields, context: usize) -> Result<Self> {
        match Self::read_part(fields, context)? {
            (rope, None | Some(1.0)) => Ok(rope),
            (_, Some(got)) => Err(format!("partial_rotary_factor: expected 1, got {got}")),
        }
    }

    /// Reads the embedding of a family that rotates a part of each head, by default the fraction
    /// `default`.
    pub(crate) fn partial(
        fields: &Fields,
        context: usize,
        head: usize,
        default: f64,
    ) -> Result<Self> {
        let (rope, part) = Self::read_part(fields, context)?;
        let rotated = (head as f64 * part.unwrap_or(default)) as usize;
        Ok(Self { dimensions: Some(rotated).filter(|rotated| *rotated != head), ..rope })
    }

    /// Reads the embedding and the rotated fraction of a head.
    fn read_part(fields: &Fields, context: usize) -> Result<(Self, Option<f64>)> {
        // As in transformers 5: the older object replaces the newer one, and its fields take
        // precedence over fields of the same name outside.
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
        let part = number("partial_rotary_factor")?;
        let original = fields.number("original_max_position_embeddings")?;
        let lengths = Lengths { context, original: original.unwrap_or(context as f64) };
        Ok((Self::new(theta, object, lengths)?, part))
    }

    /// Checks that heads of width `head` can be rotated this way.
    pub(crate) fn check(&self, head: usize) -> Result<()> {
        let rotated = self.dimensions.unwrap_or(head);
        if !rotated.is_multiple_of(2) || rotated == 0 || rotated > head {
            return Err(match self.dimensions {
                None => format!("head_dim: expected an even number, got {head}"),
                Some(_) => format!(
                    "partial_rotary_factor: expected an even part of the {head} numbers of a head, \
                     got {rotated}"
                ),
            });
        }
        let got = self.divisors.len();
        if got != 0 && got != rotated / 2 {
            return Err(format!("short_factor: expected {} numbers, got {got}", rotated / 2));
        }
        Ok(())
    }

    /// Builds the embedding from its base and the scaling: the name and the fields of its object.
    pub(crate) fn new(
        theta: f64,
        scaling: Option<(&str, Fields)>,
        lengths: Lengths,
    ) -> Result<Self> {
        let (scaling, amplitude) = match &scaling {
            None => (Scaling::None, 1.0),
            Some((name, fields)) => {
                Scaling::read(fields, lengths).map_err(|e| format!("{name}: {e}"))?
            }
        };
        let plain = Self::unscaled(theta);
        let divisors = match &scaling {
            Scaling::Long { short, .. } => short.clone(),
            _ => Vec::new(),
        };
        Ok(Self { scaling, amplitude, divisors, ..plain })
    }

    /// The `proportional` kind: a fraction of the pairs, from the first on, is rotated with the
    /// frequencies of a fully rotated head, and the others are not rotated.
    pub(crate) fn proportional(fields: &Fields, theta: f64, head: usize) -> Result<Self> {
        let part = fields.number("partial_rotary_factor")?.unwrap_or(1.0);
        if part > 1.0 {
            return Err(format!("partial_rotary_factor: expected at most 1, got {part}"));
        }
        let rotated = (part * head as f64 / 2.0) as usize;
        let divisors = (0..head / 2).map(|pair| if pair < rotated { 1.0 } else { f32::INFINITY });
        let factor = fields.number("factor")?.unwrap_or(1.0);
        let scaling = match factor == 1.0 {
            true => Scaling::None,
            false => Scaling::Linear { factor },
        };
        Ok(Self { scaling, divisors: divisors.collect(), ..Self::unscaled(theta) })
    }

    /// An embedding without scaling.
    pub(crate) fn unscaled(theta: f64) -> Self {
        Self {
            theta,
            scaling: Scaling::None,
            divisors: Vec::new(),
            amplitude: 1.0,
            dimensions: None,
            pairs: RotaryPairs::Halves,
        }
    }

    /// Usable context length, at most `context`: LongRoPE's short divisors are valid only up to the
    /// training's length.
    pub(crate) fn max_context(&self, context: usize) -> usize {
        match &self.scaling {
            Scaling::Long { original, .. } => context.min(*original),
            _ => context,
        }
    }

    /// Frequencies for heads of width `head`.
    pub fn frequencies(&self, head: usize) -> Frequencies {
        let head = self.dimensions.unwrap_or(head);
        let divisor = |i| self.divisors.get(i).map_or(1.0, |divisor| f64::from(*divisor));
        let plain =
            (0..head / 2).map(|i| self.theta.powf(-2.0 * i as f64 / head as f64) / divisor(i));
        let values = match self.scaling {
            Scaling::None | Scaling::Long { .. } => plain.collect(),
            Scaling::Linear { factor } => plain.map(|f| f / factor).collect(),
            Scaling::Llama3 { factor, low, high, original } => plain
                .map(|f| {
                    // Position of the rotations over the training's context between the bounds.
                    let unscaled = ((original * f / TAU - low) / (high - low)).clamp(0.0, 1.0);
                    unscaled * f + (1.0 - unscaled) * f / factor
                })
                .collect(),
            Scaling::Yarn { factor, fast, slow, original, truncate } => {
                // Index of the frequency with this number of rotations over the training's
                // context.
                let index = |rotations: f64| {
                    head as f64 * (original / (rotations * TAU)).ln() / (2.0 * self.theta.ln())
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
        Frequencies { values, amplitude: self.amplitude, pairs: self.pairs }
    }
}

impl Scaling {
    const KNOWN: &str = "default, linear, dynamic, llama3, yarn, longrope";

    /// Reads the scaling and the amplitude.
    fn read(fields: &Fields, Lengths { context, original }: Lengths) -> Result<(Self, f64)> {
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
        let original = or("original_max_position_embeddings", original)?;
        match kind.as_str() {
            // The three positions of "mrope" are equal in text. "dynamic" changes frequencies only
            // beyond the context length, which no sequence exceeds.
            "default" | "mrope" | "dynamic" => Ok((Self::None, 1.0)),
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
            "yarn" | "deepseek_yarn" => {
                let factor = fields.number("factor")?.unwrap_or(context as f64 / original);
                let log =
                    |weight: f64| if factor > 1.0 { 0.1 * weight * factor.ln() + 1.0 } else { 1.0 };
                // 0 stands for a missing weight.
                let weight = |field: &str| match fields.get::<f64>(field)? {
                    Some(0.0) => Ok(None),
                    _ => fields.number(field),
                };
                let amplitude = match (weight("mscale")?, weight("mscale_all_dim")?) {
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
            "longrope" | "su" => {
                let short: Option<Vec<f32>> = fields.get("short_factor")?;
                let short = short.filter(|all| all.iter().all(|f| f.is_finite() && *f > 0.0));
                let short = short.ok_or("short_factor: expected positive numbers")?;
                let factor = fields.number("factor")?.unwrap_or(context as f64 / original);
                let amplitude = match factor > 1.0 {
                    true => (1.0 + factor.ln() / original.ln()).sqrt(),
                    false => 1.0,
                };
                let amplitude = or("attention_factor", amplitude)?;
                Ok((Self::Long { short, original: original as usize }, amplitude))
            }
            other => Err(format!("rope_type: expected one of {}, got {other:?}", Self::KNOWN)),
        }
    }
}
