//! Weight matrices, in full or quantised.

use std::fmt;
use std::str::FromStr;

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Result, Tensor};

use crate::product::{FewRows, MOST_ROWS};

/// How weight matrices are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// 32 bits: the model as published. On a CPU 16-bit weights are widened once, for speed.
    #[default]
    F32,
    /// 8 bits in blocks of 32 with a scale: a quarter of the memory and of the time. What is sampled exactly is then
    /// the quantised model.
    Q8_0,
}

impl Precision {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::F32, Self::Q8_0];

    /// The name that users type.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Q8_0 => "q8_0",
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(" or ");
        Self::ALL
            .into_iter()
            .find(|p| p.name() == name)
            .ok_or_else(|| format!("expected {}, found {name:?}", names()))
    }
}

/// A matrix of shape `[out, in]` that rows are multiplied with.
#[derive(Debug)]
pub(crate) enum Linear {
    Full(Tensor),
    Quantised(QTensor),
}

impl Linear {
    /// Matrices whose rows do not divide into blocks stay as they are.
    pub fn new(weights: Tensor, precision: Precision) -> Result<Self> {
        let quantise = precision == Precision::Q8_0 && weights.dim(1)? % GgmlDType::Q8_0.block_size() == 0;
        Ok(if quantise {
            Self::Quantised(QTensor::quantize(&weights, GgmlDType::Q8_0)?)
        } else {
            Self::Full(weights)
        })
    }

    /// Contiguous `x [rows, in]` times the transposed matrix: `[rows, out]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Full(weights) if x.dim(0)? <= MOST_ROWS => x.apply_op2_no_bwd(weights, &FewRows),
            Self::Full(weights) => x.matmul(&weights.t()?),
            Self::Quantised(weights) => x.apply_op1_no_bwd(weights),
        }
    }

    /// The rows of the matrix at `ids [n]`: `[n, in]`.
    pub fn rows(&self, ids: &Tensor) -> Result<Tensor> {
        match self {
            Self::Full(weights) => weights.index_select(ids, 0),
            Self::Quantised(weights) => weights.embedding(ids),
        }
    }
}
