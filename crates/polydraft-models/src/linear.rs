//! Weight matrices, and products with them.

use polydraft_kernels::{Error as KernelError, Packed, Rows};

use crate::copy_reader::CopyReader;
use crate::error::Result;
use crate::importance::Importance;
use crate::precision::Precision;
use crate::weights::{Part, Weights};

/// A matrix of shape `[out, in]` that rows are multiplied with.
#[derive(Debug)]
pub(crate) enum Matrix {
    Packed(Packed),
    /// Rows of one after those of the other, each stored in its own format.
    Stacked(Vec<Packed>),
}

impl Matrix {
    /// Reads and stacks `parts`.
    pub fn load(
        weights: &mut Weights,
        parts: &[Part],
        columns: usize,
        precision: Precision,
    ) -> Result<Self> {
        let rows = weights.stacked(parts, columns)?;
        if precision != Precision::File {
            let format = precision.fitting(columns).format();
            return Packed::load(format, rows.count(), columns, &rows).map(Self::Packed);
        }
        let runs = rows.exactly().into_iter();
        let matrices =
            runs.map(|(format, rows)| Packed::load(format, rows.count(), columns, &rows));
        let mut matrices = matrices.collect::<Result<Vec<Packed>>>()?;
        match matrices.len() {
            1 => Ok(Self::Packed(matrices.remove(0))),
            _ => Ok(Self::Stacked(matrices)),
        }
    }

    /// The parts, one after the other.
    fn parts(&self) -> &[Packed] {
        match self {
            Self::Packed(matrix) => std::slice::from_ref(matrix),
            Self::Stacked(parts) => parts,
        }
    }

    /// The same of other parts.
    fn of(&self, mut parts: impl Iterator<Item = Result<Packed>>) -> Result<Self> {
        match (self, parts.next()) {
            (Self::Packed(_), Some(matrix)) => matrix.map(Self::Packed),
            (_, first) => first.into_iter().chain(parts).collect::<Result<_>>().map(Self::Stacked),
        }
    }

    /// The name of a part of a matrix of this name.
    fn name_of(&self, name: &str, part: usize) -> String {
        match self {
            Self::Packed(_) => name.to_owned(),
            Self::Stacked(_) => format!("{name}.{part}"),
        }
    }

    /// The numbers that are stored here, rounded to `precision`; where scales are searched for,
    /// errors count as `columns` say.
    pub fn rounded(&self, precision: Precision, columns: Option<&[f32]>) -> Result<Self> {
        self.of(self.parts().iter().map(|part| {
            let format = precision.fitting(part.shape()[1]).format();
            Ok(part.rounded(format, columns))
        }))
    }

    /// What [`rounded`](Self::rounded) made of these numbers before, from a file; `name` is the one
    /// that [`bytes_by_name`](Self::bytes_by_name) was given.
    pub fn kept(&self, name: &str, precision: Precision, file: &CopyReader) -> Result<Self> {
        self.of(self.parts().iter().enumerate().map(|(number, part)| {
            let shape @ [_, columns] = part.shape();
            file.matrix(&self.name_of(name, number), precision.fitting(columns).format(), shape)
        }))
    }

    /// The numbers as they lie in memory, by a name that begins with `name`.
    pub fn bytes_by_name(&self, name: &str) -> Vec<(String, &[u8])> {
        let parts = self.parts().iter().enumerate();
        parts.map(|(number, part)| (self.name_of(name, number), part.as_bytes())).collect()
    }

    /// `x [rows, in]` times the transposed matrix: `[rows, out]`.
    pub fn forward(&self, x: &Rows) -> Result<Rows> {
        match self {
            Self::Packed(matrix) => Ok(matrix.forward(x)?),
            Self::Stacked(parts) => {
                let parts = parts.iter().map(|part| part.forward(x));
                Ok(Rows::beside(&parts.collect::<std::result::Result<Vec<_>, _>>()?)?)
            }
        }
    }

    /// [`forward`](Self::forward), into memory that is there already, if it is large enough.
    pub fn forward_in(&self, x: &Rows, room: Vec<f32>) -> Result<Rows> {
        match self {
            Self::Packed(matrix) => Ok(matrix.forward_in(x, room)?),
            Self::Stacked(_) => self.forward(x),
        }
    }

    /// The one part that rows are taken of.
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

    /// The rows of the matrix at `ids`: `[ids, in]`.
    pub fn rows(&self, ids: &[u32]) -> Result<Rows> {
        Ok(self.single()?.rows(ids)?)
    }

    /// The rows at `ids` as a matrix of their own, stored in the same format.
    pub fn select(&self, ids: &[u32]) -> Result<Self> {
        Ok(Self::Packed(self.single()?.select(ids)?))
    }

    /// Bytes that the numbers take.
    pub fn bytes(&self) -> usize {
        self.parts().iter().map(Packed::bytes).sum()
    }
}

/// A product with a matrix and, in some families, a bias.
#[derive(Debug)]
pub(crate) struct Linear {
    pub matrix: Matrix,
    /// One row.
    pub bias: Option<Rows>,
    /// Its inputs, while they are recorded.
    pub inputs: Option<Importance>,
}

impl Linear {
    /// `x [rows, in]` to `[rows, out]`.
    pub fn forward(&self, x: &Rows) -> Result<Rows> {
        if let Some(inputs) = &self.inputs {
            inputs.note(x);
        }
        let y = self.matrix.forward(x)?;
        match &self.bias {
            None => Ok(y),
            Some(bias) => Ok(y.plus(bias)?),
        }
    }
}
