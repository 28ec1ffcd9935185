//! Blocks as a ggml file has them, row by row.

use super::blocks::Block;
use super::tiles::Tiles;

impl<B: Block> Tiles<B> {
    /// A matrix from the blocks of a file, `out` rows of `columns / B::COLUMNS`; the numbers stay what they are.
    ///
    /// # Errors
    /// Another number of bytes, and scales that are not finite.
    #[cfg_attr(not(test), expect(dead_code, reason = "for files of quantised models, which are to come"))]
    pub fn from_file(out: usize, columns: usize, bytes: &[u8]) -> Result<Self, String> {
        if !columns.is_multiple_of(B::COLUMNS) {
            return Err(format!(
                "blocks of a matrix: expected a multiple of {} columns, got {columns}",
                B::COLUMNS
            ));
        }
        let width = columns / B::COLUMNS * B::BYTES;
        if bytes.len() != out * width {
            let (expected, got) = (out * width, bytes.len());
            return Err(format!("blocks of a matrix: expected {expected} bytes, got {got}"));
        }
        Self::build(
            out,
            columns,
            || (),
            |first, count, (), pieces| {
                for row in 0..count {
                    let blocks = bytes[(first + row) * width..][..width].chunks_exact(B::BYTES);
                    for (piece, block) in pieces.iter_mut().zip(blocks) {
                        let wrong = |got| {
                            format!(
                                "blocks of a matrix: expected finite scales, got {got} in row {}",
                                first + row
                            )
                        };
                        piece.set_file(row, block).map_err(wrong)?;
                    }
                }
                Ok(())
            },
        )
    }
}
