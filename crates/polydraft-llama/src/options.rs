//! How a model is loaded and computed.

use std::fmt;
use std::str::FromStr;

/// Whether this build has llama.cpp in it.
pub const BUILT: bool = cfg!(feature = "native");

/// How to load a model and to compute with it.
#[derive(Debug, Clone, PartialEq)]
pub struct LlamaOptions {
    /// Tokens that one sequence may have; none is what the model was trained for, but at most
    /// [`Self::USUAL_CONTEXT`]: the KV cache for all of them is allocated at once.
    pub context: Option<u32>,
    /// Tokens that all sequences and their drafts may have together; none is one sequence's, and
    /// [`Self::SPARE`] for drafts.
    pub cells: Option<u32>,
    /// Machines that run llama.cpp's `rpc-server`, each as `HOST:PORT`, to compute layers beside
    /// this one's GPUs.
    pub rpc: Vec<String>,
    /// Layers that are computed on GPUs and other machines, where there are any; none is all.
    pub gpu_layers: Option<u32>,
    /// The GPU that has what is not divided.
    pub main_gpu: u32,
    /// How a model is divided between GPUs.
    pub split: Split,
    /// The type that the KV cache is stored in.
    pub cache_type: CacheType,
    /// Whether attention is computed without writing its scores to memory.
    pub flash_attention: FlashAttention,
    /// Threads for a pass over one token; at least 1.
    pub threads: u32,
    /// Threads for a pass over several; at least 1.
    pub batch_threads: u32,
}

impl LlamaOptions {
    /// The longest sequence by default.
    pub const USUAL_CONTEXT: u32 = 8192;
    /// Tokens besides one sequence's, for its drafts.
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

/// How a model is divided between GPUs.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Split {
    /// All of it on one.
    None,
    /// Whole layers, as many to each as its memory allows.
    #[default]
    Layer,
    /// The rows of matrices.
    Row,
    /// Whole layers, in these proportions.
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
        let wrong = || {
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
                    .ok_or_else(wrong)
            }
        }
    }
}

macro_rules! names {
    ($type:ident, $($variant:ident = $name:literal),*) => {
        impl $type {
            /// All of them, by name.
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

/// The type that the KV cache is stored in. One with fewer bits than the model was made with
/// changes the model's distribution: the changed one is then sampled exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheType {
    /// 32 bits.
    F32,
    /// 16 bits, as llama.cpp does it.
    #[default]
    F16,
    /// 16 bits with f32's range.
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
    /// Where the device has it.
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
    fn names_are_read_back() {
        for name in CacheType::NAMES {
            assert_eq!(name.parse::<CacheType>().unwrap().to_string(), *name);
        }
        for name in FlashAttention::NAMES {
            assert_eq!(name.parse::<FlashAttention>().unwrap().to_string(), *name);
        }
        for name in ["none", "layer", "row", "3,1", "0.5,0,2"] {
            assert_eq!(name.parse::<Split>().unwrap().to_string(), name);
        }
        for wrong in ["", "rows", "1,", "-1,2", "nan", "0,0", "inf"] {
            assert!(wrong.parse::<Split>().unwrap_err().contains("expected none"), "{wrong}");
        }
        assert!("q5_0".parse::<CacheType>().unwrap_err().contains("q8_0"));
    }
}
