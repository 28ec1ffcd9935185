//! Rows of numbers on their way through a model, `[rows, width]`, in f32.
//!
//! Problem: of one token a norm, a sum or a copy is a fraction of a microsecond's work; what comes
//! before such a loop counts.
//! Method: rows are one vector, and what is done with them are loops.

use crate::error::{Error, Result};

/// Some rows of equal width.
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
    /// Rows of this width that follow each other in `numbers`.
    pub fn new(numbers: Vec<f32>, width: usize) -> Self {
        Self { numbers, width }
    }

    /// Numbers of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// How many rows there are.
    pub fn count(&self) -> usize {
        self.numbers.len() / self.width.max(1)
    }

    /// All numbers, row by row.
    pub fn numbers(&self) -> &[f32] {
        &self.numbers
    }

    /// All numbers, to be changed.
    pub fn numbers_mut(&mut self) -> &mut [f32] {
        &mut self.numbers
    }

    /// All numbers, without a copy.
    pub fn into_numbers(self) -> Vec<f32> {
        self.numbers
    }

    /// The sum with as many rows, or with one row for all.
    ///
    /// # Errors
    /// Rows of another width, or another number of them.
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

    /// Every number times `factor`.
    pub fn scaled(mut self, factor: f64) -> Self {
        if factor != 1.0 {
            self.numbers.iter_mut().for_each(|number| *number *= factor as f32);
        }
        self
    }

    /// c · tanh(x / c) of every number x, if there is a cap c.
    pub fn capped(mut self, cap: Option<f64>) -> Self {
        if let Some(cap) = cap {
            let cap = cap as f32;
            self.numbers.iter_mut().for_each(|number| *number = (*number / cap).tanh() * cap);
        }
        self
    }

    /// The rows of these numbers, in this order.
    ///
    /// # Panics
    /// Rows that are not there.
    pub fn select(&self, rows: &[usize]) -> Self {
        let width = self.width;
        let rows: Vec<&[f32]> =
            rows.iter().map(|row| &self.numbers[row * width..][..width]).collect();
        Self { numbers: rows.concat(), width }
    }

    /// So many columns from number `from` on.
    ///
    /// # Panics
    /// Columns that are not there.
    pub fn columns(&self, from: usize, count: usize) -> Self {
        let rows = self.numbers.chunks_exact(self.width.max(1)).map(|row| &row[from..][..count]);
        Self { numbers: rows.collect::<Vec<&[f32]>>().concat(), width: count }
    }

    /// As many rows, of all parts side by side.
    ///
    /// # Errors
    /// Parts of different numbers of rows.
    pub fn beside(parts: &[Self]) -> Result<Self> {
        let width = parts.iter().map(Self::width).sum();
        let rows = parts.first().map_or(0, Self::count);
        if let Some(other) = parts.iter().map(Self::count).find(|other| *other != rows) {
            return Err(Error::Shape {
                operation: "rows side by side",
                expected: format!("{rows} of each part"),
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
    fn loops_do_what_they_say() {
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
                Rows::beside(&[all(), rows(&y, 3), rows(&[7.0, 8.0], 1)]).unwrap(),
                rows(&[1.0, -2.0, 3.0, 0.5, 1.0, 2.0, 7.0, 4.0, 5.0, 6.5, -3.0, 4.0, 8.0, 8.0], 7),
            ),
        ] {
            assert_eq!(found, expected);
        }
        // By the formula, in double precision.
        let capped = all().capped(Some(2.0));
        for (found, x) in capped.numbers().iter().zip(x) {
            let exact = 2.0 * (f64::from(x) / 2.0).tanh();
            assert!((f64::from(*found) - exact).abs() < 1e-6, "{found}, {exact}");
        }
        assert!(all().plus(&rows(&x[..4], 4)).is_err());
        assert!(all().plus(&rows(&x[..2], 2)).is_err());
        assert!(Rows::beside(&[all(), rows(&x, 2)]).is_err());
    }
}
