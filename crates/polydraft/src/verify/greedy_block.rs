//! Greedy multi-path block verification (GBV): the path of highest ratios, verified as a block.
//!
//! Problem: select one of K independent paths and verify it as a block against the distribution of
//! the selected path.
//! Source: Thomas and Pal 2025, "Greedy multi-path block verification" (GBV), section 5: tokens are
//! ranked by rising p/q at every node, and the path of highest lexicographic rank is selected.
//! Complexity: one pass over the draft's distribution for each node of the path, to sum it below
//! the selected token; a sort of the support for each node whose residual is needed.
//! Deviations: (1) the distribution of the selected path is that of the highest of K uniform
//! priorities in the interval [F, F + q] of the path, and its conditionals are ratios of means over
//! intervals: nothing cancels where q is tiny; (2) ties in the ratio are ranked by token id.

use super::block::{PathDistribution, verify_path};
use super::{CheckedTargets, Outcome, TargetDistributions, Verifier};
use crate::coupling::priority::shares::{Highest, Interval, Profile};
use crate::draft::{Draft, DraftTree, Form, NodeId};
use crate::{Distribution, RandomSource, Result, Token};

/// The verifier, with scratch buffers.
#[derive(Debug, Default)]
pub struct GreedyBlock {
    /// The intervals of the nodes on the selected path, the root's first.
    intervals: Vec<Interval>,
    ranked: Vec<(f64, Token, f64)>,
    probs: Vec<f64>,
    weights: Vec<f64>,
}

impl GreedyBlock {
    /// Selects the path of highest rank, and stores its intervals.
    fn select_path(
        &mut self,
        draft: &Draft,
        target: &dyn TargetDistributions,
    ) -> Result<Vec<NodeId>> {
        let tree = draft.tree();
        self.intervals.clear();
        let mut interval = Interval { start: 0.0, length: 1.0 };
        self.intervals.push(interval);
        let (mut path, mut node) = (Vec::new(), DraftTree::ROOT);
        while tree.children(node).next().is_some() {
            let (target, draft) = (target.target(node)?, draft.drawn_from(node)?);
            let rank = |token: Token| (target.probability(token) / draft.probability(token), token);
            let above = |a: (f64, Token), b: (f64, Token)| a.0 > b.0 || (a.0 == b.0 && a.1 > b.1);
            let mut selected = node;
            for child in tree.children(node) {
                if selected == node || above(rank(tree.token(child)), rank(tree.token(selected))) {
                    selected = child;
                }
            }
            let selected_rank = rank(tree.token(selected));
            let mut below = 0.0;
            draft.for_each_pair(target, |token, q, p| {
                if q > 0.0 && above(selected_rank, (p / q, token)) {
                    below += q;
                }
            });
            interval = child_interval(interval, below, draft.probability(tree.token(selected)));
            self.intervals.push(interval);
            path.push(selected);
            node = selected;
        }
        Ok(path)
    }
}

/// The interval of a child with probability `q`, where tokens with total probability `below` rank
/// lower.
fn child_interval(parent: Interval, below: f64, q: f64) -> Interval {
    Interval { start: parent.start + parent.length * below, length: parent.length * q }
}

/// The distribution of the selected path.
struct SelectedPath<'a> {
    draft: &'a Draft,
    target: &'a dyn TargetDistributions,
    highest: Highest,
    intervals: &'a [Interval],
    ranked: &'a mut Vec<(f64, Token, f64)>,
    /// The distribution at node `computed`, shape `[vocabulary]`.
    probs: &'a mut Vec<f64>,
    computed: Option<NodeId>,
}

impl SelectedPath<'_> {
    /// The probability of a token under the distribution computed last; 0 for a token that only the
    /// target has.
    fn probability_at(&self, token: Token) -> f64 {
        self.probs.get(token as usize).copied().unwrap_or(0.0)
    }

    fn mean(&self, interval: Interval) -> f64 {
        self.highest.mean(interval.start, interval.length)
    }

    /// Computes the dense distribution at a node of the path.
    fn compute(&mut self, node: NodeId) -> Result<()> {
        if self.computed == Some(node) {
            return Ok(());
        }
        let (target, draft) = (self.target.target(node)?, self.draft.drawn_from(node)?);
        self.ranked.clear();
        self.ranked
            .extend(draft.support().map(|(token, q)| (target.probability(token) / q, token, q)));
        self.ranked.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        self.probs.clear();
        self.probs.resize(draft.vocabulary(), 0.0);
        let interval = self.intervals[self.draft.tree().depth(node)];
        let mean = self.mean(interval);
        let mut below = 0.0;
        for &(_, token, q) in &*self.ranked {
            self.probs[token as usize] = q * self.mean(child_interval(interval, below, q)) / mean;
            below += q;
        }
        self.computed = Some(node);
        Ok(())
    }
}

impl PathDistribution for SelectedPath<'_> {
    /// Only valid for the token that the path continues with.
    fn probability(&self, node: NodeId, token: Token) -> Result<f64> {
        let depth = self.draft.tree().depth(node);
        let (here, next) = (self.mean(self.intervals[depth]), self.mean(self.intervals[depth + 1]));
        Ok(self.draft.drawn_from(node)?.probability(token) * next / here)
    }

    fn residual_mass(&mut self, node: NodeId, target: &Distribution, scale: f64) -> Result<f64> {
        self.compute(node)?;
        Ok(target.excess_mass(scale, |token| self.probability_at(token)))
    }

    fn sample_residual(
        &mut self,
        node: NodeId,
        target: &Distribution,
        scale: f64,
        rng: &mut dyn RandomSource,
    ) -> Result<Token> {
        self.compute(node)?;
        Ok(target.sample_excess(scale, |token| self.probability_at(token), rng))
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
        let target = &CheckedTargets::new(draft, target);
        let path = self.select_path(draft, target)?;
        let highest = Highest::new(draft.draws(DraftTree::ROOT).map_or(1, |draws| draws.count));
        let Self { intervals, ranked, probs, weights } = self;
        let mut selected =
            SelectedPath { draft, target, highest, intervals, ranked, probs, computed: None };
        verify_path(draft, path, &mut selected, target, rng, weights)
    }
}
