//! Weight matrices, and products with them.

use polydraft_kernels::{Error as KernelError, Packed, Rows};

use crate::error::Result;
use crate::importance::Importance;
use crate::precision::Precision;
use crate::self_draft_reader::SelfDraftReader;
use crate::weights::{TensorRows, Weights};

/// A weight matrix of shape `[out, in]`.
#[derive(Debug)]
pub(crate) enum Matrix {
    Packed(Packed),
    /// Matrices below each other, each stored in its own format.
    Stacked(Vec<Packed>),
}

impl Matrix {
    /// Reads and stacks `parts`.
    pub fn load(
        weights: &mut Weights,
        parts: &[TensorRows],
        columns: usize,
        precision: Precision,
    ) -> Result<Self> {
        let rows = weights.stacked(parts, columns)?;
        if precision != Precision::File {
            let format = precision.fitting(columns).format();
            return Packed::load(format, rows.count(), columns, &rows).map(Self::Packed);
        }
        let runs = rows.runs_by_format().into_iter();
        let matrices =
            runs.map(|(format, rows)| Packed::load(format, rows.count(), columns, &rows));
        let mut matrices = matrices.collect::<Result<Vec<Packed>>>()?;
        match matrices.len() {
            1 => Ok(Self::Packed(matrices.remove(0))),
            _ => Ok(Self::Stacked(matrices)),
        }
    }

    /// The stacked matrices, from the top.
    fn parts(&self) -> &[Packed] {
        match self {
            Self::Packed(matrix) => std::slice::from_ref(matrix),
            Self::Stacked(parts) => parts,
        }
    }

    /// Builds a matrix with other parts and the same structure.
    fn with_parts(&self, mut parts: impl Iterator<Item = Result<Packed>>) -> Result<Self> {
        match (self, parts.next()) {
            (Self::Packed(_), Some(matrix)) => matrix.map(Self::Packed),
            (_, first) => first.into_iter().chain(parts).collect::<Result<_>>().map(Self::Stacked),
        }
    }

    /// Name of part number `part` of a matrix that is called `name`.
    fn part_name(&self, name: &str, part: usize) -> String {
        match self {
            Self::Packed(_) => name.to_owned(),
            Self::Stacked(_) => format!("{name}.{part}"),
        }
    }

    /// Rounds the weights to `precision`. If scales are searched for, `columns` are the weights of
    /// the errors in each column.
    pub fn rounded(&self, precision: Precision, columns: Option<&[f32]>) -> Result<Self> {
        self.with_parts(self.parts().iter().map(|part| {
            let format = precision.fitting(part.shape()[1]).format();
            Ok(part.rounded(format, columns))
        }))
    }

    /// Reads the result of an earlier [`rounded`](Self::rounded) from a file; `name` is the name
    /// that was given to [`bytes_by_name`](Self::bytes_by_name).
    pub fn load_cached(
        &self,
        name: &str,
        precision: Precision,
        file: &SelfDraftReader,
    ) -> Result<Self> {
        self.with_parts(self.parts().iter().enumerate().map(|(number, part)| {
            let shape @ [_, columns] = part.shape();
            file.matrix(&self.part_name(name, number), precision.fitting(columns).format(), shape)
        }))
    }

    /// Bytes of the stored parts, each with a name that begins with `name`.
    pub fn bytes_by_name(&self, name: &str) -> Vec<(String, &[u8])> {
        let parts = self.parts().iter().enumerate();
        parts.map(|(number, part)| (self.part_name(name, number), part.as_bytes())).collect()
    }

    /// Multiplies `x [rows, in]` by the transposed matrix: `[rows, out]`.
    pub fn forward(&self, x: &Rows) -> Result<Rows> {
        match self {
            Self::Packed(matrix) => Ok(matrix.forward(x)?),
            Self::Stacked(parts) => {
                let parts = parts.iter().map(|part| part.forward(x));
                Ok(Rows::concat_columns(&parts.collect::<std::result::Result<Vec<_>, _>>()?)?)
            }
        }
    }

    /// Like [`forward`](Self::forward); reuses the memory of `buffer` if it is large enough.
    pub fn forward_into(&self, x: &Rows, buffer: Vec<f32>) -> Result<Rows> {
        match self {
            Self::Packed(matrix) => Ok(matrix.forward_into(x, buffer)?),
            Self::Stacked(_) => self.forward(x),
        }
    }

    /// The only part, for row lookups.
    fn single(&self) -> Result<&Packed> {
        match self {
            Self::Packed(matrix) => Ok(matrix),
            Self::Stacked(parts) => Err(KernelError::Shape {
                operation: "rows of a matrix",
                expected: "one tensor".to_owned(),
                got: parts.len().to_string(),
            }
            .into()),
        }
    }

    /// Copies the rows at `ids`: `[ids, in]`.
    pub fn rows(&self, ids: &[u32]) -> Result<Rows> {
        Ok(self.single()?.rows(ids)?)
    }

    /// A matrix of the rows at `ids`, stored in the same format.
    pub fn select(&self, ids: &[u32]) -> Result<Self> {
        Ok(Self::Packed(self.single()?.select(ids)?))
    }

    /// Size of the weights in bytes.
    pub fn bytes(&self) -> usize {
        self.parts().iter().map(Packed::bytes).sum()
    }
}

/// A linear layer: a matrix and, in some families, a bias.
#[derive(Debug)]
pub(crate) struct Linear {
    pub matrix: Matrix,
    /// Bias `[1, out]`.
    pub bias: Option<Rows>,
    /// Statistics of the inputs, while they are recorded.
    pub inputs: Option<Importance>,
}

impl Linear {
    /// Maps `x [rows, in]` to `[rows, out]`.
    pub fn forward(&self, x: &Rows) -> Result<Rows> {
        if let Some(inputs) = &self.inputs {
            inputs.record(x);
        }
        let y = self.matrix.forward(x)?;
        match &self.bias {
            None => Ok(y),
            Some(bias) => Ok(y.plus(bias)?),
        }
    }
}
