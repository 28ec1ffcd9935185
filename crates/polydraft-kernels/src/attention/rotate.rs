//! Rotary embedding (Su et al. 2021): rotates pairs of a head's numbers by the angles of a
//! position.

/// Rotates every head by the cosines and sines `[head size / 2]` of its position. Pairs are numbers
/// i and i + head size / 2.
pub fn rotate(heads: &mut [f32], cos: &[f32], sin: &[f32]) {
    for head in heads.chunks_exact_mut(2 * cos.len().max(1)) {
        let (first, second) = head.split_at_mut(cos.len());
        for (((a, b), c), s) in first.iter_mut().zip(second).zip(cos).zip(sin) {
            (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
        }
    }
}

/// Rotates every head like [`rotate`], but pairs are adjacent: numbers 2i and 2i + 1.
pub fn rotate_neighbours(heads: &mut [f32], cos: &[f32], sin: &[f32]) {
    for head in heads.chunks_exact_mut(2 * cos.len().max(1)) {
        for (([a, b], c), s) in head.as_chunks_mut().0.iter_mut().zip(cos).zip(sin) {
            (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_pairs_rotate_like_permuted_halves() {
        let angles: Vec<f32> = (0..3).map(|i| 0.3 + 0.7 * i as f32).collect();
        let (cos, sin): (Vec<f32>, Vec<f32>) = angles.iter().map(|a| (a.cos(), a.sin())).unzip();
        let mut halves: Vec<f32> = (0..12).map(|i| (i as f32 * 1.3).sin()).collect();
        let order = |at: usize| at / 6 * 6 + at % 2 * 3 + at % 6 / 2;
        let mut neighbours: Vec<f32> = (0..12).map(|at| halves[order(at)]).collect();
        rotate(&mut halves, &cos, &sin);
        rotate_neighbours(&mut neighbours, &cos, &sin);
        let expected: Vec<f32> = (0..12).map(|at| halves[order(at)]).collect();
        assert_eq!(neighbours, expected);
    }
}
