//! Drafts subsampled from a larger one.
//!
//! Independent paths are exchangeable: any of them, chosen without looking at them, are independent
//! paths again. So one draft of many paths, whose distributions are computed in one forward pass,
//! gives several drafts of fewer paths.

use polydraft::random::Outcomes;
use polydraft::{
    Distribution, Draft, DraftTree, Draws, Growth, NodeId, RandomSource, Result,
    TargetDistributions, Token,
};
use rand::seq::SliceRandom;
use rand_chacha::ChaCha12Rng;

/// A subsample: a draft of some paths of another draft.
pub struct Hand {
    pub draft: Draft,
    /// By its own nodes: the nodes of the draft that it is a subsample of.
    pub nodes: Vec<NodeId>,
    /// The number of identical subsamples.
    pub times: usize,
}

/// The subsamples of one draft.
#[derive(Default)]
pub struct Hands {
    /// Each path alone, for single-path verifiers.
    pub single: Vec<Hand>,
    /// Subsamples of as many paths as are compared; none where the draft itself is compared.
    pub several: Vec<Hand>,
}

/// Splits the paths of a draft into subsamples of `count`, at random where there is a choice.
///
/// # Errors
/// A draft that is no number of paths.
pub fn deal(draft: &Draft, count: usize, random: Option<&mut ChaCha12Rng>) -> Result<Vec<Hand>> {
    let tree = draft.tree();
    let ends = (0..tree.len()).filter(|&node| tree.children(node).next().is_none());
    if count == 1 {
        let alone = |end| Ok(Hand { times: tree.draws(end), ..hand(draft, &[end])? });
        return ends.map(alone).collect();
    }
    let mut ends: Vec<NodeId> =
        ends.flat_map(|end| std::iter::repeat_n(end, tree.draws(end))).collect();
    if let Some(random) = random {
        ends.shuffle(random);
    }
    ends.chunks_exact(count).map(|ends| hand(draft, ends)).collect()
}

/// The draft of the paths to these ends.
fn hand(draft: &Draft, ends: &[NodeId]) -> Result<Hand> {
    let paths: Vec<Vec<NodeId>> = ends.iter().map(|&end| draft.tree().path(end)).collect();
    let (mut own, mut nodes) = (Draft::new(), vec![DraftTree::ROOT]);
    let mut node = DraftTree::ROOT;
    while node < own.tree().len() {
        // The next tokens of the paths through this node.
        let depth = own.tree().depth(node);
        let here = nodes[node];
        let through = |path: &&Vec<NodeId>| depth == 0 || path.get(depth - 1) == Some(&here);
        let next: Vec<NodeId> =
            paths.iter().filter(through).filter_map(|path| path.get(depth).copied()).collect();
        if !next.is_empty() {
            let growth =
                if depth == 0 { Growth::Fresh(Draws::iid(next.len())) } else { Growth::Continue };
            let mut again = Again {
                tokens: next.iter().map(|&next| draft.tree().token(next)).collect(),
                drawn: 0,
            };
            own.draw(node, draft.drawn_from(here)?.clone(), growth, &mut again)?;
            for child in own.tree().children(node) {
                let token = own.tree().token(child);
                nodes.resize(nodes.len().max(child + 1), DraftTree::ROOT);
                nodes[child] = draft.tree().child(here, token).unwrap_or(DraftTree::ROOT);
            }
        }
        node += 1;
    }
    Ok(Hand { draft: own, nodes, times: 1 })
}

/// Repeats recorded draws.
struct Again {
    tokens: Vec<Token>,
    drawn: usize,
}

impl RandomSource for Again {
    fn coin(&mut self, probability: f64) -> bool {
        probability >= 1.0
    }

    fn choose(&mut self, _: &dyn Outcomes) -> usize {
        let token = self.tokens.get(self.drawn).copied().unwrap_or(0);
        self.drawn += 1;
        token as usize
    }
}

/// The target's distributions at the nodes of a subsample.
pub struct Dealt<'a> {
    /// By its own nodes: the nodes of the draft that it is a subsample of.
    pub nodes: &'a [NodeId],
    /// The distributions at these.
    pub target: &'a dyn TargetDistributions,
}

impl TargetDistributions for Dealt<'_> {
    fn target(&self, node: NodeId) -> Result<&Distribution> {
        self.target.target(self.nodes[node])
    }
}

#[cfg(test)]
mod tests {
    use polydraft::PolicyKind;
    use polydraft::conformance::tree::{draw, random_pair};

    use rand::SeedableRng;

    use super::*;

    /// The subsamples together are the draft, and each has the distributions of its own prefixes.
    #[test]
    fn every_path_is_dealt_once() {
        let mut random = ChaCha12Rng::seed_from_u64(5);
        let policy = PolicyKind::paths(6, 3).build().expect("a policy");
        for _ in 0..50 {
            let pair = random_pair(3, 3, 0.3, false, &mut random).expect("a pair");
            let draft = draw(policy.as_ref(), &pair.draft, &mut random).expect("a draft");
            let text = |draft: &Draft, node| draft.path(node).tokens();
            let hands = deal(&draft, 2, Some(&mut random)).expect("hands");
            assert_eq!(hands.len(), 3);
            let mut draws = vec![0; draft.tree().len()];
            for Hand { draft: own, nodes, times } in &hands {
                assert!(*times == 1 && own.form().is_paths() && own.form().most_draws() == 2);
                for node in 0..own.tree().len() {
                    assert_eq!(text(own, node), text(&draft, nodes[node]));
                    assert_eq!(own.distribution(node), draft.distribution(nodes[node]));
                    draws[nodes[node]] += own.tree().draws(node);
                }
            }
            (1..draft.tree().len())
                .for_each(|node| assert_eq!(draws[node], draft.tree().draws(node)));
            let each = deal(&draft, 1, None).expect("hands");
            assert_eq!(each.iter().map(|hand| hand.times).sum::<usize>(), 6);
            assert!(each.iter().all(|hand| hand.draft.form().is_chain()));
        }
    }
}
