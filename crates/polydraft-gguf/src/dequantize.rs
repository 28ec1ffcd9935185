//! Conversion of blocks to f32.
//!
//! # Problem
//! Compute each number from the scale, minimum and bits of its block in f32 arithmetic, with each
//! operation rounded once, so that results are the same on every machine.
//!
//! # Source
//! ggml's `dequantize_row_*` and the `gguf` package's `dequantize`, with the same order of
//! operations. Tests compare with the latter bit by bit.
//!
//! # Complexity
//! Linear. Blocks are independent, so callers can divide rows among threads.
//!
//! # Deviations
//! 1. No operations are fused. In ggml a C compiler may fuse some.

mod codebook;
mod integers;
mod k;
mod plain;

use half::f16;

use crate::tensor_type::TensorType;
pub use codebook::{
    IQ4_CODEBOOK, MXFP4_BLOCK_SIZE, iq4_xs_sub_scales, mxfp4_to_q5_0, to_memory_type,
};
pub use integers::Integers;

/// Error of a conversion of blocks.
#[derive(Debug, thiserror::Error)]
#[error("expected {expected}, got {got}")]
pub struct DequantizeError {
    /// Expected input.
    pub expected: String,
    /// Actual input.
    pub got: String,
}

/// Types that [`dequantize`] supports.
pub const DEQUANTIZED: [TensorType; 16] = [
    TensorType::F32,
    TensorType::F16,
    TensorType::BF16,
    TensorType::Q8_0,
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q5_0,
    TensorType::Q5_1,
    TensorType::Q2_K,
    TensorType::Q3_K,
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::MXFP4,
    TensorType::IQ4_NL,
    TensorType::IQ4_XS,
];

/// Converts blocks to f32: `values` has [`kind.block()`](TensorType::block) numbers per block.
///
/// # Errors
/// A type that is not in [`DEQUANTIZED`]; incomplete blocks; `values` of another length.
pub fn dequantize(
    kind: TensorType,
    blocks: &[u8],
    values: &mut [f32],
) -> Result<(), DequantizeError> {
    let count = blocks.len() / kind.block_bytes();
    if !blocks.len().is_multiple_of(kind.block_bytes()) || values.len() != count * kind.block() {
        return Err(DequantizeError {
            expected: format!(
                "{} numbers from every {} bytes of type {kind}",
                kind.block(),
                kind.block_bytes()
            ),
            got: format!("{} from {}", values.len(), blocks.len()),
        });
    }
    match kind {
        TensorType::F32 => plain::f32(blocks, values),
        TensorType::F16 => plain::f16(blocks, values),
        TensorType::BF16 => plain::bf16(blocks, values),
        TensorType::Q8_0 => convert_blocks(blocks, values, plain::q8_0),
        TensorType::Q4_0 => convert_blocks(blocks, values, plain::q4_0),
        TensorType::Q4_1 => convert_blocks(blocks, values, plain::q4_1),
        TensorType::Q5_0 => convert_blocks(blocks, values, plain::q5_0),
        TensorType::Q5_1 => convert_blocks(blocks, values, plain::q5_1),
        TensorType::Q2_K => convert_blocks(blocks, values, k::q2_k),
        TensorType::Q3_K => convert_blocks(blocks, values, k::q3_k),
        TensorType::Q4_K => convert_blocks(blocks, values, k::q4_k),
        TensorType::Q5_K => convert_blocks(blocks, values, k::q5_k),
        TensorType::Q6_K => convert_blocks(blocks, values, k::q6_k),
        TensorType::MXFP4 => convert_blocks(blocks, values, codebook::mxfp4),
        TensorType::IQ4_NL => convert_blocks(blocks, values, codebook::iq4_nl),
        TensorType::IQ4_XS => convert_blocks(blocks, values, codebook::iq4_xs),
        other => {
            let known: Vec<_> = DEQUANTIZED.iter().map(|kind| kind.name()).collect();
            return Err(DequantizeError {
                expected: format!("a tensor of type {}", known.join(", ")),
                got: format!("type {other}"),
            });
        }
    }
    Ok(())
}

/// Applies the conversion of one block, with `B` bytes and `N` numbers, to all blocks.
#[inline(always)]
fn convert_blocks<const B: usize, const N: usize>(
    blocks: &[u8],
    values: &mut [f32],
    convert: impl Fn(&[u8; B], &mut [f32; N]),
) {
    for (block, values) in blocks.as_chunks().0.iter().zip(values.as_chunks_mut().0) {
        convert(block, values);
    }
}

/// Reads the f16 at byte `at` of a block.
#[inline(always)]
fn scale<const B: usize>(block: &[u8; B], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}
