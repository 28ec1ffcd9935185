//! The top-down walk: a token-level rule at every node.
//!
//! Problem: emit a path of the tree and one more token with the target's distribution, token by
//! token.
//! Source: Sun et al. 2023 (SpecTr), algorithm 3; Miao et al. 2023 (SpecInfer), algorithm 2. With
//! k-seq it is SpecTr, with recursive rejection SpecInfer (and RSD or Sequoia with drafts without
//! replacement), with naive sampling their baseline and the only walk of a top-k tree.
//! Complexity: the cost of the rule for each node on the emitted path.
//! Deviations: (1) the tree stores the order in which tokens were first drawn, and how many draws
//! share each; all orders of independent draws that fit are equally likely, so the rule is given a
//! random one; (2) where the rule's last draw happens to be a child, the walk continues from it
//! (k-seq, importance); (3) with paths the number of draws at a node is the number of paths through
//! it; (4) where a node is too large for a rule that solves programs, or its solver fails, a
//! fallback rule for the same draws decides: the distribution stays exact, and these nodes are
//! counted.

use super::{Outcome, TargetDistributions, Verifier};
use crate::coupling::registry::WalkRule;
use crate::coupling::{Problem, Rule, RuleSettings, hub, naive, priority, recursive};
use crate::draft::{Draft, DraftTree, Form, NodeId};
use crate::drafting::Drafting;
use crate::{Error, RandomSource, Result, Token, couple};

/// Builds the walk with a rule.
///
/// # Errors
/// Settings of the rule out of range, or with which its output does not have the target's
/// distribution.
pub(super) fn build(rule: &WalkRule) -> Result<Box<dyn Verifier>> {
    let rule = rule.build()?;
    if !rule.is_exact() {
        let (operation, got) =
            ("walk", format!("{} with settings under which it is not", rule.name()));
        let expected = "a rule whose output has the target's distribution".to_owned();
        return Err(Error::Unsupported { operation, expected, got });
    }
    Ok(for_measurement(rule))
}

/// Creates the walk with a rule that need not be exact, to measure what it emits. Walks for output
/// are built by [`VerifierKind::build`], which rejects rules that are not exact.
///
/// [`VerifierKind::build`]: crate::VerifierKind::build
pub fn for_measurement(rule: Box<dyn Rule>) -> Box<dyn Verifier> {
    Box::new(Walk { rule, fallbacks: 0, drafts: Vec::new(), remaining: Vec::new() })
}

/// A top-down walk with one rule.
struct Walk {
    rule: Box<dyn Rule>,
    /// Number of nodes at which the fallback rule decided.
    fallbacks: u64,
    drafts: Vec<Token>,
    remaining: Vec<f64>,
}

impl Walk {
    /// Lists the tokens drawn below a node, in the order of their draws.
    fn list_drafts(&mut self, draft: &Draft, node: NodeId, rng: &mut dyn RandomSource) {
        let tree = draft.tree();
        self.drafts.clear();
        if let Some(tokens) = draft.distinct_tokens(node) {
            self.drafts.extend(tokens);
            return;
        }
        let iid = draft.draws(node).is_some_and(|draws| draws.scheme == Drafting::Iid);
        if !iid || tree.children(node).nth(1).is_none() {
            for child in tree.children(node) {
                self.drafts.extend(std::iter::repeat_n(tree.token(child), tree.draws(child)));
            }
            return;
        }
        let all: usize = tree.children(node).map(|child| tree.draws(child)).sum();
        // Remaining draws of the children listed so far.
        self.remaining.clear();
        let mut next = tree.children(node);
        while self.drafts.len() < all {
            let listed: f64 = self.remaining.iter().sum();
            // The remaining draws of all other children start with the next of them.
            self.remaining.push((all - self.drafts.len()) as f64 - listed);
            let index = rng.pick(&self.remaining);
            let new = self.remaining.len() - 1;
            self.remaining.pop();
            if index == new {
                self.remaining.extend(next.next().map(|child| tree.draws(child) as f64));
            }
            self.remaining[index] -= 1.0;
            self.drafts.extend(tree.children(node).nth(index).map(|child| tree.token(child)));
        }
    }
}

/// The rule that decides at a node where the walk's own rule fails: the best rule for these draws
/// that never fails.
///
/// # Errors
/// None: default settings are valid.
pub fn fallback_rule(scheme: Drafting) -> Result<Box<dyn Rule>> {
    match scheme {
        Drafting::Iid => priority::Settings::default().build(),
        Drafting::WithoutReplacement | Drafting::Distinct => Ok(Box::new(recursive::Recursive)),
        Drafting::Greedy | Drafting::Hub => Ok(Box::new(hub::Hub::default())),
        Drafting::TopK => Ok(Box::new(naive::Naive)),
    }
}

impl Verifier for Walk {
    fn supports(&self, form: &Form) -> Result<()> {
        form.require("walk", "draws without shared randomness", true)?;
        form.draws().try_for_each(|draws| self.rule.supports(draws))
    }

    fn verify(
        &mut self,
        draft: &Draft,
        target: &dyn TargetDistributions,
        rng: &mut dyn RandomSource,
    ) -> Result<Outcome> {
        self.supports(draft.form())?;
        let mut accepted = Vec::new();
        let mut node = DraftTree::ROOT;
        while let Some(proposal) = draft.proposal(node) {
            self.list_drafts(draft, node, rng);
            let problem = Problem::new(target.target(node)?, proposal)?;
            let emission = match couple(self.rule.as_mut(), problem) {
                Ok(mut coupling) => {
                    let emission = coupling.emit(&self.drafts, rng)?;
                    self.fallbacks += u64::from(coupling.fallback().is_some());
                    emission
                }
                Err(Error::TooLarge { .. } | Error::Solver { .. }) => {
                    self.fallbacks += 1;
                    let mut rule = fallback_rule(proposal.scheme())?;
                    couple(rule.as_mut(), problem)?.emit(&self.drafts, rng)?
                }
                Err(error) => return Err(error),
            };
            match draft.tree().child(node, emission.token) {
                Some(child) => node = child,
                None => return Ok(Outcome { accepted, token: emission.token }),
            }
            accepted.push(node);
        }
        Ok(Outcome { accepted, token: target.target(node)?.sample(rng) })
    }

    fn fallbacks(&self) -> u64 {
        self.fallbacks
    }
}
