//! Draws from distinct distributions: paths of several drafts in one tree.
//!
//! Every path belongs to one draft and goes on with draws from that draft's distributions, so every
//! node knows whose paths came to it, and every child whose distribution it was drawn from.

use super::source::{Each, Source};
use super::{Draft, DraftTree, NodeId, unsupported};
use crate::drafting::{Drafting, Draws, Growth, Proposal};
use crate::policy::Policy;
use crate::{Distribution, Error, RandomSource, Result, Token};

impl Draft {
    /// Draws one child of `node` from the distribution of each draft whose path came here, given
    /// with the draft's number: at the root all drafts, elsewhere [`drafts`](Self::drafts).
    ///
    /// # Errors
    /// As for [`draw`](Self::draw); other drafts than those whose paths came here.
    pub fn draw_each(
        &mut self,
        node: NodeId,
        each: Vec<(usize, Distribution)>,
        rng: &mut dyn RandomSource,
    ) -> Result<()> {
        let (draws, drafts, probs) = self.each(node, each)?;
        let mut tokens = Vec::new();
        Proposal::new(draws, &probs)?.draw(rng, &mut tokens);
        self.add_each(node, draws, Each { drafts, probs, tokens });
        Ok(())
    }

    /// Takes draws that were made elsewhere, one token for each draft, as
    /// [`record`](Self::record) does.
    ///
    /// # Errors
    /// As for [`draw_each`](Self::draw_each), and tokens that cannot have been drawn so.
    pub fn record_each(
        &mut self,
        node: NodeId,
        each: Vec<(usize, Distribution)>,
        tokens: &[Token],
    ) -> Result<()> {
        let (draws, drafts, probs) = self.each(node, each)?;
        Proposal::new(draws, &probs)?.check(tokens)?;
        self.add_each(node, draws, Each { drafts, probs, tokens: tokens.to_vec() });
        Ok(())
    }

    /// Draws below `node` what `policy` decides: one token from each distribution, or nothing.
    /// Returns the distributions if nothing is to be drawn there.
    ///
    /// # Errors
    /// As for [`draw_each`](Self::draw_each); a policy whose draws come from one distribution, or
    /// from another number of them.
    pub fn grow_each(
        &mut self,
        node: NodeId,
        each: Vec<(usize, Distribution)>,
        policy: &dyn Policy,
        rng: &mut dyn RandomSource,
    ) -> Result<Vec<Distribution>> {
        let first = each.first().map(|(_, probs)| probs).ok_or_else(|| {
            unsupported("a distribution for each draft", "no distributions".to_owned())
        })?;
        self.record_pass(node);
        let growth = policy.draws(&self.path(node), first);
        match growth {
            None => return Ok(each.into_iter().map(|(_, probs)| probs).collect()),
            Some(Growth::Continue) if node != DraftTree::ROOT => {}
            Some(Growth::Fresh(Draws { scheme: Drafting::Distinct, count }))
                if node == DraftTree::ROOT && count == each.len() => {}
            Some(other) => {
                let expected = format!("{} distinct draws at the root, which go on", each.len());
                return Err(unsupported(&expected, format!("{other:?} at node {node}")));
            }
        }
        self.draw_each(node, each, rng).map(|()| Vec::new())
    }

    /// The numbers of the drafts whose paths came to a node, ascending; none at the root, and where
    /// all tokens came from one distribution.
    pub fn drafts(&self, node: NodeId) -> Vec<usize> {
        if node == DraftTree::ROOT || node >= self.tree.len() {
            return Vec::new();
        }
        let token = self.tree.token(node);
        match self.at(self.tree.parent(node)).map(|drawn| &drawn.from) {
            Some(Source::Each(each)) => {
                let own = each.drafts.iter().zip(&each.tokens).filter(|(_, own)| **own == token);
                own.map(|(draft, _)| *draft).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The tokens drawn at a node from distinct distributions, one for each draft whose path came
    /// there; none where they came from one distribution.
    pub fn drawn_each(&self, node: NodeId) -> Option<&[Token]> {
        match &self.at(node)?.from {
            Source::Each(each) => Some(&each.tokens),
            Source::One(_) => None,
        }
    }

    /// Checks distributions for the draws at a node.
    fn each(
        &self,
        node: NodeId,
        each: Vec<(usize, Distribution)>,
    ) -> Result<(Draws, Vec<usize>, Vec<Distribution>)> {
        let (drafts, probs): (Vec<usize>, Vec<Distribution>) = each.into_iter().unzip();
        let Some(first) = probs.first() else {
            let (expected, got) = ("a distribution for each draft", "no distributions".to_owned());
            return Err(unsupported(expected, got));
        };
        self.open(node, first)?;
        if let Some(other) = probs.iter().find(|probs| probs.vocabulary() != first.vocabulary()) {
            let (operation, expected) = ("draft", first.vocabulary().to_string());
            return Err(Error::Length { operation, expected, got: other.vocabulary() });
        }
        let ascending = drafts.windows(2).all(|two| two[0] < two[1]);
        let came = self.drafts(node);
        if !ascending || (node != DraftTree::ROOT && drafts != came) {
            let expected = match node {
                DraftTree::ROOT => "drafts in order, each once".to_owned(),
                _ => format!("draws of the drafts whose paths came to node {node}, {came:?}"),
            };
            return Err(unsupported(&expected, format!("{drafts:?}")));
        }
        Ok((Draws { scheme: Drafting::Distinct, count: drafts.len() }, drafts, probs))
    }

    fn add_each(&mut self, node: NodeId, draws: Draws, each: Each) {
        let tokens = each.tokens.clone();
        self.add(node, Source::Each(each), draws, node == DraftTree::ROOT, &tokens);
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn probs(weights: [f64; 3]) -> Distribution {
        Distribution::new(weights.to_vec()).unwrap()
    }

    #[test]
    fn every_path_goes_on_with_its_own_draft() {
        let mut draft = Draft::new();
        let each = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]];
        let all = || each.into_iter().map(probs).enumerate().collect::<Vec<_>>();
        draft.record_each(0, all(), &[0, 1, 0]).unwrap();
        assert_eq!(
            (draft.drafts(0), draft.drafts(1), draft.drafts(2)),
            (vec![], vec![0, 2], vec![1])
        );
        assert_eq!(draft.drawn_each(0), Some(&[0, 1, 0][..]));
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let error = draft.draw_each(1, all(), &mut rng).unwrap_err().to_string();
        assert!(error.contains("[0, 2]"), "{error}");
        draft.draw_each(2, vec![(1, probs(each[1]))], &mut rng).unwrap();
        assert_eq!((draft.drafts(3), draft.draws(2).unwrap().count), (vec![1], 1));
        let proposal = draft.proposal(0).unwrap();
        assert_eq!(proposal.distribution(2), &probs(each[2]));
        // One after the other they are no i.i.d. draws.
        assert!(!draft.form().is_iid() && draft.form().most_draws() == 3);
        assert!(draft.draw(1, probs(each[0]), Growth::Continue, &mut rng).is_ok());
        let mut spare = Vec::new();
        draft.clear(&mut spare);
        assert_eq!(spare.len(), 5);
    }

    #[test]
    fn misuse_is_refused() {
        let mut draft = Draft::new();
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let one = || probs([0.5, 0.3, 0.2]);
        assert!(draft.draw_each(0, vec![], &mut rng).is_err());
        assert!(draft.draw_each(1, vec![(0, one())], &mut rng).is_err());
        assert!(draft.draw_each(0, vec![(1, one()), (0, one())], &mut rng).is_err());
        let other = Distribution::new(vec![0.5, 0.5]).unwrap();
        assert!(draft.draw_each(0, vec![(0, one()), (1, other)], &mut rng).is_err());
        let zero = probs([1.0, 0.0, 0.0]);
        assert!(draft.record_each(0, vec![(0, zero)], &[1]).is_err());
        draft.draw_each(0, vec![(0, one()), (4, one())], &mut rng).unwrap();
        assert!(draft.draw_each(0, vec![(0, one())], &mut rng).is_err());
    }
}
