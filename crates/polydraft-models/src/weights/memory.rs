//! A matrix that was read and turned.

use polydraft_kernels::Format;

use super::element::Element;

/// Rows in memory.
pub(crate) struct Memory {
    values: Vec<f32>,
    exact: Format,
}

impl Memory {
    /// The columns of a matrix of `width` columns as rows.
    pub fn turned(values: &[f32], width: usize, exact: Format) -> Self {
        let turned = (0..width).flat_map(|row| values[row..].iter().step_by(width).copied());
        Self { values: turned.collect(), exact }
    }

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
