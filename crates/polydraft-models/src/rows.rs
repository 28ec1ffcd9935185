//! Rows of numbers on their way through a model, `[rows, width]`: in memory on a processor, a
//! tensor on a card.
//!
//! Problem: of one token a norm, a sum or a copy is a fraction of a microsecond's work, and an
//! operation on tensors takes one microsecond or two before it begins; a small model's passes were
//! made of that.
//! Method: on a processor rows are vectors, and what is done with them are loops. On a card they
//! are tensors.

use std::borrow::Cow;

use candle_core::{DType, Device, Result, Tensor, bail};

/// Some rows of equal width. On a processor in f32.
#[derive(Debug, Clone)]
pub(crate) enum Rows {
    Host { numbers: Vec<f32>, width: usize },
    Card(Tensor),
}

/// What is in memory was to meet what is on a card.
pub(crate) fn apart<T>(operation: &str) -> Result<T> {
    bail!("{operation}: expected all numbers in one place, got some in memory and some on a card")
}

/// c · tanh(x / c) of every number x of a tensor.
pub(crate) fn capped(x: Tensor, cap: f64) -> Result<Tensor> {
    (x / cap)?.tanh()? * cap
}

impl Rows {
    /// Where the device is, in what it computes in.
    pub fn new(numbers: Vec<f32>, width: usize, device: &Device, dtype: DType) -> Result<Self> {
        if device.is_cpu() {
            return Ok(Self::Host { numbers, width });
        }
        Ok(Self::Card(Tensor::from_vec(numbers, ((), width), device)?.to_dtype(dtype)?))
    }

    pub fn width(&self) -> Result<usize> {
        match self {
            Self::Host { width, .. } => Ok(*width),
            Self::Card(x) => x.dim(1),
        }
    }

    /// All numbers, in f32.
    pub fn numbers(&self) -> Result<Cow<'_, [f32]>> {
        match self {
            Self::Host { numbers, .. } => Ok(Cow::Borrowed(numbers)),
            Self::Card(x) => x.to_dtype(DType::F32)?.flatten_all()?.to_vec1().map(Cow::Owned),
        }
    }

    /// Likewise, without a copy where that can be.
    pub fn into_numbers(self) -> Result<Vec<f32>> {
        match self {
            Self::Host { numbers, .. } => Ok(numbers),
            card => card.numbers().map(Cow::into_owned),
        }
    }

    /// The sum with as many rows, or with one row for all.
    pub fn add(self, other: &Self) -> Result<Self> {
        match (self, other) {
            (Self::Host { mut numbers, width }, Self::Host { numbers: others, width: other }) => {
                if *other != width || ![width, numbers.len()].contains(&others.len()) {
                    let (expected, got) = (numbers.len(), others.len());
                    bail!(
                        "sum: expected {expected} numbers or {width} in rows of {width}, got {got} in rows of {other}"
                    );
                }
                for numbers in numbers.chunks_exact_mut(others.len().max(1)) {
                    numbers.iter_mut().zip(others).for_each(|(number, other)| *number += other);
                }
                Ok(Self::Host { numbers, width })
            }
            (Self::Card(x), Self::Card(other)) => x.broadcast_add(other).map(Self::Card),
            _ => apart("sum"),
        }
    }

    /// Every number times `factor`.
    pub fn scaled(self, factor: f64) -> Result<Self> {
        match self {
            _ if factor == 1.0 => Ok(self),
            Self::Host { mut numbers, width } => {
                numbers.iter_mut().for_each(|number| *number *= factor as f32);
                Ok(Self::Host { numbers, width })
            }
            Self::Card(x) => (x * factor).map(Self::Card),
        }
    }

    /// c · tanh(x / c) of every number x, if there is a cap c.
    pub fn capped(self, cap: Option<f64>) -> Result<Self> {
        let Some(cap) = cap else { return Ok(self) };
        match self {
            Self::Host { mut numbers, width } => {
                let cap = cap as f32;
                numbers.iter_mut().for_each(|number| *number = (*number / cap).tanh() * cap);
                Ok(Self::Host { numbers, width })
            }
            Self::Card(x) => capped(x, cap).map(Self::Card),
        }
    }

    /// The rows of these numbers, in this order.
    pub fn select(&self, rows: &[usize]) -> Result<Self> {
        match self {
            Self::Host { numbers, width } => {
                let rows: Vec<&[f32]> =
                    rows.iter().map(|row| &numbers[row * width..][..*width]).collect();
                Ok(Self::Host { numbers: rows.concat(), width: *width })
            }
            Self::Card(x) => {
                let rows: Vec<u32> = rows.iter().map(|row| *row as u32).collect();
                x.index_select(&Tensor::new(rows, x.device())?, 0).map(Self::Card)
            }
        }
    }

    /// So many columns from number `from` on.
    pub fn columns(&self, from: usize, count: usize) -> Result<Self> {
        match self {
            Self::Host { numbers, width } => {
                let rows = numbers.chunks_exact((*width).max(1)).map(|row| &row[from..][..count]);
                Ok(Self::Host { numbers: rows.collect::<Vec<&[f32]>>().concat(), width: count })
            }
            Self::Card(x) => x.narrow(1, from, count)?.contiguous().map(Self::Card),
        }
    }

    /// As many rows, of all parts side by side.
    pub fn beside(parts: &[Self]) -> Result<Self> {
        let mut hosts = Vec::with_capacity(parts.len());
        let mut cards = Vec::new();
        for part in parts {
            match part {
                Self::Host { numbers, width } => hosts.push((&numbers[..], *width)),
                Self::Card(x) => cards.push(x),
            }
        }
        match (hosts.is_empty(), cards.is_empty()) {
            (false, true) => {
                let width = hosts.iter().map(|(_, width)| width).sum();
                let count = |(numbers, width): &(&[f32], usize)| numbers.len() / (*width).max(1);
                let rows = count(&hosts[0]);
                if let Some(other) = hosts.iter().map(count).find(|other| *other != rows) {
                    bail!("rows side by side: expected {rows} of each part, got {other}");
                }
                let mut numbers = Vec::with_capacity(rows * width);
                for row in 0..rows {
                    hosts.iter().for_each(|(part, width)| {
                        numbers.extend_from_slice(&part[row * width..][..*width])
                    });
                }
                Ok(Self::Host { numbers, width })
            }
            (true, false) => Tensor::cat(&cards, 1).map(Self::Card),
            _ => apart("rows side by side"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(numbers: &[f32], width: usize) -> Rows {
        Rows::Host { numbers: numbers.to_vec(), width }
    }

    /// The tensors of a card, on this processor.
    fn card(numbers: &[f32], width: usize) -> Rows {
        Rows::Card(
            Tensor::from_slice(numbers, (numbers.len() / width, width), &Device::Cpu).unwrap(),
        )
    }

    #[test]
    fn loops_do_what_tensors_do() {
        let (x, y, row) =
            ([1.0, -2.0, 3.0, 4.0, 5.0, 6.5], [0.5, 1.0, 2.0, -3.0, 4.0, 8.0], [10.0, 20.0, 30.0]);
        let all = |rows: fn(&[f32], usize) -> Rows| -> Vec<(usize, Vec<f32>)> {
            let x = || rows(&x, 3);
            let found = [
                x().add(&rows(&y, 3)),
                x().add(&rows(&row, 3)),
                x().scaled(0.25),
                x().capped(Some(2.0)),
                x().select(&[1, 0, 1]),
                x().columns(1, 2),
                Rows::beside(&[x(), rows(&y, 3), rows(&[7.0, 8.0], 1)]),
            ];
            let found = found.into_iter().map(|found| found.unwrap());
            found.map(|found| (found.width().unwrap(), found.into_numbers().unwrap())).collect()
        };
        assert_eq!(all(host), all(card));
        assert_eq!(all(host)[1].1, [11.0, 18.0, 33.0, 14.0, 25.0, 36.5]);
        assert_eq!(
            all(host)[6],
            (7, vec![1.0, -2.0, 3.0, 0.5, 1.0, 2.0, 7.0, 4.0, 5.0, 6.5, -3.0, 4.0, 8.0, 8.0])
        );
        assert!(host(&x, 3).add(&host(&x[..4], 4)).is_err());
        assert!(host(&x, 3).add(&host(&x[..2], 2)).is_err());
        assert!(host(&x, 3).add(&card(&x, 3)).is_err());
        assert!(Rows::beside(&[host(&x, 3), card(&x, 3)]).is_err());
    }
}
