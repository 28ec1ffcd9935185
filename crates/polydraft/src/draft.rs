//! Drafts: drafted tokens together with how each of them was drawn.
//!
//! Children are added to a tree by drawing them or by recording draws made elsewhere. For every
//! node the draft stores the scheme and the distribution its children were drawn from. A verifier
//! gets nothing else from the draft's side, so the distributions that it relies on are those that
//! were drawn from.

mod distinct;
mod form;
mod grow;
mod path;
mod source;
mod tree;

use crate::drafting::{Drafting, Draws, Growth, Proposal};
use crate::random::RandomSource;
use crate::{Distribution, Error, Result, Token};

use source::Source;

pub use form::Form;
pub use path::Path;
pub use tree::{DraftTree, NodeId};

/// The draws below one node.
#[derive(Debug)]
struct Drawn {
    draws: Draws,
    /// True for fresh draws; false if each path through this node continues with one draw.
    fresh: bool,
    from: Source,
}

/// A tree of drafted tokens with the distribution of every draw.
///
/// ```
/// use polydraft::{Distribution, Draft, DraftTree, Draws, Growth};
/// use rand::SeedableRng;
///
/// let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(0);
/// let probs = Distribution::new(vec![0.5, 0.3, 0.2])?;
/// let mut draft = Draft::new();
/// draft.draw(DraftTree::ROOT, probs, Growth::Fresh(Draws::iid(3)), &mut rng)?;
/// assert_eq!(draft.proposal(DraftTree::ROOT).map(|p| p.count()), Some(3));
/// assert!(draft.form().is_paths());
/// # Ok::<(), polydraft::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Draft {
    tree: DraftTree,
    /// Per node; `None` where nothing was drawn.
    drawn: Vec<Option<Drawn>>,
    form: Form,
    /// Number of nodes per depth at which a policy was queried.
    pass_sizes: Vec<usize>,
    tokens: Vec<Token>,
}

impl Draft {
    /// Creates a draft without draws.
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes all draws and appends their distributions to `spare`, for reuse of their memory.
    pub fn clear(&mut self, spare: &mut Vec<Distribution>) {
        self.drawn.drain(..).flatten().for_each(|drawn| drawn.from.recycle(spare));
        self.tree.clear();
        self.pass_sizes.clear();
        self.form = Form::default();
    }

    /// Draws the children of `node` from `probs`, its next-token distribution.
    ///
    /// [`Growth::Continue`] below a node of independent draws makes one draw for each path through
    /// the node; below any other node, and at the root, it makes a single fresh draw.
    ///
    /// With shared randomness ([`crate::gumbel`]) in `rng`, both i.i.d. draws and draws without
    /// replacement are made by the Gumbel coupling (Gumbel-top-k), which draws without replacement.
    ///
    /// # Errors
    /// A node that does not exist, or below which something was already drawn; a distribution over
    /// another vocabulary than the root's; a scheme with several distributions; zero draws.
    pub fn draw(
        &mut self,
        node: NodeId,
        probs: Distribution,
        growth: Growth,
        rng: &mut dyn RandomSource,
    ) -> Result<()> {
        let (draws, fresh) = self.resolve_growth(node, &probs, growth)?;
        if matches!(draws.scheme, Drafting::Iid | Drafting::WithoutReplacement)
            && let Some(tokens) = rng.gumbel_top(self.tree.depth(node), &probs, draws.count)
        {
            let draws = Draws { scheme: Drafting::WithoutReplacement, ..draws };
            Proposal::new(draws, std::slice::from_ref(&probs))?;
            self.add(node, Source::One(probs), draws, fresh, &tokens);
            self.form.note_shared_randomness();
            return Ok(());
        }
        let mut tokens = std::mem::take(&mut self.tokens);
        let drawn = Proposal::new(draws, std::slice::from_ref(&probs))
            .map(|proposal| proposal.draw(rng, &mut tokens))
            .map(|()| self.add(node, Source::One(probs), draws, fresh, &tokens));
        self.tokens = tokens;
        drawn
    }

    /// Records draws made elsewhere: the children of `node`, in the order of their draws, repeated
    /// as often as they were drawn. The caller guarantees that they were drawn from `probs`
    /// according to `growth`; verifiers are exact only then.
    ///
    /// # Errors
    /// As for [`draw`](Self::draw), and tokens that the scheme cannot draw.
    pub fn record(
        &mut self,
        node: NodeId,
        probs: Distribution,
        growth: Growth,
        tokens: &[Token],
    ) -> Result<()> {
        let (draws, fresh) = self.resolve_growth(node, &probs, growth)?;
        Proposal::new(draws, std::slice::from_ref(&probs))?.check(tokens)?;
        self.add(node, Source::One(probs), draws, fresh, tokens);
        Ok(())
    }

    /// The draws that `growth` means at `node`, and whether they are fresh.
    fn resolve_growth(
        &self,
        node: NodeId,
        probs: &Distribution,
        growth: Growth,
    ) -> Result<(Draws, bool)> {
        self.check_can_draw(node, probs)?;
        let (draws, fresh) = match growth {
            Growth::Fresh(draws) => (draws, true),
            Growth::Continue if self.is_iid_child(node) => {
                (Draws::iid(self.tree.draws(node)), false)
            }
            Growth::Continue => (Draws::iid(1), true),
        };
        if draws.scheme == Drafting::Distinct {
            return Err(unsupported("draws from one distribution", draws.scheme.to_string()));
        }
        Ok((draws, fresh))
    }

    /// Checks that children can be drawn from `probs` below `node`.
    fn check_can_draw(&self, node: NodeId, probs: &Distribution) -> Result<()> {
        if node >= self.tree.len() {
            let expected = format!("a node below {}", self.tree.len());
            return Err(unsupported(&expected, format!("node {node}")));
        }
        if self.drawn_at(node).is_some() {
            return Err(unsupported(
                "a node below which nothing was drawn",
                format!("node {node}"),
            ));
        }
        match self.distribution(DraftTree::ROOT) {
            Some(first) if first.vocabulary() != probs.vocabulary() => {
                let expected = format!("{} as the root's distribution has", first.vocabulary());
                Err(Error::Length { operation: OPERATION, expected, got: probs.vocabulary() })
            }
            _ => Ok(()),
        }
    }

    fn add(&mut self, node: NodeId, from: Source, draws: Draws, fresh: bool, tokens: &[Token]) {
        for &token in tokens {
            self.tree.add(node, token);
        }
        self.form.note(draws, fresh && node != DraftTree::ROOT);
        self.drawn.resize_with(self.tree.len(), || None);
        self.drawn[node] = Some(Drawn { draws, fresh, from });
    }

    /// True if the node was drawn i.i.d. from its parent's distribution.
    fn is_iid_child(&self, node: NodeId) -> bool {
        node != DraftTree::ROOT
            && self
                .drawn_at(self.tree.parent(node))
                .is_some_and(|drawn| drawn.draws.scheme == Drafting::Iid)
    }

    fn drawn_at(&self, node: NodeId) -> Option<&Drawn> {
        self.drawn.get(node)?.as_ref()
    }

    /// The tree of drafted tokens.
    pub fn tree(&self) -> &DraftTree {
        &self.tree
    }

    /// Number of tokens in each of the draft model's forward passes: the nodes per depth at which a
    /// policy was queried ([`grow`](Self::grow)). Empty if the draft was not used.
    pub fn pass_sizes(&self) -> &[usize] {
        &self.pass_sizes
    }

    /// The kinds of draws in the tree, by which verifiers decide whether they are exact for it.
    pub fn form(&self) -> &Form {
        &self.form
    }

    /// The distribution of the tuple drawn below a node; `None` at a leaf.
    pub fn proposal(&self, node: NodeId) -> Option<Proposal<'_>> {
        let drawn = self.drawn_at(node)?;
        // Valid: it was checked when it was drawn.
        Proposal::new(drawn.draws, drawn.from.probs()).ok()
    }

    /// The scheme and number of the draws below a node; `None` at a leaf.
    pub fn draws(&self, node: NodeId) -> Option<Draws> {
        self.drawn_at(node).map(|drawn| drawn.draws)
    }

    /// The distribution that the children of a node were drawn from, or the first of several
    /// distinct ones; `None` at a leaf.
    pub fn distribution(&self, node: NodeId) -> Option<&Distribution> {
        self.drawn_at(node)?.from.probs().first()
    }

    /// The distribution that the children of a node were drawn from.
    ///
    /// # Errors
    /// A leaf, where nothing was drawn.
    pub fn drawn_from(&self, node: NodeId) -> Result<&Distribution> {
        self.distribution(node).ok_or_else(|| Error::Unsupported {
            operation: "draft's distribution",
            expected: "a node below which tokens were drawn".to_owned(),
            got: format!("node {node}"),
        })
    }

    /// True if the draws below this node are fresh ([`Growth::Fresh`]); false at a leaf.
    pub fn has_fresh_draws(&self, node: NodeId) -> bool {
        self.drawn_at(node).is_some_and(|drawn| drawn.fresh)
    }

    /// True if the paths through this node continue with one draw each ([`Growth::Continue`]);
    /// false at a leaf.
    pub fn has_continued_draws(&self, node: NodeId) -> bool {
        self.drawn_at(node).is_some_and(|drawn| !drawn.fresh)
    }
}

const OPERATION: &str = "draft";

fn unsupported(expected: &str, got: String) -> Error {
    Error::Unsupported { operation: OPERATION, expected: expected.to_owned(), got }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    fn probs() -> Distribution {
        Distribution::new(vec![0.5, 0.3, 0.2]).unwrap()
    }

    #[test]
    fn rejects_invalid_nodes_counts_schemes_and_vocabularies() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut draft = Draft::new();
        let two = Growth::Fresh(Draws::iid(2));
        assert!(draft.draw(1, probs(), two, &mut rng).is_err());
        let none = Growth::Fresh(Draws::iid(0));
        assert!(draft.draw(0, probs(), none, &mut rng).is_err());
        let distinct = Growth::Fresh(Draws { scheme: Drafting::Distinct, count: 1 });
        assert!(draft.draw(0, probs(), distinct, &mut rng).is_err());
        draft.draw(0, probs(), two, &mut rng).unwrap();
        assert!(
            draft
                .draw(0, probs(), two, &mut rng)
                .unwrap_err()
                .to_string()
                .contains("nothing was drawn")
        );
        let other = Distribution::new(vec![0.5, 0.5]).unwrap();
        assert!(draft.draw(1, other, two, &mut rng).unwrap_err().to_string().contains('3'));
        let mut spare = Vec::new();
        draft.clear(&mut spare);
        assert_eq!((spare, draft.tree().len(), draft.form()), (vec![probs()], 1, &Form::default()));
    }

    #[test]
    fn recorded_draws_equal_drawn_ones() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let mut drawn = Draft::new();
        let tokens = |draft: &Draft, node| {
            let tree = draft.tree();
            let repeated = |child| std::iter::repeat_n(tree.token(child), tree.draws(child));
            tree.children(node).flat_map(repeated).collect::<Vec<_>>()
        };
        let mut recorded = Draft::new();
        for (node, growth) in
            [Growth::Fresh(Draws::iid(4)), Growth::Continue].into_iter().enumerate()
        {
            drawn.draw(node, probs(), growth, &mut rng).unwrap();
            recorded.record(node, probs(), growth, &tokens(&drawn, node)).unwrap();
        }
        assert_eq!((drawn.tree(), drawn.form()), (recorded.tree(), recorded.form()));
        assert!(recorded.has_continued_draws(1) && recorded.has_fresh_draws(0));
    }

    #[test]
    fn record_rejects_tokens_that_the_scheme_cannot_draw() {
        let error = |growth, tokens: &[Token]| {
            Draft::new().record(0, probs(), growth, tokens).unwrap_err().to_string()
        };
        let draws = |scheme| Growth::Fresh(Draws { scheme, count: 2 });
        assert!(error(draws(Drafting::Iid), &[1]).contains("expected 2"));
        assert!(error(draws(Drafting::Iid), &[1, 3]).contains("below 3"));
        assert!(error(draws(Drafting::WithoutReplacement), &[1, 1]).contains("[1, 1]"));
        assert!(error(draws(Drafting::TopK), &[1, 0]).contains("top-k"));
    }

    #[test]
    fn paths_continue_and_fresh_draws_start() {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let mut draft = Draft::new();
        draft.draw(0, probs(), Growth::Fresh(Draws::iid(5)), &mut rng).unwrap();
        let (first, paths) = (1, draft.tree().draws(1));
        draft.draw(first, probs(), Growth::Continue, &mut rng).unwrap();
        assert_eq!(
            (draft.draws(first), draft.has_continued_draws(first)),
            (Some(Draws::iid(paths)), true)
        );
        assert!(draft.form().is_paths());
        draft.draw(2, probs(), Growth::Fresh(Draws::iid(2)), &mut rng).unwrap();
        assert!(draft.has_fresh_draws(2) && !draft.form().is_paths() && draft.form().is_iid());
        // Draws without replacement do not form independent paths, so Continue makes a single fresh
        // draw.
        let mut draft = Draft::new();
        let fresh = Draws { scheme: Drafting::WithoutReplacement, count: 2 };
        draft.draw(0, probs(), Growth::Fresh(fresh), &mut rng).unwrap();
        draft.draw(1, probs(), Growth::Continue, &mut rng).unwrap();
        assert_eq!((draft.draws(1), draft.has_fresh_draws(1)), (Some(Draws::iid(1)), true));
    }
}
