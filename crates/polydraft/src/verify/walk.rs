//! The top-down walk: a token-level rule at every node.
//!
//! Problem: emit a path of the tree and one more token with the target's law, one token after the other.
//! Source: Sun et al. 2023 (SpecTr), algorithm 3; Miao et al. 2023 (SpecInfer), algorithm 2. With k-seq it is SpecTr,
//! with recursive rejection SpecInfer (and RSD, Sequoia where drafts come without replacement), with naive sampling
//! their baseline and the only walk of a top-k tree.
//! Complexity: that of the rule, for each node on the emitted path.
//! Deviations: (1) the tree keeps how many draws share a node, not their order; for independent draws every order is
//! equally likely, so the rule is given a random one; (2) where the rule's last draw happens to be a child, the walk
//! goes on from it (k-seq, importance); (3) with paths the number of draws at a node is that of the paths through it.

use super::{Laws, Outcome, Verifier};
use crate::coupling::{Problem, TokenRule};
use crate::{
    Chance, Distribution, DraftTree, Drafting, NodeId, Proposal, Result, Rule, Shape, Token, couple,
};

/// A top-down walk with one rule.
pub struct Walk {
    rule: Box<dyn TokenRule>,
    shape: Shape,
    drafts: Vec<Token>,
    left: Vec<f64>,
}

impl Walk {
    /// For trees of one shape.
    ///
    /// # Errors
    /// Settings of the rule out of range; a shape whose draws the rule does not support.
    pub fn new(rule: &Rule, shape: &Shape) -> Result<Self> {
        let mut rule = rule.build()?;
        // The rule itself knows what it supports.
        let law = Distribution::new(vec![0.25; 4])?;
        for count in 1..=shape.most_draws() {
            let proposal = Proposal::new(shape.drafting(), std::slice::from_ref(&law), count)?;
            rule.prepare(&Problem::new(&law, proposal)?)?;
        }
        Ok(Self { rule, shape: shape.clone(), drafts: Vec::new(), left: Vec::new() })
    }

    /// The tokens drawn below a node, in the order of their draws.
    fn list_drafts(&mut self, tree: &DraftTree, node: NodeId, chance: &mut dyn Chance) {
        self.drafts.clear();
        if self.shape.drafting() != Drafting::Iid || tree.children(node).nth(1).is_none() {
            for child in tree.children(node) {
                self.drafts.extend(std::iter::repeat_n(tree.token(child), tree.draws(child)));
            }
            return;
        }
        self.left.clear();
        self.left.extend(tree.children(node).map(|child| tree.draws(child) as f64));
        for _ in 0..super::draws_below(tree, node) {
            let index = chance.pick(&self.left);
            self.left[index] -= 1.0;
            self.drafts.extend(tree.children(node).nth(index).map(|child| tree.token(child)));
        }
    }
}

impl Verifier for Walk {
    fn verify(&mut self, tree: &DraftTree, laws: &dyn Laws, chance: &mut dyn Chance) -> Result<Outcome> {
        let mut accepted = Vec::new();
        let mut node = DraftTree::ROOT;
        while tree.children(node).next().is_some() {
            self.list_drafts(tree, node, chance);
            let proposal = self.shape.proposal(tree, node, laws.draft(node)?)?;
            let problem = Problem::new(laws.target(node)?, proposal)?;
            let emission = couple(self.rule.as_mut(), problem)?.emit(&self.drafts, chance)?;
            match tree.child(node, emission.token) {
                Some(child) => node = child,
                None => return Ok(Outcome { accepted, token: emission.token }),
            }
            accepted.push(node);
        }
        Ok(Outcome { accepted, token: laws.target(node)?.sample(chance) })
    }
}
