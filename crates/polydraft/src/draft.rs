//! A draft: the tokens that were drawn, and how.
//!
//! Adding children to a tree means drawing them, or stating how they were drawn elsewhere. The
//! draft records what was drawn where, by which scheme and from which distribution. A verifier gets
//! nothing else from the draft's side, so the distributions that it relies on are those that were
//! drawn from.

mod each;
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

/// What was drawn below one node.
#[derive(Debug)]
struct Drawn {
    draws: Draws,
    /// Whether the draws began here; otherwise every path that came here went on with one.
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
    /// By node; none where nothing was drawn.
    drawn: Vec<Option<Drawn>>,
    form: Form,
    /// Nodes whose distribution a policy was shown, by depth.
    pass_sizes: Vec<usize>,
    tokens: Vec<Token>,
}

impl Draft {
    /// Nothing drawn yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets all draws; the distributions that they came from are added to `spare`, to be filled
    /// again.
    pub fn clear(&mut self, spare: &mut Vec<Distribution>) {
        self.drawn.drain(..).flatten().for_each(|drawn| drawn.from.recycle(spare));
        self.tree.clear();
        self.pass_sizes.clear();
        self.form = Form::default();
    }

    /// Draws the children of `node` from `probs`, its next-token distribution.
    ///
    /// [`Growth::Continue`] below a node of independent draws is one draw for each path that came
    /// here; below any other node, and at the root, it is a single new draw.
    ///
    /// With shared randomness ([`crate::gumbel`]) in `rng`, i.i.d. draws and draws without
    /// replacement are both taken by the Gumbel coupling (Gumbel-top-k), which draws without
    /// replacement.
    ///
    /// # Errors
    /// A node that is not there, or below which something was drawn before; a distribution over
    /// another vocabulary than the root's; draws that have more than one distribution, or none at
    /// all.
    pub fn draw(
        &mut self,
        node: NodeId,
        probs: Distribution,
        growth: Growth,
        rng: &mut dyn RandomSource,
    ) -> Result<()> {
        let (draws, fresh) = self.growing(node, &probs, growth)?;
        if matches!(draws.scheme, Drafting::Iid | Drafting::WithoutReplacement)
            && let Some(tokens) = rng.gumbel_top(self.tree.depth(node), &probs, draws.count)
        {
            let draws = Draws { scheme: Drafting::WithoutReplacement, ..draws };
            Proposal::new(draws, std::slice::from_ref(&probs))?;
            self.add(node, Source::One(probs), draws, fresh, &tokens);
            self.form.note_race();
            return Ok(());
        }
        let mut tokens = std::mem::take(&mut self.tokens);
        let drawn = Proposal::new(draws, std::slice::from_ref(&probs))
            .map(|proposal| proposal.draw(rng, &mut tokens))
            .map(|()| self.add(node, Source::One(probs), draws, fresh, &tokens));
        self.tokens = tokens;
        drawn
    }

    /// Takes draws that were made elsewhere: the children of `node`, in the order of their draws,
    /// repeated ones as often as they were drawn. The caller guarantees that they were drawn from
    /// `probs` as `growth` says: verifiers are exact if that holds.
    ///
    /// # Errors
    /// As for [`draw`](Self::draw), and tokens that cannot have been drawn so.
    pub fn record(
        &mut self,
        node: NodeId,
        probs: Distribution,
        growth: Growth,
        tokens: &[Token],
    ) -> Result<()> {
        let (draws, fresh) = self.growing(node, &probs, growth)?;
        Proposal::new(draws, std::slice::from_ref(&probs))?.check(tokens)?;
        self.add(node, Source::One(probs), draws, fresh, tokens);
        Ok(())
    }

    /// What is drawn below a node, and whether it begins there.
    fn growing(&self, node: NodeId, probs: &Distribution, growth: Growth) -> Result<(Draws, bool)> {
        self.open(node, probs)?;
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

    /// # Errors
    /// Nothing can be drawn from such a distribution below this node.
    fn open(&self, node: NodeId, probs: &Distribution) -> Result<()> {
        if node >= self.tree.len() {
            let expected = format!("a node below {}", self.tree.len());
            return Err(unsupported(&expected, format!("node {node}")));
        }
        if self.at(node).is_some() {
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

    /// Whether this node is the end of independent draws from its parent's distribution.
    fn is_iid_child(&self, node: NodeId) -> bool {
        node != DraftTree::ROOT
            && self
                .at(self.tree.parent(node))
                .is_some_and(|drawn| drawn.draws.scheme == Drafting::Iid)
    }

    fn at(&self, node: NodeId) -> Option<&Drawn> {
        self.drawn.get(node)?.as_ref()
    }

    /// The tokens.
    pub fn tree(&self) -> &DraftTree {
        &self.tree
    }

    /// Nodes at which a policy was asked what to draw ([`grow`](Self::grow)), by depth: the number
    /// of tokens of each of the draft's forward passes. Empty where the draft was not asked for
    /// anything.
    pub fn pass_sizes(&self) -> &[usize] {
        &self.pass_sizes
    }

    /// What kinds of draws there are, for verifiers to say whether they are exact for them.
    pub fn form(&self) -> &Form {
        &self.form
    }

    /// The distribution of the tuple that was drawn below a node; none at a leaf.
    pub fn proposal(&self, node: NodeId) -> Option<Proposal<'_>> {
        let drawn = self.at(node)?;
        // Checked when it was drawn.
        Proposal::new(drawn.draws, drawn.from.probs()).ok()
    }

    /// How the children of a node were drawn; none at a leaf.
    pub fn draws(&self, node: NodeId) -> Option<Draws> {
        self.at(node).map(|drawn| drawn.draws)
    }

    /// The distribution that the children of a node were drawn from, the first where each has its
    /// own; none at a leaf.
    pub fn distribution(&self, node: NodeId) -> Option<&Distribution> {
        self.at(node)?.from.probs().first()
    }

    /// The distribution that the children of a node were drawn from.
    ///
    /// # Errors
    /// A leaf: nothing was drawn there.
    pub fn drawn_from(&self, node: NodeId) -> Result<&Distribution> {
        self.distribution(node).ok_or_else(|| Error::Unsupported {
            operation: "draft's distribution",
            expected: "a node below which tokens were drawn".to_owned(),
            got: format!("node {node}"),
        })
    }

    /// Whether the draws below this node began here. At a leaf they did not.
    pub fn has_fresh_draws(&self, node: NodeId) -> bool {
        self.at(node).is_some_and(|drawn| drawn.fresh)
    }

    /// Whether the paths that came to this node went on, each with one draw.
    pub fn has_continued_draws(&self, node: NodeId) -> bool {
        self.at(node).is_some_and(|drawn| !drawn.fresh)
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
    fn misuse_is_refused() {
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
    fn draws_of_others_are_what_draws_are() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let mut own = Draft::new();
        let tokens = |draft: &Draft, node| {
            let tree = draft.tree();
            let drawn = |child| std::iter::repeat_n(tree.token(child), tree.draws(child));
            tree.children(node).flat_map(drawn).collect::<Vec<_>>()
        };
        let mut other = Draft::new();
        for (node, growth) in
            [Growth::Fresh(Draws::iid(4)), Growth::Continue].into_iter().enumerate()
        {
            own.draw(node, probs(), growth, &mut rng).unwrap();
            other.record(node, probs(), growth, &tokens(&own, node)).unwrap();
        }
        assert_eq!((own.tree(), own.form()), (other.tree(), other.form()));
        assert!(other.has_continued_draws(1) && other.has_fresh_draws(0));
        let refused = |growth, tokens: &[Token]| {
            Draft::new().record(0, probs(), growth, tokens).unwrap_err().to_string()
        };
        let draws = |scheme| Growth::Fresh(Draws { scheme, count: 2 });
        assert!(refused(draws(Drafting::Iid), &[1]).contains("expected 2"));
        assert!(refused(draws(Drafting::Iid), &[1, 3]).contains("below 3"));
        assert!(refused(draws(Drafting::WithoutReplacement), &[1, 1]).contains("[1, 1]"));
        assert!(refused(draws(Drafting::TopK), &[1, 0]).contains("top-k"));
    }

    #[test]
    fn paths_go_on_and_draws_begin_anew() {
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
        // Below draws that are no paths there is nothing to go on with.
        let mut draft = Draft::new();
        let fresh = Draws { scheme: Drafting::WithoutReplacement, count: 2 };
        draft.draw(0, probs(), Growth::Fresh(fresh), &mut rng).unwrap();
        draft.draw(1, probs(), Growth::Continue, &mut rng).unwrap();
        assert_eq!((draft.draws(1), draft.has_fresh_draws(1)), (Some(Draws::iid(1)), true));
    }
}
