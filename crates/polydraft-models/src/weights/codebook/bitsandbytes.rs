//! 4-bit matrices as bitsandbytes stores them: one run of numbers in blocks, whose scales may
//! themselves be indices into a table.
//!
//! Sources: Dettmers et al. 2023 (QLoRA), section 3; bitsandbytes' `QuantState.as_dict`.

use safetensors::tensor::Dtype;
use serde::Deserialize;

use super::super::packed_tensors::ShapedTensor;
use super::{numbers, shape_error};
use crate::error::Result;

/// Suffixes of the name of a matrix's state, by type.
const TYPES: [&str; 2] = ["nf4", "fp4"];
/// Maximum length of a state in bytes; usual ones have about two hundred.
const MAX_STATE_BYTES: usize = 1 << 16;
/// Entries of the table of scales.
const SCALE_TABLE_SIZE: usize = 256;

/// Quantisation state of a matrix, stored as JSON.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct State {
    quant_type: String,
    blocksize: usize,
    shape: Vec<usize>,
    nested_blocksize: Option<usize>,
    nested_offset: Option<f32>,
}

/// Scales and tables of a matrix.
#[derive(Debug, Clone)]
pub(super) struct LayerBlocks {
    state: State,
    scales: ShapedTensor,
    table: ShapedTensor,
    /// Scales of the scales, and their table, for double quantisation.
    nested: Option<[ShapedTensor; 2]>,
}

impl State {
    /// Name of the tensor with a matrix's state, if there is one.
    pub fn name(matrix: &str, is_there: impl Fn(&str) -> bool) -> Option<String> {
        let names = TYPES.map(|kind| format!("{matrix}.quant_state.bitsandbytes__{kind}"));
        names.into_iter().find(|name| is_there(name))
    }

    /// Parses the state.
    pub fn read(tensor: &ShapedTensor) -> Result<Self> {
        let invalid =
            |expected: &str, got: String| Err(tensor.stored.tensor_error(expected.into(), got));
        let length = match tensor.shape[..] {
            [length] if length <= MAX_STATE_BYTES && tensor.stored.dtype() == Dtype::U8 => length,
            _ => return invalid("a JSON string of type U8", format!("shape {:?}", tensor.shape)),
        };
        let text: Vec<[u8; 1]> = tensor.stored.bytes(0, length)?;
        let state: Self = match serde_json::from_slice(text.as_flattened()) {
            Ok(state) => state,
            Err(error) => {
                return invalid("the state of a bitsandbytes matrix", error.to_string());
            }
        };
        let sizes = [Some(state.blocksize), state.nested_blocksize];
        match sizes.into_iter().flatten().all(|size| size > 0) {
            true => Ok(state),
            false => invalid("blocks of 1 or more numbers", "blocks of 0".to_owned()),
        }
    }

    /// Rows and columns of the matrix; checks that the tensor of numbers has their `bytes`.
    pub fn shape(&self, numbers: &ShapedTensor, bytes: usize) -> Result<[usize; 2]> {
        if let [rows @ (1..), columns @ (1..)] = self.shape[..]
            && rows.checked_mul(columns).map(|count| count.div_ceil(2)) == Some(bytes)
        {
            return Ok([rows, columns]);
        }
        let expected = format!("two numbers per byte of a matrix of shape {:?}", self.shape);
        Err(numbers.stored.tensor_error(expected, format!("{bytes} bytes")))
    }
}

impl LayerBlocks {
    /// Finds the tensors of scales and tables with `part`.
    pub fn new(
        state: State,
        matrix: &str,
        part: &mut dyn FnMut(&str, String) -> Result<ShapedTensor>,
    ) -> Result<Self> {
        let scales = part("scales", format!("{matrix}.absmax"))?;
        let table = part("table", format!("{matrix}.quant_map"))?;
        let mut nested = None;
        if state.nested_blocksize.is_some() {
            let scale_scales = part("scales' scales", format!("{matrix}.nested_absmax"))?;
            nested =
                Some([scale_scales, part("scales' table", format!("{matrix}.nested_quant_map"))?]);
        }
        Ok(Self { state, scales, table, nested })
    }

    /// Name of the type for descriptions.
    pub fn type_name(&self) -> String {
        self.state.quant_type.to_uppercase()
    }

    /// Number of neighbours that share a scale.
    pub fn size(&self) -> usize {
        self.state.blocksize
    }

    /// Reads the table, and the scales of `count` numbers.
    pub fn read(&self, count: usize) -> Result<(Vec<f32>, Vec<f32>)> {
        let float = &[Dtype::F32, Dtype::F16, Dtype::BF16];
        let table = |tensor: &ShapedTensor, length: usize| {
            tensor.check_shape(&[length])?;
            numbers(tensor, float)
        };
        let blocks = count.div_ceil(self.state.blocksize);
        self.scales.check_shape(&[blocks])?;
        let scales = match &self.nested {
            None => numbers(&self.scales, float)?,
            Some([scale_scales, scale_table]) => {
                let size = self.state.nested_blocksize.unwrap_or(1);
                scale_scales.check_shape(&[blocks.div_ceil(size)])?;
                let (block_scales, offset) =
                    (numbers(scale_scales, float)?, self.state.nested_offset);
                let table = table(scale_table, SCALE_TABLE_SIZE)?;
                let offset = offset.filter(|offset| offset.is_finite());
                let Some(offset) = offset else {
                    return Err(shape_error(&self.scales, "a finite nested_offset in its state"));
                };
                let indices = numbers(&self.scales, &[Dtype::U8])?;
                let scale = |(at, index): (usize, f32)| {
                    table[index as usize] * block_scales[at / size] + offset
                };
                indices.into_iter().enumerate().map(scale).collect()
            }
        };
        Ok((table(&self.table, 16)?, scales))
    }
}
