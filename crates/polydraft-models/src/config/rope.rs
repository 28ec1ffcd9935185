//! Rotary embedding: at which frequencies queries and keys turn.
//!
//! Source: Su et al. 2021 (RoFormer); Chen et al. 2023 (linear); Peng et al. 2023 (YaRN); Dubey et
//! al. 2024 (Llama 3); Ding et al. 2024 (LongRoPE). Field names and defaults as in Hugging Face
//! transformers, old style (`rope_theta`, `rope_scaling`) and new (`rope_parameters`).

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
    /// How many numbers of a head are turned, from its first, if not all.
    pub dimensions: Option<usize>,
    /// Which numbers are turned together.
    pub pairs: Pairs,
}

/// Which numbers of a head are turned together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pairs {
    /// Number i with number i + half.
    #[default]
    Halves,
    /// Number 2i with number 2i + 1.
    Neighbours,
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
    /// Every frequency divided by a number of its own (LongRoPE), by [`Rope::divisors`] in
    /// sequences as long as the training's: longer ones have others.
    Long {
        /// The divisors of sequences up to `original`.
        short: Vec<f32>,
        /// The context of the training.
        original: usize,
    },
}

/// The frequencies of a head, and a factor for all cosines and sines.
#[derive(Debug, Clone, PartialEq)]
pub struct Frequencies {
    /// Radians per position, of every pair.
    pub values: Vec<f64>,
    /// Cosines and sines are multiplied by this.
    pub amplitude: f64,
    /// Which numbers are pairs.
    pub pairs: Pairs,
}

/// What a file says of contexts outside of the scaling.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lengths {
    /// Tokens of the context.
    pub context: usize,
    /// Those of the training.
    pub original: f64,
}

impl Lengths {
    /// Where nothing is said of the training.
    pub fn of(context: usize) -> Self {
        Self { context, original: context as f64 }
    }
}

impl Rope {
    /// That of a family whose heads are turned whole.
    pub(crate) fn read(fields: &Fields, context: usize) -> Result<Self> {
        match Self::read_part(fields, context)? {
            (rope, None | Some(1.0)) => Ok(rope),
            (_, Some(got)) => Err(format!("partial_rotary_factor: expected 1, got {got}")),
        }
    }

    /// That of a family which turns a part of each head.
    pub(crate) fn partial(
        fields: &Fields,
        context: usize,
        head: usize,
        default: f64,
    ) -> Result<Self> {
        let (rope, part) = Self::read_part(fields, context)?;
        let turned = (head as f64 * part.unwrap_or(default)) as usize;
        Ok(Self { dimensions: Some(turned).filter(|turned| *turned != head), ..rope })
    }

    /// With the part of a head that is turned.
    fn read_part(fields: &Fields, context: usize) -> Result<(Self, Option<f64>)> {
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
        let part = number("partial_rotary_factor")?;
        let original = fields.number("original_max_position_embeddings")?;
        let lengths = Lengths { context, original: original.unwrap_or(context as f64) };
        Ok((Self::of(theta, object, lengths)?, part))
    }

    /// That heads of this width can be turned so.
    pub(crate) fn check(&self, head: usize) -> Result<()> {
        let turned = self.dimensions.unwrap_or(head);
        if !turned.is_multiple_of(2) || turned == 0 || turned > head {
            return Err(match self.dimensions {
                None => format!("head_dim: expected an even number, got {head}"),
                Some(_) => format!(
                    "partial_rotary_factor: expected an even part of the {head} numbers of a head, \
                     got {turned}"
                ),
            });
        }
        let got = self.divisors.len();
        if got != 0 && got != turned / 2 {
            return Err(format!("short_factor: expected {} numbers, got {got}", turned / 2));
        }
        Ok(())
    }

    /// From a base, and the fields of a scaling with the name of the object that they are in.
    pub(crate) fn of(
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
        let plain = Self::plain(theta);
        let divisors = match &scaling {
            Scaling::Long { short, .. } => short.clone(),
            _ => Vec::new(),
        };
        Ok(Self { scaling, amplitude, divisors, ..plain })
    }

    /// That of heads of which the first pairs are turned as if all were, by so large a part, and
    /// the others are not (`proportional`).
    pub(crate) fn proportional(fields: &Fields, theta: f64, head: usize) -> Result<Self> {
        let part = fields.number("partial_rotary_factor")?.unwrap_or(1.0);
        if part > 1.0 {
            return Err(format!("partial_rotary_factor: expected at most 1, got {part}"));
        }
        let turned = (part * head as f64 / 2.0) as usize;
        let divisors = (0..head / 2).map(|pair| if pair < turned { 1.0 } else { f32::INFINITY });
        let factor = fields.number("factor")?.unwrap_or(1.0);
        let scaling = match factor == 1.0 {
            true => Scaling::None,
            false => Scaling::Linear { factor },
        };
        Ok(Self { scaling, divisors: divisors.collect(), ..Self::plain(theta) })
    }

    /// Without a scaling.
    pub(crate) fn plain(theta: f64) -> Self {
        Self {
            theta,
            scaling: Scaling::None,
            divisors: Vec::new(),
            amplitude: 1.0,
            dimensions: None,
            pairs: Pairs::Halves,
        }
    }

    /// The context that it can be used in, of the one that the file says: LongRoPE's short
    /// frequencies are those of sequences as long as the training's.
    pub(crate) fn within(&self, context: usize) -> usize {
        match &self.scaling {
            Scaling::Long { original, .. } => context.min(*original),
            _ => context,
        }
    }

    /// The frequencies of heads of this width.
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
        Frequencies { values, amplitude: self.amplitude, pairs: self.pairs }
    }
}

impl Scaling {
    const KNOWN: &str = "default, linear, dynamic, llama3, yarn, longrope";

    /// With the amplitude.
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
            // Of one with three kinds of positions all are the same in text. What is dynamic
            // changes beyond the context only, which no sequence exceeds.
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
