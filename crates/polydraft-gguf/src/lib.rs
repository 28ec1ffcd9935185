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
    DEQUANTIZED, DequantizeError, IQ4_NUMBERS, Integers, MXFP4_NUMBERS, dequantize, held_as,
    iq4_xs_steps, mxfp4_as_q5_0,
};
pub use error::{Error, Place, Result};
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
