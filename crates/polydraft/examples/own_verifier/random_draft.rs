//! A custom verifier, in a file of its own: at each node speculative sampling of one draft, taken
//! at random.
//!
//! Problem: emit a path of a tree of independent draws and one more token with the target's
//! distribution.
//! Source: Leviathan et al. 2023, algorithm 1, for the one draft.
//! Complexity: that of `token`, for each node on the emitted path.
//! Essence:
//! 1. Of n independent draws one that is picked blindly is a draw from the draft's distribution q.
//! 2. Accept it with probability min(1, p/q), else emit from (p − q)+ normalised: the token has the
//!    target's distribution p.
//! 3. The draws below a child do not depend on how the child was chosen, so from any child the same
//!    can begin again.

use polydraft::{
    Draft, DraftTree, Form, Outcome, RandomSource, Result, TargetDistributions, Verifier,
};
/// The verifier.
#[derive(Default)]
pub struct RandomDraft;

impl Verifier for RandomDraft {
    /// Step 1 needs independent draws; where they begin does not matter.
    fn supports(&self, form: &Form) -> Result<()> {
        form.require("verifier random-draft", "i.i.d. draws", form.is_iid())
    }

    fn verify(
        &mut self,
        draft: &Draft,
        target: &dyn TargetDistributions,
        rng: &mut dyn RandomSource,
    ) -> Result<Outcome> {
        // However it was made, a verifier refuses what it is not exact for.
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
