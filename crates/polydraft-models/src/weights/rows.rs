//! Rows of matrices on disk.

use std::path::PathBuf;

use half::{bf16, f16};
use polydraft_gguf::TensorType;
use polydraft_kernels::{Blocks, Format, Read};

use super::codebook::Codebook;
use super::element::Element;
use super::fp8::Fp8;
use super::gguf::Blocked;
use super::memory::Memory;
use super::mxfp4::Mxfp4;
use super::packed::Packed;
use super::stored;
use crate::error::{Error, Result};

/// Rows of a tensor, in the order in which a matrix has them.
pub(super) struct Taken {
    pub stored: Stored,
    pub first: usize,
    pub step: usize,
    pub wanted: usize,
}

impl Taken {
    /// Reads what is wanted in pieces that lie together in the file: `read` takes the first row of
    /// one and the room for it.
    fn each<T>(
        &self,
        first: usize,
        width: usize,
        room: &mut [T],
        read: impl Fn(&Stored, usize, &mut [T]) -> Result<()>,
    ) -> Result<()> {
        if self.step == 1 {
            return read(&self.stored, self.first + first, room);
        }
        for (row, room) in (first..).zip(room.chunks_exact_mut(width)) {
            read(&self.stored, self.first + row * self.step, room)?;
        }
        Ok(())
    }
}

/// A tensor in its file.
pub(crate) enum Stored {
    Plain(stored::Stored),
    Blocked(Blocked),
    Mxfp4(Mxfp4),
    Fp8(Box<Fp8>),
    Packed(Box<Packed>),
    Codebook(Box<Codebook>),
    Memory(Memory),
}

impl Stored {
    /// Reads rows of `columns` values from row `first` on.
    pub fn read<T: Element>(&self, first: usize, columns: usize, values: &mut [T]) -> Result<()> {
        match self {
            Self::Plain(stored) => stored.read(first * columns, values),
            Self::Blocked(stored) => stored.read(first, columns, values),
            Self::Mxfp4(stored) => stored.read(first, columns, values),
            Self::Fp8(stored) => stored.read(first, columns, values),
            Self::Packed(stored) => stored.read(first, columns, values),
            Self::Codebook(stored) => stored.read(first, columns, values),
            Self::Memory(memory) => {
                memory.read(first, columns, values);
                Ok(())
            }
        }
    }

    /// In which it loses nothing.
    pub fn exact(&self) -> Format {
        match self {
            Self::Plain(stored) => stored.exact(),
            Self::Blocked(stored) => stored.exact(),
            Self::Mxfp4(stored) => stored.exact(),
            // A number of four bits, or of nine, times one of up to 24.
            Self::Fp8(_) | Self::Packed(_) | Self::Codebook(_) => Format::F32,
            Self::Memory(memory) => memory.exact(),
        }
    }

    /// The type of its blocks, if it is in such.
    fn kind(&self) -> Option<TensorType> {
        match self {
            Self::Blocked(stored) => Some(stored.kind().held_as()),
            Self::Mxfp4(_) => Some(TensorType::MXFP4.held_as()),
            _ => None,
        }
    }
}

/// Rows of matrices on disk, one matrix after the other.
pub(crate) struct Rows {
    pub(super) parts: Vec<Taken>,
    pub columns: usize,
}

impl Rows {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.parts.iter().map(|part| part.wanted).sum()
    }

    /// Runs of neighbours that are exact in the same format, with it.
    pub fn exactly(self) -> Vec<(Format, Self)> {
        let columns = self.columns;
        let mut runs: Vec<(Format, Self)> = Vec::new();
        for part in self.parts {
            let exact = part.stored.exact();
            match runs.last_mut().filter(|(last, _)| *last == exact) {
                Some((_, run)) => run.parts.push(part),
                None => runs.push((exact, Self { parts: vec![part], columns })),
            }
        }
        runs
    }

    /// Reads rows from `first` on into `values`, whole rows of them.
    pub fn read<T: Element>(&self, first: usize, values: &mut [T]) -> Result<()> {
        let columns = self.columns;
        self.each(first, columns, values, |stored, first, values| {
            stored.read(first, columns, values)
        })
    }

    /// Shares `room`, of `width` entries a row, out among the parts that its rows are in.
    fn each<T>(
        &self,
        mut first: usize,
        width: usize,
        mut room: &mut [T],
        read: impl Fn(&Stored, usize, &mut [T]) -> Result<()>,
    ) -> Result<()> {
        for part in &self.parts {
            if first < part.wanted {
                let here = (part.wanted - first).min(room.len() / width);
                let (now, later) = room.split_at_mut(here * width);
                part.each(first, width, now, &read)?;
                room = later;
            }
            first = first.saturating_sub(part.wanted);
        }
        Ok(())
    }
}

impl Read<Error> for &Rows {
    fn f32(&self, first: usize, values: &mut [f32]) -> Result<()> {
        self.read(first, values)
    }

    fn f16(&self, first: usize, values: &mut [f16]) -> Result<()> {
        self.read(first, values)
    }

    fn bf16(&self, first: usize, values: &mut [bf16]) -> Result<()> {
        self.read(first, values)
    }

    fn blocks(&self, kind: TensorType) -> Option<&dyn Blocks<Error>> {
        self.parts.iter().all(|part| part.stored.kind() == Some(kind)).then_some(*self)
    }
}

impl Blocks<Error> for Rows {
    fn read(&self, first: usize, width: usize, bytes: &mut [u8]) -> Result<()> {
        self.each(first, width, bytes, |stored, first, bytes| match stored {
            Stored::Blocked(stored) => stored.blocks(first, bytes),
            Stored::Mxfp4(stored) => stored.blocks(first, bytes),
            // Not asked for: `Read::blocks` looks at every part.
            _ => Ok(()),
        })
    }

    fn not_finite(&self, mut row: usize, got: f32) -> Error {
        for Taken { stored, first, step, wanted } in &self.parts {
            match stored {
                Stored::Blocked(stored) if row < *wanted => {
                    return stored.not_finite(first + row * step, got);
                }
                Stored::Mxfp4(stored) if row < *wanted => {
                    return stored.not_finite(first + row * step, got);
                }
                _ => row = row.saturating_sub(*wanted),
            }
        }
        // A row of some part was asked about.
        let problem = format!("expected finite scales, got {got}");
        Error::File { path: PathBuf::new(), problem }
    }
}
