//! Pooled layers: the drafted nodes of a level share its capacity.
//!
//! Problem: emit a path of the tree and one more token with the target's distribution, whatever way
//! its tokens were drawn, and however the tree's shape depends on what was drawn above.
//! Source: ours; `docs/theory.md` has the proof. Traversal verification (Weng et al. 2025) is the
//! best published verifier for trees drawn without replacement.
//! Method: 1. From the root down, every node x of a layer has a weight w_x, which sum to at most 1.
//! What was drawn below the layer gets shares F_xy of one unit whose expectation, given the layer,
//! is at most w_x·p(y|x) (`crate::race`); they are the weights of the next layer. 2. From the
//! deepest layer up, with r the sum of what the expectations leave, R_xy = w_x·p(y|x) − E F_xy, and
//! f = 1 − Σ w_x: stop with probability r/(r + f), and emit x and y in proportion to R_xy. The root
//! has f = 0, so it stops there at the latest. 3. Where the emitted token is a drawn child, go on
//! from it with a token from the target, as often as that is so.
//! Complexity: three passes over the support of each node of positive weight, more where more than
//! two tokens were drawn without replacement.

use super::{CheckedTargets, Outcome, TargetDistributions, Verifier};
use crate::draft::{Draft, DraftTree, Form, NodeId};
use crate::drafting::Drafting;
use crate::race::layer::{Drawn, Layer};
use crate::{RandomSource, Result, Token};

/// What is drawn below nodes of smaller weight gets no share, so that the target's distribution
/// there is not needed, unless the output ends there.
const LEAST_WEIGHT: f64 = 1e-3;

/// The verifier, with buffers.
#[derive(Debug, Default)]
pub struct Pooled {
    layers: Vec<Layer>,
}

/// A node of a layer with its weight, and the tokens drawn below it.
struct Member {
    node: NodeId,
    weight: f64,
    tokens: Vec<Token>,
}

impl Member {
    fn new(draft: &Draft, node: NodeId, weight: f64) -> Self {
        let tree = draft.tree();
        let drawn = |child| std::iter::repeat_n(tree.token(child), tree.draws(child));
        Self { node, weight, tokens: tree.children(node).flat_map(drawn).collect() }
    }
}

impl Pooled {
    /// Divides the capacity of a layer. Returns the next layer.
    fn divide(
        layer: &mut Layer,
        members: &[Member],
        draft: &Draft,
        target: &dyn TargetDistributions,
    ) -> Result<Vec<Member>> {
        let mut nodes = Vec::with_capacity(members.len());
        for &Member { node, weight, .. } in members {
            let drawn = draft.distribution(node).filter(|_| weight >= LEAST_WEIGHT);
            let pair = drawn.map(|drawn| Ok((target.target(node)?, drawn))).transpose()?;
            nodes.push((weight, pair));
        }
        layer.start(&nodes);
        let all = members.iter().zip(&nodes).map(|(member, (_, pair))| {
            let (_, from) = (*pair)?;
            let draws = draft.draws(member.node)?;
            Some(Drawn { draft: from, draws, tokens: &member.tokens })
        });
        layer.divide(&all.collect::<Vec<_>>());
        let tree = draft.tree();
        let children = members.iter().enumerate().flat_map(|(index, member)| {
            tree.children(member.node).map(move |child| (index, child))
        });
        let weighted = children.map(|(index, child)| {
            Member::new(draft, child, layer.weight(index, tree.token(child)))
        });
        Ok(weighted.filter(|member| member.weight > 0.0).collect())
    }
}

/// The tokens that were drawn below a node.
fn drawn_tokens(draft: &Draft, node: NodeId) -> Vec<Token> {
    draft.tree().children(node).map(|child| draft.tree().token(child)).collect()
}

/// Decides whether the next token is one of those that were drawn, of `mass` in all.
fn pick_drawn(
    drawn: &[Token],
    mass: f64,
    of: impl Fn(Token) -> f64,
    rng: &mut dyn RandomSource,
) -> Option<Token> {
    if drawn.is_empty() {
        return None;
    }
    let mut weights: Vec<f64> = drawn.iter().map(|token| of(*token)).collect();
    weights.push((mass - weights.iter().sum::<f64>()).max(0.0));
    drawn.get(rng.pick(&weights)).copied()
}

impl Verifier for Pooled {
    fn supports(&self, form: &Form) -> Result<()> {
        let supported = form.draws().all(|draws| draws.scheme != Drafting::Distinct);
        form.require("verifier pooled", "draws from one distribution at each node", supported)
    }

    fn verify(
        &mut self,
        draft: &Draft,
        target: &dyn TargetDistributions,
        rng: &mut dyn RandomSource,
    ) -> Result<Outcome> {
        self.supports(draft.form())?;
        let target = CheckedTargets::new(draft, target);
        let mut all = vec![vec![Member::new(draft, DraftTree::ROOT, 1.0)]];
        while let Some(members) = all.last().filter(|members| !members.is_empty()) {
            if self.layers.len() < all.len() {
                self.layers.push(Layer::default());
            }
            let next = Self::divide(&mut self.layers[all.len() - 1], members, draft, &target)?;
            all.push(next);
        }
        let mut layers = self.layers.iter().zip(&all).take(all.len() - 1).rev();
        let (mut node, mut token, mut after) = (DraftTree::ROOT, 0, None);
        while let Some((layer, members)) = layers.next() {
            let is_root = layers.len() == 0;
            if is_root || rng.coin(layer.stops()) {
                let picked = layer.pick(rng);
                node = members[picked].node;
                let probs = target.target(node)?;
                let left = |token| layer.left_of(picked, token, probs);
                let drawn = drawn_tokens(draft, node);
                match pick_drawn(&drawn, layer.left_at(picked), left, rng) {
                    Some(drawn) => after = Some(drawn),
                    None => token = layer.emit(picked, probs, &drawn, rng),
                }
                break;
            }
        }
        // An emitted token may be a drawn one: go on from it.
        while let Some(drawn) = after.take() {
            node = draft.tree().child(node, drawn).unwrap_or(node);
            let (probs, tokens) = (target.target(node)?, drawn_tokens(draft, node));
            after = pick_drawn(&tokens, 1.0, |token| probs.probability(token), rng);
            if after.is_none() {
                let of_drawn = |token| match tokens.contains(&token) {
                    true => probs.probability(token),
                    false => 0.0,
                };
                token = probs.sample_excess(1.0, of_drawn, rng);
            }
        }
        Ok(Outcome { accepted: draft.tree().path(node), token })
    }
}
