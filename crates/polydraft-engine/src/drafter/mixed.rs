//! Mixture of a draft's distribution with that of n-grams of the sequence.
//!
//! Problem: draft heads and small models rarely copy from the context; n-grams of the sequence only
//! copy. Two drafters in one tree need additional nodes, a mixed distribution needs none.
//! Method: at a node, let q be the draft's distribution, g that of the n-grams, and c the
//! confidence of the n-grams: the probability that the token they draft is right. The mixture is
//!     (1 − c)·q + c·g.
//! The confidence is small where the context has not occurred before. At temperature 0, where both
//! distributions are one token, the more confident one is used. Verifiers get the distribution that
//! drafts are drawn from, so the output has the target's distribution whatever c is.
//! Complexity: one pass over the tokens of q, unless c is negligible.

use polydraft::{Distribution, Sampling};

use crate::Result;

/// Confidence of n-grams below which they are ignored.
const MIN_SHARE: f64 = 0.02;

/// Mixes a draft's distribution with that of n-grams.
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
