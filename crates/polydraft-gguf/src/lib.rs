//! Reader of GGUF files, the format of llama.cpp: a model's weights, description and tokenizer in
//! one file.
//!
//! [`Gguf::open`] treats files as untrusted: every length is checked against the length of the file
//! before memory is allocated, and errors report the key or tensor, the expected and the actual
//! value. [`Metadata`] gives access to the keys, [`Tensor`] to the weights, as blocks or as f32.

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
