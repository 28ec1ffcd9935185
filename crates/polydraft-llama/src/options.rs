//! Options of loading and running a model.

use std::fmt;
use std::str::FromStr;

/// Whether this build contains llama.cpp.
pub const BUILT: bool = cfg!(feature = "native");

/// Options of loading and running a model.
#[derive(Debug, Clone, PartialEq)]
pub struct LlamaOptions {
    /// Maximum number of tokens per sequence. `None`: the context that the model was trained for,
    /// but at most [`Self::USUAL_CONTEXT`], because the KV cache is allocated in full at once.
    pub context: Option<u32>,
    /// Capacity of the KV cache in tokens, for all sequences and their drafts. `None`: one sequence
    /// and [`Self::SPARE`] tokens for drafts.
    pub cells: Option<u32>,
    /// Machines that run llama.cpp's `rpc-server`, each as `HOST:PORT`, to compute layers in
    /// addition to this machine's GPUs.
    pub rpc: Vec<String>,
    /// Number of layers to compute on GPUs and other machines, where there are any. `None`: all.
    pub gpu_layers: Option<u32>,
    /// GPU for the parts of the model that are not divided.
    pub main_gpu: u32,
    /// Division of the model between GPUs.
    pub split: Split,
    /// Number type of the KV cache.
    pub cache_type: CacheType,
    /// Whether to compute attention without writing its scores to memory.
    pub flash_attention: FlashAttention,
    /// Threads for a pass over one token; at least 1.
    pub threads: u32,
    /// Threads for a pass over several tokens; at least 1.
    pub batch_threads: u32,
}

impl LlamaOptions {
    /// Default limit of the length of a sequence.
    pub const USUAL_CONTEXT: u32 = 8192;
    /// Default number of cache entries for drafts, besides one full sequence.
    pub const SPARE: u32 = 512;
}

impl Default for LlamaOptions {
    fn default() -> Self {
        let threads =
            std::thread::available_parallelism().map_or(1, |threads| threads.get() as u32);
        Self {
            context: None,
            cells: None,
            rpc: Vec::new(),
            gpu_layers: None,
            main_gpu: 0,
            split: Split::default(),
            cache_type: CacheType::default(),
            flash_attention: FlashAttention::default(),
            threads,
            batch_threads: threads,
        }
    }
}

/// Division of a model between GPUs.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Split {
    /// All on one GPU.
    None,
    /// Complete layers, in proportion to each GPU's free memory.
    #[default]
    Layer,
    /// Rows of matrices.
    Row,
    /// Complete layers, in these proportions.
    Shares(Vec<f32>),
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::None => f.pad("none"),
            Self::Layer => f.pad("layer"),
            Self::Row => f.pad("row"),
            Self::Shares(shares) => {
                let shares: Vec<String> = shares.iter().map(f32::to_string).collect();
                f.pad(&shares.join(","))
            }
        }
    }
}

impl FromStr for Split {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || {
            format!("expected none, layer, row, or a share for each GPU such as 3,1; got {text:?}")
        };
        match text {
            "none" => Ok(Self::None),
            "layer" => Ok(Self::Layer),
            "row" => Ok(Self::Row),
            _ => {
                let share = |part: &str| {
                    part.parse().ok().filter(|share: &f32| share.is_finite() && *share >= 0.0)
                };
                let shares: Option<Vec<f32>> = text.split(',').map(share).collect();
                shares
                    .filter(|shares| shares.iter().sum::<f32>() > 0.0)
                    .map(Self::Shares)
                    .ok_or_else(invalid)
            }
        }
    }
}

macro_rules! names {
    ($type:ident, $($variant:ident = $name:literal),*) => {
        impl $type {
            /// Names of all variants.
            pub const NAMES: &'static [&'static str] = &[$($name),*];
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.pad(match self { $(Self::$variant => $name),* })
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(name: &str) -> Result<Self, String> {
                match name {
                    $($name => Ok(Self::$variant),)*
                    _ => Err(format!("expected one of {}; got {name:?}", Self::NAMES.join(", "))),
                }
            }
        }
    };
}

/// Number type of the KV cache. A type with fewer bits than the model was trained with changes the
/// model's distribution; the changed distribution is then sampled exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheType {
    /// 32 bits.
    F32,
    /// 16 bits, llama.cpp's default.
    #[default]
    F16,
    /// 16 bits with the range of f32.
    Bf16,
    /// 8 bits, in blocks of 32.
    Q8_0,
    /// 4 bits, in blocks of 32.
    Q4_0,
}

names!(CacheType, F32 = "f32", F16 = "f16", Bf16 = "bf16", Q8_0 = "q8_0", Q4_0 = "q4_0");

/// Whether attention is computed without writing its scores to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlashAttention {
    /// Where the device supports it.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

names!(FlashAttention, Auto = "auto", On = "on", Off = "off");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_to_the_values_that_display_them() {
        for name in CacheType::NAMES {
            assert_eq!(name.parse::<CacheType>().unwrap().to_string(), *name);
        }
        for name in FlashAttention::NAMES {
            assert_eq!(name.parse::<FlashAttention>().unwrap().to_string(), *name);
        }
        for name in ["none", "layer", "row", "3,1", "0.5,0,2"] {
            assert_eq!(name.parse::<Split>().unwrap().to_string(), name);
        }
        for invalid in ["", "rows", "1,", "-1,2", "nan", "0,0", "inf"] {
            assert!(invalid.parse::<Split>().unwrap_err().contains("expected none"), "{invalid}");
        }
        assert!("q5_0".parse::<CacheType>().unwrap_err().contains("q8_0"));
    }
}
