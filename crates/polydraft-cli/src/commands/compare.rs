//! Outputs that should be the same.

use anyhow::{Result, ensure};
use polydraft::{DraftTree, Token};
use polydraft_engine::Model;

/// Where two outputs at temperature 0 diverge, how far apart the target's logits of the two tokens
/// are; `None` if they are equal.
///
/// # Errors
/// One output is a prefix of the other; failures of the model.
pub fn parting(
    target: &mut dyn Model,
    prompt: &[Token],
    a: &[Token],
    b: &[Token],
) -> Result<Option<f32>> {
    let common = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let (Some(&a_next), Some(&b_next)) = (a.get(common), b.get(common)) else {
        ensure!(
            a.len() == b.len(),
            "two outputs of {} and {} tokens at temperature 0",
            a.len(),
            b.len()
        );
        return Ok(None);
    };
    let sequence = target.open()?;
    let text = [prompt, &a[..common]].concat();
    let scored = target
        .extend(sequence, &text)
        .and_then(|()| target.score(&[(sequence, &DraftTree::new())]));
    let gap = scored.map(|()| {
        let logits = target.logits(sequence, DraftTree::ROOT);
        (logits[a_next as usize] - logits[b_next as usize]).abs()
    });
    target.close(sequence);
    Ok(Some(gap?))
}
