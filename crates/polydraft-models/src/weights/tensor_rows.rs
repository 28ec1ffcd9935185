//! Rows of tensors that make up a matrix.

/// Rows of a tensor, in the order in which a matrix has them.
#[derive(Debug, Clone)]
pub(crate) struct TensorRows {
    /// Full name of the tensor.
    pub name: String,
    /// Dimensions of the tensor without the last.
    pub dims: Vec<usize>,
    /// Orientation of the matrix in the tensor.
    pub orientation: Orientation,
    /// First row, counted over all dimensions.
    pub first: usize,
    /// Distance between rows.
    pub step: usize,
    /// Number of rows.
    pub count: usize,
}

/// Orientation of a matrix in its tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Orientation {
    /// The rows of the matrix are rows of the tensor.
    AsStored,
    /// The columns of the matrix are the tensor's rows from row `from` on, its rows the tensor's
    /// `width` columns.
    Transposed { from: usize, width: usize },
}

impl TensorRows {
    /// First `count` rows of a matrix of `rows` rows.
    pub fn first_rows(name: String, rows: usize, count: usize) -> Self {
        Self {
            name,
            dims: vec![rows],
            orientation: Orientation::AsStored,
            first: 0,
            step: 1,
            count,
        }
    }

    /// Vector as one row.
    pub fn vector(name: String) -> Self {
        Self { dims: Vec::new(), ..Self::first_rows(name, 1, 1) }
    }

    /// All rows of matrix `number` of `count` matrices in one tensor.
    pub fn matrix(name: String, [count, rows]: [usize; 2], number: usize) -> Self {
        let (dims, orientation) = (vec![count, rows], Orientation::AsStored);
        Self { name, dims, orientation, first: number * rows, step: 1, count: rows }
    }

    /// Transposed matrix of `width` rows in a tensor with these dimensions before its last: row
    /// `from` of the tensor is its first column.
    pub fn transposed(name: String, dims: Vec<usize>, from: usize, width: usize) -> Self {
        let orientation = Orientation::Transposed { from, width };
        Self { name, dims, orientation, first: 0, step: 1, count: width }
    }

    /// Every second row, from the first or the second on.
    pub fn every_second(self, from: usize) -> Self {
        Self { first: self.first + from, step: 2, count: self.count / 2, ..self }
    }

    /// Shape of the tensor, with rows of `columns` numbers.
    pub fn shape(&self, columns: usize) -> Vec<usize> {
        let width = match self.orientation {
            Orientation::AsStored => columns,
            Orientation::Transposed { width, .. } => width,
        };
        [&self.dims[..], &[width]].concat()
    }
}
