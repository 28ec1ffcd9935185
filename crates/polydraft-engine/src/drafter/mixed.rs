//! A draft's distribution mixed with that of n-grams of the sequence.
//!
//! Problem: a head or a small model does not copy; n-grams of the text so far do nothing else. Two
//! drafters in one tree cost nodes; one distribution of both costs none.
//! Method: at a node with the draft's q, the n-grams' g and their confidence c, how likely the
//! token that they draft is right,
//!     (1 − c)·q + c·g:
//! the confidence is small where nothing was said before. At temperature 0, where both are certain
//! of a token, that of the larger confidence. Drafts are drawn from what verifiers are told, so the
//! output has the target's distribution whatever c is.
//! Complexity: a pass over the tokens of q, where c is not next to nothing.

use polydraft::{Distribution, Sampling};

use crate::Result;

/// Shares of n-grams below this are left out.
const MIN_SHARE: f64 = 0.02;

/// The mixture of a draft's distribution and of n-grams'.
pub(super) fn mixed(
    draft: Distribution,
    ngrams: Distribution,
    sampling: &Sampling,
) -> Result<Distribution> {
    let share = ngrams.confidence();
    if sampling.temperature == 0.0 {
        return Ok(if share > draft.confidence() { ngrams } else { draft });
    }
    if share < MIN_SHARE {
        return Ok(draft);
    }
    let confidence = (1.0 - share) * draft.confidence() + share * share;
    Ok(draft.mixed(&ngrams, share)?.with_confidence(confidence))
}
