//! Blocks as a ggml file has them, row by row.

use super::block::Block;
use super::read::{ReadBlocks, ReadRows};
use super::tiles::{Fill, Tiles};

impl<B: Block> Tiles<B> {
    /// Rows as a file has them, if in these blocks; else rounded to such.
    pub fn held<E: Send>(
        out: usize,
        columns: usize,
        rows: &(impl ReadRows<E> + ?Sized),
        weights: Option<&[f32]>,
    ) -> Result<Self, E>
    where
        B: Fill,
    {
        match rows.blocks(B::KIND) {
            Some(blocks) => Self::from_file(out, columns, blocks),
            None => Self::load(out, columns, rows, weights),
        }
    }

    /// A matrix from the blocks of a file, `out` rows of `columns / B::COLUMNS`; the numbers stay
    /// what they are.
    ///
    /// # Errors
    /// Rows that cannot be read, and scales that are not finite.
    ///
    /// # Panics
    /// Columns that are no whole blocks.
    pub fn from_file<E: Send>(
        out: usize,
        columns: usize,
        rows: &dyn ReadBlocks<E>,
    ) -> Result<Self, E> {
        assert!(
            columns.is_multiple_of(B::COLUMNS),
            "blocks of {} columns in {columns}",
            B::COLUMNS
        );
        let width = columns / B::COLUMNS * B::KIND.block_bytes();
        Self::build(out, columns, Vec::new, |first, count, bytes, pieces| {
            bytes.resize(count * width, 0);
            rows.read(first, width, bytes)?;
            for (row, bytes) in bytes.chunks_exact(width).enumerate() {
                let blocks = bytes.chunks_exact(B::KIND.block_bytes());
                for (piece, block) in pieces.iter_mut().zip(blocks) {
                    piece.set_file(row, block).map_err(|got| rows.not_finite(first + row, got))?;
                }
            }
            Ok(())
        })
    }
}
