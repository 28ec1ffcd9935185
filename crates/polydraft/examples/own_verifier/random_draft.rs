//! A custom verifier in its own file: at each node, speculative sampling of one draft chosen at
//! random.
//!
//! Problem: emit a path of a tree of independent draws and one more token with the target's
//! distribution.
//! Source: Leviathan et al. 2023, algorithm 1, for the chosen draft.
//! Complexity: as the verifier `token`, for each node on the emitted path.
//! Proof:
//! 1. A draft chosen blindly among n independent draws is a draw from the draft's distribution q.
//! 2. Accepted with probability min(1, p/q), and replaced by a draw from (p − q)+ normalised
//!    otherwise, the token has the target's distribution p.
//! 3. The draws below a child do not depend on how the child was chosen, so the same step can be
//!    repeated from any child.

use polydraft::{
    Draft, DraftTree, Form, Outcome, RandomSource, Result, TargetDistributions, Verifier,
};

/// Verifier that tries one random draft per node.
#[derive(Default)]
pub struct RandomDraft;

impl Verifier for RandomDraft {
    /// Step 1 requires independent draws, wherever they start.
    fn supports(&self, form: &Form) -> Result<()> {
        form.require("verifier random-draft", "i.i.d. draws", form.is_iid())
    }

    fn verify(
        &mut self,
        draft: &Draft,
        target: &dyn TargetDistributions,
        rng: &mut dyn RandomSource,
    ) -> Result<Outcome> {
        // Every verifier rejects drafts for which it is not exact.
        self.supports(draft.form())?;
        let tree = draft.tree();
        let (mut accepted, mut node) = (Vec::new(), DraftTree::ROOT);
        while let Some(q) = draft.distribution(node) {
            let p = target.target(node)?;
            let children: Vec<_> = tree.children(node).collect();
            let draws: Vec<f64> = children.iter().map(|child| tree.draws(*child) as f64).collect();
            let child = children[rng.pick(&draws)];
            let drawn = tree.token(child);
            let token = match rng.coin(p.probability(drawn) / q.probability(drawn)) {
                true => drawn,
                false => p.sample_residual(1.0, q, 1.0, rng),
            };
            match tree.child(node, token) {
                Some(child) => node = child,
                None => return Ok(Outcome { accepted, token }),
            }
            accepted.push(node);
        }
        Ok(Outcome { accepted, token: target.target(node)?.sample(rng) })
    }
}
