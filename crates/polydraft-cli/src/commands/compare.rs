//! Comparison of outputs that should be equal.

use anyhow::{Result, ensure};
use polydraft::{DraftTree, Token};
use polydraft_engine::Model;

/// Returns the difference of the target's logits of the two tokens at which outputs of temperature
/// 0 diverge; `None` if they are equal.
///
/// # Errors
/// Fails if one output is a prefix of the other, or if the model fails.
pub fn divergence(
    target: &mut dyn Model,
    prompt: &[Token],
    a: &[Token],
    b: &[Token],
) -> Result<Option<f32>> {
    let common = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let (Some(&a_next), Some(&b_next)) = (a.get(common), b.get(common)) else {
        ensure!(
            a.len() == b.len(),
            "outputs at temperature 0 have different lengths, {} and {} tokens",
            a.len(),
            b.len()
        );
        return Ok(None);
    };
    let sequence = target.open()?;
    let prefix = [prompt, &a[..common]].concat();
    let scored = target
        .extend(sequence, &prefix)
        .and_then(|()| target.score(&[(sequence, &DraftTree::new())]));
    let gap = scored.map(|()| {
        let logits = target.logits(sequence, DraftTree::ROOT);
        (logits[a_next as usize] - logits[b_next as usize]).abs()
    });
    target.close(sequence);
    Ok(Some(gap?))
}
