//! Which rows of which tensor a matrix is made of.

/// Rows of a tensor, in the order in which a matrix has them.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    /// The tensor's whole name.
    pub name: String,
    /// Its dimensions but the last.
    pub dims: Vec<usize>,
    pub lies: Lies,
    /// The first row that is wanted, of all dimensions together,
    pub first: usize,
    /// how many further on the next one is,
    pub step: usize,
    /// and how many are wanted.
    pub wanted: usize,
}

/// How a matrix lies in its tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lies {
    InRows,
    /// The matrix is turned: its columns are the tensor's rows from number `from` on, its rows the
    /// tensor's `width` columns.
    InColumns {
        from: usize,
        width: usize,
    },
}

impl Part {
    /// The first rows of a matrix.
    pub fn of(name: String, rows: usize, wanted: usize) -> Self {
        Self { name, dims: vec![rows], lies: Lies::InRows, first: 0, step: 1, wanted }
    }

    /// A vector as a row.
    pub fn vector(name: String) -> Self {
        Self { dims: Vec::new(), ..Self::of(name, 1, 1) }
    }

    /// All rows of matrix `number` of `count` in one tensor.
    pub fn matrix(name: String, [count, rows]: [usize; 2], number: usize) -> Self {
        let (dims, lies) = (vec![count, rows], Lies::InRows);
        Self { name, dims, lies, first: number * rows, step: 1, wanted: rows }
    }

    /// A matrix of `width` rows, turned, of a tensor with these dimensions before its last: its
    /// columns begin with row `from`.
    pub fn turned(name: String, dims: Vec<usize>, from: usize, width: usize) -> Self {
        let lies = Lies::InColumns { from, width };
        Self { name, dims, lies, first: 0, step: 1, wanted: width }
    }

    /// Of these rows every other one, from the first or from the second on.
    pub fn every_other(self, from: usize) -> Self {
        Self { first: self.first + from, step: 2, wanted: self.wanted / 2, ..self }
    }

    /// The tensor's shape, with rows of so many columns.
    pub fn shape(&self, columns: usize) -> Vec<usize> {
        let width = match self.lies {
            Lies::InRows => columns,
            Lies::InColumns { width, .. } => width,
        };
        [&self.dims[..], &[width]].concat()
    }
}
