//! Reads GGUF files: the format of llama.cpp, with a model's weights, its description and its
//! tokenizer in one file.
//!
//! [`Gguf::open`] trusts nothing that it reads: what a file claims is checked against its length
//! before memory is taken, and an error names the key or the tensor, what was expected and what is
//! there. [`Metadata`] has the keys, [`Tensor`] the weights, as blocks or as f32.

#![forbid(unsafe_code)]

mod dequantize;
mod error;
mod gguf;
mod header;
mod metadata;
mod model;
mod reader;
mod rope;
mod source;
mod split;
mod tensor;
mod tensor_type;
mod tokenizer;
mod value;

pub use dequantize::{
    DEQUANTIZED, DequantizeError, IQ4_CODEBOOK, Integers, MXFP4_BLOCK_SIZE, dequantize,
    iq4_xs_sub_scales, mxfp4_to_q5_0, to_memory_type,
};
pub use error::{Error, Location, Result};
pub use gguf::Gguf;
pub use metadata::Metadata;
pub use model::{
    Architecture, Biases, ExpectedTensor, ModelDescription, RopePairs, RopeScaling, RopeSettings,
    TensorRole,
};
pub use rope::{deinterleave, interleaved};
pub use tensor::Tensor;
pub use tensor_type::TensorType;
pub use tokenizer::{PreTokenizer, SpecialTokens, TokenType, TokenizerDescription, TokenizerKind};
pub use value::{Array, Value, ValueType, Values};
