//! Matrices of 4 bits as bitsandbytes stores them: one run of numbers in blocks, whose scales may
//! be indices into a table themselves.
//!
//! Sources: Dettmers et al. 2023 (QLoRA), section 3; bitsandbytes' `QuantState.as_dict`.

use safetensors::tensor::Dtype;
use serde::Deserialize;

use super::super::parts::Shaped;
use super::{numbers, wrong};
use crate::error::Result;

/// The names of a matrix' state by its type.
const TYPES: [&str; 2] = ["nf4", "fp4"];
/// Bytes of a state, at most: it has some two hundred.
const LONGEST: usize = 1 << 16;
/// Values of a table of scales.
const OF_SCALES: usize = 256;

/// What is said of a matrix beside its tensors.
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
pub(super) struct Blocks {
    state: State,
    scales: Shaped,
    table: Shaped,
    /// Scales of the scales, and their table.
    nested: Option<[Shaped; 2]>,
}

impl State {
    /// The name of a matrix' state, if there is one.
    pub fn name(matrix: &str, is_there: impl Fn(&str) -> bool) -> Option<String> {
        let names = TYPES.map(|kind| format!("{matrix}.quant_state.bitsandbytes__{kind}"));
        names.into_iter().find(|name| is_there(name))
    }

    pub fn read(tensor: &Shaped) -> Result<Self> {
        let problem = |expected: &str, got: String| Err(tensor.stored.wrong(expected.into(), got));
        let length = match tensor.shape[..] {
            [length] if length <= LONGEST && tensor.stored.dtype() == Dtype::U8 => length,
            _ => return problem("a text of type U8", format!("shape {:?}", tensor.shape)),
        };
        let text: Vec<[u8; 1]> = tensor.stored.bytes(0, length)?;
        let state: Self = match serde_json::from_slice(text.as_flattened()) {
            Ok(state) => state,
            Err(error) => {
                return problem("what bitsandbytes says of a matrix", error.to_string());
            }
        };
        let sizes = [Some(state.blocksize), state.nested_blocksize];
        match sizes.into_iter().flatten().all(|size| size > 0) {
            true => Ok(state),
            false => problem("blocks of 1 or more numbers", "blocks of 0".to_owned()),
        }
    }

    /// Rows and columns, which the numbers have bytes for.
    pub fn shape(&self, numbers: &Shaped, bytes: usize) -> Result<[usize; 2]> {
        if let [rows @ (1..), columns @ (1..)] = self.shape[..]
            && rows.checked_mul(columns).map(|count| count.div_ceil(2)) == Some(bytes)
        {
            return Ok([rows, columns]);
        }
        let expected = format!("two numbers a byte of a matrix of shape {:?}", self.shape);
        Err(numbers.stored.wrong(expected, format!("{bytes} bytes")))
    }
}

impl Blocks {
    pub fn new(
        state: State,
        matrix: &str,
        part: &mut dyn FnMut(&str, String) -> Result<Shaped>,
    ) -> Result<Self> {
        let scales = part("scales", format!("{matrix}.absmax"))?;
        let table = part("table", format!("{matrix}.quant_map"))?;
        let mut nested = None;
        if state.nested_blocksize.is_some() {
            let of_scales = part("scales' scales", format!("{matrix}.nested_absmax"))?;
            nested =
                Some([of_scales, part("scales' table", format!("{matrix}.nested_quant_map"))?]);
        }
        Ok(Self { state, scales, table, nested })
    }

    pub fn called(&self) -> String {
        self.state.quant_type.to_uppercase()
    }

    /// Numbers that share a scale.
    pub fn size(&self) -> usize {
        self.state.blocksize
    }

    /// The table, and the scales of so many numbers.
    pub fn read(&self, count: usize) -> Result<(Vec<f32>, Vec<f32>)> {
        let float = &[Dtype::F32, Dtype::F16, Dtype::BF16];
        let table = |of: &Shaped, length: usize| {
            of.expect(&[length])?;
            numbers(of, float)
        };
        let blocks = count.div_ceil(self.state.blocksize);
        self.scales.expect(&[blocks])?;
        let scales = match &self.nested {
            None => numbers(&self.scales, float)?,
            Some([of_scales, of_table]) => {
                let size = self.state.nested_blocksize.unwrap_or(1);
                of_scales.expect(&[blocks.div_ceil(size)])?;
                let (each, offset) = (numbers(of_scales, float)?, self.state.nested_offset);
                let table = table(of_table, OF_SCALES)?;
                let offset = offset.filter(|offset| offset.is_finite());
                let Some(offset) = offset else {
                    return Err(wrong(&self.scales, "a finite nested_offset in its state"));
                };
                let indices = numbers(&self.scales, &[Dtype::U8])?;
                let scale =
                    |(at, index): (usize, f32)| table[index as usize] * each[at / size] + offset;
                indices.into_iter().enumerate().map(scale).collect()
            }
        };
        Ok((table(&self.table, 16)?, scales))
    }
}
