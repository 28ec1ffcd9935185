//! Rotary embedding (Su et al. 2021): pairs of a head's numbers turned by the angles of a position.

/// Rotates every head by the cosines and sines `[head / 2]` of its position.
pub fn rotate(heads: &mut [f32], cos: &[f32], sin: &[f32]) {
    for head in heads.chunks_exact_mut(2 * cos.len().max(1)) {
        let (first, second) = head.split_at_mut(cos.len());
        for (((a, b), c), s) in first.iter_mut().zip(second).zip(cos).zip(sin) {
            (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
        }
    }
}
