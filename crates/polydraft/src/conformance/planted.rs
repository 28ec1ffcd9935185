//! Verifiers that are wrong on purpose, to see that a test finds them.

use crate::{Chance, DraftTree, Laws, Outcome, Result, Verifier};

/// After a rejection it draws from the target instead of what is left of it: the commonest mistake, and one that no
/// reader of the text would notice.
pub struct WrongResidual(pub Box<dyn Verifier>);

impl Verifier for WrongResidual {
    fn verify(&mut self, tree: &DraftTree, laws: &dyn Laws, chance: &mut dyn Chance) -> Result<Outcome> {
        let mut outcome = self.0.verify(tree, laws, chance)?;
        let end = outcome.accepted.last().copied().unwrap_or(DraftTree::ROOT);
        outcome.token = laws.target(end)?.sample(chance);
        Ok(outcome)
    }
}
