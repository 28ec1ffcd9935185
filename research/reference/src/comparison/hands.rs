//! Subsamples of a draft.
//!
//! Independent paths are exchangeable: a subset of them, chosen without regard to their tokens,
//! consists of independent paths again. So one draft with many paths, whose distributions come from
//! one forward pass, gives several drafts with fewer paths. A draft truncated at a depth is a draft
//! of the tree that ends there.

use polydraft::random::Outcomes;
use polydraft::{
    Distribution, Draft, DraftTree, Draws, Growth, NodeId, RandomSource, Result,
    TargetDistributions, Token,
};
use rand::seq::SliceRandom;
use rand_chacha::ChaCha12Rng;

/// A subsample: a draft with some of another draft's paths.
pub struct Hand {
    pub draft: Draft,
    /// For each node of the subsample, the node of the original draft.
    pub nodes: Vec<NodeId>,
    /// The number of identical subsamples.
    pub times: usize,
}

/// Part of a draft to evaluate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Part {
    /// Number of paths per subsample, for path trees; `None` for the full draft.
    pub paths: Option<usize>,
    /// Maximum depth.
    pub depth: Option<usize>,
}

impl Part {
    /// Returns these parts of a draft; none if the part is the full draft.
    ///
    /// # Errors
    /// A draft that does not consist of paths, if `paths` is set.
    pub(super) fn hands(&self, draft: &Draft, random: &mut ChaCha12Rng) -> Result<Vec<Hand>> {
        match (self.paths, self.depth) {
            (Some(paths), depth) => deal(draft, paths, depth, Some(random)),
            (None, Some(depth)) => Ok(vec![cut(draft, depth)?]),
            (None, None) => Ok(Vec::new()),
        }
    }
}

/// Splits the paths of a draft, truncated at a depth, into subsamples of `count` paths, at random
/// if there are several ways.
///
/// # Errors
/// A draft that does not consist of paths.
pub fn deal(
    draft: &Draft,
    count: usize,
    depth: Option<usize>,
    random: Option<&mut ChaCha12Rng>,
) -> Result<Vec<Hand>> {
    let (tree, depth) = (draft.tree(), depth.unwrap_or(usize::MAX));
    let ends = (0..tree.len()).filter(|&node| tree.children(node).next().is_none());
    if count == 1 {
        let alone = |end| Ok(Hand { times: tree.draws(end), ..hand(draft, &[end], depth)? });
        return ends.map(alone).collect();
    }
    let mut ends: Vec<NodeId> =
        ends.flat_map(|end| std::iter::repeat_n(end, tree.draws(end))).collect();
    if let Some(random) = random {
        ends.shuffle(random);
    }
    ends.chunks_exact(count).map(|ends| hand(draft, ends, depth)).collect()
}

/// Returns the draft truncated at a depth.
fn cut(draft: &Draft, depth: usize) -> Result<Hand> {
    let (mut own, mut nodes) = (Draft::new(), vec![DraftTree::ROOT]);
    let tree = draft.tree();
    let mut node = DraftTree::ROOT;
    while node < own.tree().len() {
        let here = nodes[node];
        if own.tree().depth(node) < depth
            && let Some(draws) = draft.draws(here)
        {
            let growth =
                if draft.has_fresh_draws(here) { Growth::Fresh(draws) } else { Growth::Continue };
            let drawn = |child| std::iter::repeat_n(tree.token(child), tree.draws(child));
            let tokens: Vec<Token> = tree.children(here).flat_map(drawn).collect();
            own.record(node, draft.drawn_from(here)?.clone(), growth, &tokens)?;
            nodes.extend(tree.children(here));
        }
        node += 1;
    }
    Ok(Hand { draft: own, nodes, times: 1 })
}

/// Returns the draft of the paths that end at these nodes, truncated at a depth.
fn hand(draft: &Draft, ends: &[NodeId], depth: usize) -> Result<Hand> {
    let mut paths: Vec<Vec<NodeId>> = ends.iter().map(|&end| draft.tree().path(end)).collect();
    paths.iter_mut().for_each(|path| path.truncate(depth));
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

/// Random source that repeats recorded draws.
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
    /// For each node of the subsample, the node of the original draft.
    pub nodes: &'a [NodeId],
    /// The distributions at the original draft's nodes.
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

    /// Each path is in exactly one subsample, and each subsample has the distributions of its own
    /// prefixes.
    #[test]
    fn every_path_is_sampled_once() {
        let mut random = ChaCha12Rng::seed_from_u64(5);
        let policy = PolicyKind::paths(6, 3).build().expect("a policy");
        for _ in 0..50 {
            let pair = random_pair(3, 3, 0.3, false, &mut random).expect("a pair");
            let draft = draw(policy.as_ref(), &pair.draft, &mut random).expect("a draft");
            let text = |draft: &Draft, node| draft.path(node).tokens();
            let hands = deal(&draft, 2, None, Some(&mut random)).expect("hands");
            assert_eq!(hands.len(), 3);
            let mut draws = vec![0; draft.tree().len()];
            for Hand { draft: own, nodes, times } in &hands {
                assert!(*times == 1 && own.form().is_paths() && own.form().max_draws() == 2);
                for node in 0..own.tree().len() {
                    assert_eq!(text(own, node), text(&draft, nodes[node]));
                    assert_eq!(own.distribution(node), draft.distribution(nodes[node]));
                    draws[nodes[node]] += own.tree().draws(node);
                }
            }
            (1..draft.tree().len())
                .for_each(|node| assert_eq!(draws[node], draft.tree().draws(node)));
            let each = deal(&draft, 1, None, None).expect("hands");
            assert_eq!(each.iter().map(|hand| hand.times).sum::<usize>(), 6);
            assert!(each.iter().all(|hand| hand.draft.form().is_chain()));
        }
    }

    /// A truncated draft equals a draft of the tree that ends there, for every scheme.
    #[test]
    fn truncated_draft_is_a_smaller_draft() {
        let mut random = ChaCha12Rng::seed_from_u64(6);
        for tree in ["paths:4,3", "2,2,2/hub", "3,1,2/without-replacement", "2,2,2", "2,2,1/greedy"]
        {
            let policy = tree.parse::<PolicyKind>().expect("a tree").build().expect("a policy");
            for depth in 1..=3 {
                let pair = random_pair(4, 3, 0.3, depth % 2 == 1, &mut random).expect("a pair");
                let draft = draw(policy.as_ref(), &pair.draft, &mut random).expect("a draft");
                let Hand { draft: own, nodes, .. } = cut(&draft, depth).expect("cut");
                let full = draft.tree();
                let within = (0..full.len()).filter(|&node| full.depth(node) <= depth).count();
                assert_eq!((own.tree().len(), nodes.len()), (within, within), "{tree}");
                for (node, &here) in nodes.iter().enumerate() {
                    let tokens = |draft: &Draft, node| draft.path(node).tokens();
                    assert_eq!(tokens(&own, node), tokens(&draft, here));
                    let inner = full.depth(here) < depth;
                    assert_eq!(own.draws(node), draft.draws(here).filter(|_| inner), "{tree}");
                    assert_eq!(own.has_fresh_draws(node), draft.has_fresh_draws(here) && inner);
                    assert_eq!(own.tree().draws(node), full.draws(here));
                }
                if tree.starts_with("paths") {
                    let hands = deal(&draft, 2, Some(depth), Some(&mut random)).expect("hands");
                    let deepest = |hand: &Hand| hand.draft.tree().levels().len() - 1;
                    assert!(hands.len() == 2 && hands.iter().all(|hand| deepest(hand) == depth));
                }
            }
        }
    }
}
