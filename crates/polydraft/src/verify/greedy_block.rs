//! Greedy multi-path block verification (GBV): the path of highest ratios, verified as a block.
//!
//! Problem: of K independent paths take one and verify it as a block against the distribution that
//! the one taken has.
//! Source: Thomas and Pal 2025, "Greedy multi-path block verification" (GBV), section 5: tokens are
//! ranked by rising p/q at every node, and the path of highest lexicographic rank is taken.
//! Complexity: the draft's distribution below the taken token by one pass for each node of the
//! path; a sort of the support for each node whose residual is asked for.
//! Deviations: (1) the distribution of the taken path is the highest of K uniform priorities in the
//! interval [F, F + q] of the path, and its conditionals are ratios of means over intervals:
//! nothing cancels where q is tiny; (2) ties in the ratio are ranked by token id.

use super::block::{PathDistribution, verify_path};
use super::{Alike, Outcome, TargetDistributions, Verifier};
use crate::coupling::priority::shares::{Highest, Interval, Profile};
use crate::draft::{Draft, DraftTree, Form, NodeId};
use crate::{Distribution, RandomSource, Result, Token};

/// A workspace that is used again.
#[derive(Debug, Default)]
pub struct GreedyBlock {
    /// The intervals of the nodes on the taken path, the root's first.
    intervals: Vec<Interval>,
    ranked: Vec<(f64, Token, f64)>,
    probs: Vec<f64>,
    weights: Vec<f64>,
}

impl GreedyBlock {
    /// The path of highest rank, and its intervals.
    fn take(&mut self, draft: &Draft, target: &dyn TargetDistributions) -> Result<Vec<NodeId>> {
        let tree = draft.tree();
        self.intervals.clear();
        let mut interval = Interval { start: 0.0, length: 1.0 };
        self.intervals.push(interval);
        let (mut path, mut node) = (Vec::new(), DraftTree::ROOT);
        while tree.children(node).next().is_some() {
            let (target, draft) = (target.target(node)?, draft.drawn_from(node)?);
            let rank = |token: Token| (target.probability(token) / draft.probability(token), token);
            let above = |a: (f64, Token), b: (f64, Token)| a.0 > b.0 || (a.0 == b.0 && a.1 > b.1);
            let mut taken = node;
            for child in tree.children(node) {
                if taken == node || above(rank(tree.token(child)), rank(tree.token(taken))) {
                    taken = child;
                }
            }
            let own = rank(tree.token(taken));
            let mut below = 0.0;
            draft.for_each_pair(target, |token, q, p| {
                if q > 0.0 && above(own, (p / q, token)) {
                    below += q;
                }
            });
            interval = part(interval, below, draft.probability(tree.token(taken)));
            self.intervals.push(interval);
            path.push(taken);
            node = taken;
        }
        Ok(path)
    }
}

/// The interval of a child that has probability `q` and `below` ranked below it.
fn part(parent: Interval, below: f64, q: f64) -> Interval {
    Interval { start: parent.start + parent.length * below, length: parent.length * q }
}

/// The distribution of the taken path.
struct Taken<'a> {
    draft: &'a Draft,
    target: &'a dyn TargetDistributions,
    highest: Highest,
    intervals: &'a [Interval],
    ranked: &'a mut Vec<(f64, Token, f64)>,
    /// The distribution at node `made`, shape `[vocabulary]`.
    probs: &'a mut Vec<f64>,
    made: Option<NodeId>,
}

impl Taken<'_> {
    /// The distribution that was made last; nothing for a token that only the target has.
    fn of(&self, token: Token) -> f64 {
        self.probs.get(token as usize).copied().unwrap_or(0.0)
    }

    fn mean(&self, interval: Interval) -> f64 {
        self.highest.mean(interval.start, interval.length)
    }

    /// Makes the whole distribution at a node of the path.
    fn make(&mut self, node: NodeId) -> Result<()> {
        if self.made == Some(node) {
            return Ok(());
        }
        let (target, draft) = (self.target.target(node)?, self.draft.drawn_from(node)?);
        self.ranked.clear();
        self.ranked
            .extend(draft.support().map(|(token, q)| (target.probability(token) / q, token, q)));
        self.ranked.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        self.probs.clear();
        self.probs.resize(draft.vocabulary(), 0.0);
        let own = self.intervals[self.draft.tree().depth(node)];
        let mean = self.mean(own);
        let mut below = 0.0;
        for &(_, token, q) in &*self.ranked {
            self.probs[token as usize] = q * self.mean(part(own, below, q)) / mean;
            below += q;
        }
        self.made = Some(node);
        Ok(())
    }
}

impl PathDistribution for Taken<'_> {
    /// Asked for the token that the path does go on with.
    fn probability(&self, node: NodeId, token: Token) -> Result<f64> {
        let depth = self.draft.tree().depth(node);
        let (own, next) = (self.mean(self.intervals[depth]), self.mean(self.intervals[depth + 1]));
        Ok(self.draft.drawn_from(node)?.probability(token) * next / own)
    }

    fn residual_mass(&mut self, node: NodeId, target: &Distribution, scale: f64) -> Result<f64> {
        self.make(node)?;
        Ok(target.excess_mass(scale, |token| self.of(token)))
    }

    fn sample_residual(
        &mut self,
        node: NodeId,
        target: &Distribution,
        scale: f64,
        rng: &mut dyn RandomSource,
    ) -> Result<Token> {
        self.make(node)?;
        Ok(target.sample_excess(scale, |token| self.of(token), rng))
    }
}

impl Verifier for GreedyBlock {
    fn supports(&self, form: &Form) -> Result<()> {
        form.require("verifier greedy-block", "i.i.d. paths", form.is_paths())
    }

    fn verify(
        &mut self,
        draft: &Draft,
        target: &dyn TargetDistributions,
        rng: &mut dyn RandomSource,
    ) -> Result<Outcome> {
        self.supports(draft.form())?;
        let target = &Alike::new(draft, target);
        let path = self.take(draft, target)?;
        let highest = Highest::new(draft.draws(DraftTree::ROOT).map_or(1, |draws| draws.count));
        let Self { intervals, ranked, probs, weights } = self;
        let mut taken = Taken { draft, target, highest, intervals, ranked, probs, made: None };
        verify_path(draft, path, &mut taken, target, rng, weights)
    }
}
