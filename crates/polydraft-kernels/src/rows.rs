//! Activations: a matrix `[rows, width]` of f32, one row per token.
//!
//! For one token, a norm, a sum or a copy takes a fraction of a microsecond, so any overhead per
//! operation counts. Rows are therefore one contiguous vector, and operations on them plain loops.

use crate::error::{Error, Result};

/// A matrix of f32, stored row by row.
///
/// ```
/// use polydraft_kernels::Rows;
///
/// let rows = Rows::new(vec![1.0, 2.0, 3.0, 4.0], 2);
/// let sums = rows.plus(&Rows::new(vec![10.0, 20.0], 2))?;
/// assert_eq!(sums.numbers(), [11.0, 22.0, 13.0, 24.0]);
/// # Ok::<(), polydraft_kernels::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Rows {
    numbers: Vec<f32>,
    width: usize,
}

impl Rows {
    /// Creates rows of `width` numbers from contiguous `numbers`.
    pub fn new(numbers: Vec<f32>, width: usize) -> Self {
        Self { numbers, width }
    }

    /// Number of columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Number of rows.
    pub fn count(&self) -> usize {
        self.numbers.len() / self.width.max(1)
    }

    /// Returns all numbers, row by row.
    pub fn numbers(&self) -> &[f32] {
        &self.numbers
    }

    /// Returns all numbers mutably, row by row.
    pub fn numbers_mut(&mut self) -> &mut [f32] {
        &mut self.numbers
    }

    /// Converts the rows into their numbers without copying.
    pub fn into_numbers(self) -> Vec<f32> {
        self.numbers
    }

    /// Adds `other`, which has the same shape, or is one row that is added to each row.
    ///
    /// # Errors
    /// Rows of another width, or another number of rows.
    pub fn plus(mut self, other: &Self) -> Result<Self> {
        let (all, width, others) = (self.numbers.len(), self.width, other.numbers.len());
        if other.width != width || ![width, all].contains(&others) {
            return Err(Error::Shape {
                operation: "sum",
                expected: format!("{all} numbers or {width} in rows of {width}"),
                got: format!("{others} in rows of {}", other.width),
            });
        }
        for numbers in self.numbers.chunks_exact_mut(others.max(1)) {
            numbers.iter_mut().zip(&other.numbers).for_each(|(number, other)| *number += other);
        }
        Ok(self)
    }

    /// Multiplies every number by `factor`.
    pub fn scaled(mut self, factor: f64) -> Self {
        if factor != 1.0 {
            self.numbers.iter_mut().for_each(|number| *number *= factor as f32);
        }
        self
    }

    /// Replaces every number x by c · tanh(x / c), if there is a cap c.
    pub fn capped(mut self, cap: Option<f64>) -> Self {
        if let Some(cap) = cap {
            let cap = cap as f32;
            self.numbers.iter_mut().for_each(|number| *number = (*number / cap).tanh() * cap);
        }
        self
    }

    /// Returns the rows with the given indices, in their order.
    ///
    /// # Panics
    /// Indices out of range.
    pub fn select(&self, rows: &[usize]) -> Self {
        let width = self.width;
        let rows: Vec<&[f32]> =
            rows.iter().map(|row| &self.numbers[row * width..][..width]).collect();
        Self { numbers: rows.concat(), width }
    }

    /// Returns `count` columns, starting at column `from`.
    ///
    /// # Panics
    /// Columns out of range.
    pub fn columns(&self, from: usize, count: usize) -> Self {
        let rows = self.numbers.chunks_exact(self.width.max(1)).map(|row| &row[from..][..count]);
        Self { numbers: rows.collect::<Vec<&[f32]>>().concat(), width: count }
    }

    /// Concatenates matrices with equal numbers of rows along their columns.
    ///
    /// # Errors
    /// Different numbers of rows.
    pub fn concat_columns(parts: &[Self]) -> Result<Self> {
        let width = parts.iter().map(Self::width).sum();
        let rows = parts.first().map_or(0, Self::count);
        if let Some(other) = parts.iter().map(Self::count).find(|other| *other != rows) {
            return Err(Error::Shape {
                operation: "concatenated columns",
                expected: format!("{rows} rows in each matrix"),
                got: other.to_string(),
            });
        }
        let mut numbers = Vec::with_capacity(rows * width);
        for row in 0..rows {
            for part in parts {
                numbers.extend_from_slice(&part.numbers[row * part.width..][..part.width]);
            }
        }
        Ok(Self { numbers, width })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(numbers: &[f32], width: usize) -> Rows {
        Rows::new(numbers.to_vec(), width)
    }

    #[test]
    fn operations_give_expected_rows() {
        let (x, y) = ([1.0, -2.0, 3.0, 4.0, 5.0, 6.5], [0.5, 1.0, 2.0, -3.0, 4.0, 8.0]);
        let all = || rows(&x, 3);
        for (found, expected) in [
            (all().plus(&rows(&y, 3)).unwrap(), rows(&[1.5, -1.0, 5.0, 1.0, 9.0, 14.5], 3)),
            (
                all().plus(&rows(&[10.0, 20.0, 30.0], 3)).unwrap(),
                rows(&[11.0, 18.0, 33.0, 14.0, 25.0, 36.5], 3),
            ),
            (all().scaled(0.25), rows(&[0.25, -0.5, 0.75, 1.0, 1.25, 1.625], 3)),
            (all().scaled(1.0).capped(None), all()),
            (all().select(&[1, 0, 1]), rows(&[4.0, 5.0, 6.5, 1.0, -2.0, 3.0, 4.0, 5.0, 6.5], 3)),
            (all().columns(1, 2), rows(&[-2.0, 3.0, 5.0, 6.5], 2)),
            (
                Rows::concat_columns(&[all(), rows(&y, 3), rows(&[7.0, 8.0], 1)]).unwrap(),
                rows(&[1.0, -2.0, 3.0, 0.5, 1.0, 2.0, 7.0, 4.0, 5.0, 6.5, -3.0, 4.0, 8.0, 8.0], 7),
            ),
        ] {
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn cap_matches_formula_in_double_precision() {
        let x = [1.0, -2.0, 3.0, 4.0, 5.0, 6.5];
        let capped = rows(&x, 3).capped(Some(2.0));
        for (found, x) in capped.numbers().iter().zip(x) {
            let exact = 2.0 * (f64::from(x) / 2.0).tanh();
            assert!((f64::from(*found) - exact).abs() < 1e-6, "{found}, {exact}");
        }
    }

    #[test]
    fn rejects_rows_of_other_shapes() {
        let x = [1.0, -2.0, 3.0, 4.0, 5.0, 6.5];
        let all = || rows(&x, 3);
        assert!(all().plus(&rows(&x[..4], 4)).is_err());
        assert!(all().plus(&rows(&x[..2], 2)).is_err());
        assert!(Rows::concat_columns(&[all(), rows(&x, 2)]).is_err());
    }
}
