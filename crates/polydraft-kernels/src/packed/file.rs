//! Tiles from the quantized blocks of a ggml file.

use super::block::Block;
use super::read::{ReadBlocks, ReadRows};
use super::tiles::{Encode, Tiles};

impl<B: Block> Tiles<B> {
    /// Loads rows from a file's blocks if they are of type `B`, else reads numbers and rounds them.
    pub fn load_blocks_or_round<E: Send>(
        out: usize,
        columns: usize,
        rows: &(impl ReadRows<E> + ?Sized),
        weights: Option<&[f32]>,
    ) -> Result<Self, E>
    where
        B: Encode,
    {
        match rows.blocks(B::KIND) {
            Some(blocks) => Self::from_file(out, columns, blocks),
            None => Self::load(out, columns, rows, weights),
        }
    }

    /// Loads a matrix `[out, columns]` from the blocks of a file, without rounding.
    ///
    /// # Errors
    /// Rows that cannot be read, and scales that are not finite.
    ///
    /// # Panics
    /// A number of columns that is not a multiple of the block size.
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
        Self::build(out, columns, Vec::new, |first, count, bytes, chunks| {
            bytes.resize(count * width, 0);
            rows.read(first, width, bytes)?;
            for (row, bytes) in bytes.chunks_exact(width).enumerate() {
                let blocks = bytes.chunks_exact(B::KIND.block_bytes());
                for (chunk, block) in chunks.iter_mut().zip(blocks) {
                    chunk
                        .set_from_file(row, block)
                        .map_err(|got| rows.not_finite_error(first + row, got))?;
                }
            }
            Ok(())
        })
    }
}
