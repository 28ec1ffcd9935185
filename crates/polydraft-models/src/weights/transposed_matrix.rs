//! Transposed matrix in memory.

use polydraft_kernels::Format;

use super::element::Element;

/// Transposed matrix in memory.
pub(crate) struct TransposedMatrix {
    values: Vec<f32>,
    exact: Format,
}

impl TransposedMatrix {
    /// Transposes a matrix of `width` columns.
    pub fn new(values: &[f32], width: usize, exact: Format) -> Self {
        let transposed = (0..width).flat_map(|row| values[row..].iter().step_by(width).copied());
        Self { values: transposed.collect(), exact }
    }

    /// Format that stores the matrix exactly.
    pub fn exact(&self) -> Format {
        self.exact
    }

    /// Reads rows of `columns` values from row `first` on.
    pub fn read<T: Element>(&self, first: usize, columns: usize, values: &mut [T]) {
        for (value, from) in values.iter_mut().zip(&self.values[first * columns..]) {
            *value = T::from_f32(from.to_le_bytes());
        }
    }
}
