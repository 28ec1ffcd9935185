//! The order of rows in queries and keys.
//!
//! # Problem
//! The rotary embedding rotates pairs of a head's numbers. Hugging Face's layout pairs number i
//! with number i + D/2 of a head of width D; llama.cpp's `llama` architecture pairs 2i with 2i + 1.
//! So its files have the rows of `attn_q` and `attn_k` (weights and biases, also of Mistral) in
//! another order within each head: row 2i + j of a head is Hugging Face's row i + j·D/2, j = 0 or
//! 1. The other architectures have Hugging Face's order.
//!
//! # Source
//! `LlamaModel.permute` of llama.cpp's converter; Su et al. 2021 (RoFormer) for the rotation.
//!
//! # Complexity
//! One copy of the rows. Rows move as a unit, so it works for blocks of any type.
//!
//! # Deviations
//! None.

/// Returns the index in a file of the `llama` architecture of the row that Hugging Face's layout
/// has at `row`. `head` is the width of a head, an even number.
pub fn interleaved(row: usize, head: usize) -> usize {
    let (start, within) = (row / head * head, row % head);
    let half = head / 2;
    start + 2 * (within % half) + within / half
}

/// Copies rows of a file of the `llama` architecture to Hugging Face's order. `from` and `to`
/// consist of heads of `head` rows with `row` values (or bytes) each.
///
/// # Panics
/// Lengths that differ, or are not a multiple of the length of a head; a width that is odd or zero.
pub fn deinterleave<T: Copy>(from: &[T], to: &mut [T], head: usize, row: usize) {
    assert!(head > 0 && head.is_multiple_of(2), "head: expected an even number, got {head}");
    assert!(row > 0, "row: expected at least 1 value, got none");
    assert!(
        from.len() == to.len() && from.len().is_multiple_of(head * row),
        "rows: expected full heads of {head} rows of {row}, got {} into {}",
        from.len(),
        to.len()
    );
    for (number, to) in to.chunks_exact_mut(row).enumerate() {
        to.copy_from_slice(&from[interleaved(number, head) * row..][..row]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Permutes like the converter: reshapes to [heads, 2, head/2], and swaps the last two
    /// dimensions.
    fn converted(rows: usize, head: usize) -> Vec<usize> {
        let half = head / 2;
        (0..rows)
            .map(|at| {
                let (start, within) = (at / head * head, at % head);
                start + within % 2 * half + within / 2
            })
            .collect()
    }

    #[test]
    fn deinterleave_inverts_the_converter() {
        for (heads, head, row) in [(1, 2, 1), (3, 8, 5), (9, 64, 18), (2, 6, 3)] {
            let original: Vec<usize> = (0..heads * head * row).collect();
            let file: Vec<usize> = converted(heads * head, head)
                .into_iter()
                .flat_map(|from| original[from * row..][..row].to_vec())
                .collect();
            let mut undone = vec![0; file.len()];
            deinterleave(&file, &mut undone, head, row);
            assert_eq!(undone, original);
        }
    }

    #[test]
    fn interleaves_head_of_eight_rows() {
        let file = [0, 4, 1, 5, 2, 6, 3, 7];
        let indices: Vec<usize> = (0..8).map(|row| interleaved(row, 8)).collect();
        assert_eq!(indices, [0, 2, 4, 6, 1, 3, 5, 7]);
        assert_eq!(
            indices.iter().map(|at| file[*at]).collect::<Vec<_>>(),
            [0, 1, 2, 3, 4, 5, 6, 7]
        );
    }
}
