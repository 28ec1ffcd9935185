//! Token verification of one path.
//!
//! Problem: tokens x_1..x_L were drawn one after the other from the draft's laws q; emit a prefix of them and one
//! more token so that the text has the target's law p.
//! Source: Leviathan, Kalman, Matias 2023, "Fast Inference from Transformers via Speculative Decoding",
//! algorithm 1; Chen et al. 2023, "Accelerating Large Language Model Decoding with Speculative Sampling",
//! algorithm 2.
//! Complexity: one look at p and q per token; one draw from the residual, which looks at the support of p at most
//! once.
//! Deviations:
//! 1. The path may have any length, 0 included: then the token is drawn from p at the root (plain decoding).

use super::block::single_path;
use super::{Laws, Outcome, Verifier};
use crate::{Chance, DraftTree, Result};

/// Accepts each drafted token x with probability min(1, p(x)/q(x)); at the first rejection emits from (p − q)+
/// normalised, and after the last acceptance one more token from p.
#[derive(Debug, Clone, Copy, Default)]
pub struct TokenVerifier;

impl Verifier for TokenVerifier {
    fn verify(&mut self, tree: &DraftTree, laws: &dyn Laws, chance: &mut dyn Chance) -> Result<Outcome> {
        let mut path = single_path("token verification", tree)?;
        let mut node = DraftTree::ROOT;
        for (index, &child) in path.iter().enumerate() {
            let (target, draft) = (laws.target(node)?, laws.draft(node)?);
            let token = tree.token(child);
            if !chance.coin(target.probability(token) / draft.probability(token)) {
                let token = target.sample_residual(1.0, draft, 1.0, chance);
                path.truncate(index);
                return Ok(Outcome { accepted: path, token });
            }
            node = child;
        }
        Ok(Outcome { accepted: path, token: laws.target(node)?.sample(chance) })
    }
}
