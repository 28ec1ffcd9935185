//! Draws from distinct distributions: paths of several drafts in one tree.
//!
//! Every path belongs to one draft and continues with draws from that draft's distributions, so for
//! every node it is known which drafts' paths reach it, and for every child which distribution it
//! was drawn from.

use super::source::{DistinctDraws, Source};
use super::{Draft, DraftTree, NodeId, unsupported};
use crate::drafting::{Drafting, Draws, Growth, Proposal};
use crate::policy::Policy;
use crate::{Distribution, Error, RandomSource, Result, Token};

impl Draft {
    /// Draws one child of `node` from the distribution of each draft whose path reaches it. Each
    /// distribution comes with its draft's number: at the root all drafts, elsewhere
    /// [`drafts`](Self::drafts).
    ///
    /// # Errors
    /// As for [`draw`](Self::draw); drafts other than those whose paths reach the node.
    pub fn draw_distinct(
        &mut self,
        node: NodeId,
        distributions: Vec<(usize, Distribution)>,
        rng: &mut dyn RandomSource,
    ) -> Result<()> {
        let (draws, drafts, probs) = self.check_distinct(node, distributions)?;
        let mut tokens = Vec::new();
        Proposal::new(draws, &probs)?.draw(rng, &mut tokens);
        self.add_distinct(node, draws, DistinctDraws { drafts, probs, tokens });
        Ok(())
    }

    /// Records draws made elsewhere, one token per draft, like [`record`](Self::record).
    ///
    /// # Errors
    /// As for [`draw_distinct`](Self::draw_distinct), and tokens that cannot be drawn from their
    /// distributions.
    pub fn record_distinct(
        &mut self,
        node: NodeId,
        distributions: Vec<(usize, Distribution)>,
        tokens: &[Token],
    ) -> Result<()> {
        let (draws, drafts, probs) = self.check_distinct(node, distributions)?;
        Proposal::new(draws, &probs)?.check(tokens)?;
        self.add_distinct(node, draws, DistinctDraws { drafts, probs, tokens: tokens.to_vec() });
        Ok(())
    }

    /// Draws below `node` as `policy` decides: one token from each distribution, or nothing.
    /// Returns the distributions if nothing is drawn.
    ///
    /// # Errors
    /// As for [`draw_distinct`](Self::draw_distinct); a policy that draws from one distribution, or
    /// from a different number of them.
    pub fn grow_distinct(
        &mut self,
        node: NodeId,
        distributions: Vec<(usize, Distribution)>,
        policy: &dyn Policy,
        rng: &mut dyn RandomSource,
    ) -> Result<Vec<Distribution>> {
        let first = distributions.first().map(|(_, probs)| probs).ok_or_else(|| {
            unsupported("a distribution for each draft", "no distributions".to_owned())
        })?;
        self.record_pass(node);
        let growth = policy.draws(&self.path(node), first);
        match growth {
            None => return Ok(distributions.into_iter().map(|(_, probs)| probs).collect()),
            Some(Growth::Continue) if node != DraftTree::ROOT => {}
            Some(Growth::Fresh(Draws { scheme: Drafting::Distinct, count }))
                if node == DraftTree::ROOT && count == distributions.len() => {}
            Some(other) => {
                let expected =
                    format!("{} distinct draws at the root, then Continue", distributions.len());
                return Err(unsupported(&expected, format!("{other:?} at node {node}")));
            }
        }
        self.draw_distinct(node, distributions, rng).map(|()| Vec::new())
    }

    /// The numbers of the drafts whose paths reach a node, ascending. Empty at the root, and where
    /// all tokens came from one distribution.
    pub fn drafts(&self, node: NodeId) -> Vec<usize> {
        if node == DraftTree::ROOT || node >= self.tree.len() {
            return Vec::new();
        }
        let token = self.tree.token(node);
        match self.drawn_at(self.tree.parent(node)).map(|drawn| &drawn.from) {
            Some(Source::Distinct(draws)) => {
                let pairs = draws.drafts.iter().zip(&draws.tokens);
                pairs.filter(|(_, drawn)| **drawn == token).map(|(draft, _)| *draft).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The tokens drawn below a node from distinct distributions, one per draft whose path reaches
    /// the node; `None` where they came from one distribution.
    pub fn distinct_tokens(&self, node: NodeId) -> Option<&[Token]> {
        match &self.drawn_at(node)?.from {
            Source::Distinct(draws) => Some(&draws.tokens),
            Source::One(_) => None,
        }
    }

    /// Checks the distributions of the draws at a node, and separates them from the drafts'
    /// numbers.
    fn check_distinct(
        &self,
        node: NodeId,
        distributions: Vec<(usize, Distribution)>,
    ) -> Result<(Draws, Vec<usize>, Vec<Distribution>)> {
        let (drafts, probs): (Vec<usize>, Vec<Distribution>) = distributions.into_iter().unzip();
        let Some(first) = probs.first() else {
            let (expected, got) = ("a distribution for each draft", "no distributions".to_owned());
            return Err(unsupported(expected, got));
        };
        self.check_can_draw(node, first)?;
        if let Some(other) = probs.iter().find(|probs| probs.vocabulary() != first.vocabulary()) {
            let (operation, expected) = ("draft", first.vocabulary().to_string());
            return Err(Error::Length { operation, expected, got: other.vocabulary() });
        }
        let ascending = drafts.windows(2).all(|two| two[0] < two[1]);
        let reaching = self.drafts(node);
        if !ascending || (node != DraftTree::ROOT && drafts != reaching) {
            let expected = match node {
                DraftTree::ROOT => "drafts in order, each once".to_owned(),
                _ => format!("draws of the drafts whose paths reach node {node}, {reaching:?}"),
            };
            return Err(unsupported(&expected, format!("{drafts:?}")));
        }
        Ok((Draws { scheme: Drafting::Distinct, count: drafts.len() }, drafts, probs))
    }

    fn add_distinct(&mut self, node: NodeId, draws: Draws, distinct: DistinctDraws) {
        let tokens = distinct.tokens.clone();
        self.add(node, Source::Distinct(distinct), draws, node == DraftTree::ROOT, &tokens);
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
    fn every_path_continues_with_its_own_draft() {
        let mut draft = Draft::new();
        let weights = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]];
        let all = || weights.into_iter().map(probs).enumerate().collect::<Vec<_>>();
        draft.record_distinct(0, all(), &[0, 1, 0]).unwrap();
        assert_eq!(
            (draft.drafts(0), draft.drafts(1), draft.drafts(2)),
            (vec![], vec![0, 2], vec![1])
        );
        assert_eq!(draft.distinct_tokens(0), Some(&[0, 1, 0][..]));
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let error = draft.draw_distinct(1, all(), &mut rng).unwrap_err().to_string();
        assert!(error.contains("[0, 2]"), "{error}");
        draft.draw_distinct(2, vec![(1, probs(weights[1]))], &mut rng).unwrap();
        assert_eq!((draft.drafts(3), draft.draws(2).unwrap().count), (vec![1], 1));
        let proposal = draft.proposal(0).unwrap();
        assert_eq!(proposal.distribution(2), &probs(weights[2]));
        // Draws from different distributions are not i.i.d.
        assert!(!draft.form().is_iid() && draft.form().max_draws() == 3);
        assert!(draft.draw(1, probs(weights[0]), Growth::Continue, &mut rng).is_ok());
        let mut spare = Vec::new();
        draft.clear(&mut spare);
        assert_eq!(spare.len(), 5);
    }

    #[test]
    fn rejects_invalid_nodes_drafts_and_vocabularies() {
        let mut draft = Draft::new();
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let one = || probs([0.5, 0.3, 0.2]);
        assert!(draft.draw_distinct(0, vec![], &mut rng).is_err());
        assert!(draft.draw_distinct(1, vec![(0, one())], &mut rng).is_err());
        assert!(draft.draw_distinct(0, vec![(1, one()), (0, one())], &mut rng).is_err());
        let other = Distribution::new(vec![0.5, 0.5]).unwrap();
        assert!(draft.draw_distinct(0, vec![(0, one()), (1, other)], &mut rng).is_err());
        let zero = probs([1.0, 0.0, 0.0]);
        assert!(draft.record_distinct(0, vec![(0, zero)], &[1]).is_err());
        draft.draw_distinct(0, vec![(0, one()), (4, one())], &mut rng).unwrap();
        assert!(draft.draw_distinct(0, vec![(0, one())], &mut rng).is_err());
    }
}
