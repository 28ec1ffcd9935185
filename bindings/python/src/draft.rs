//! A draft: a tree of tokens that knows how each was drawn.

use numpy::{PyArray1, PyArray2};
use polydraft::policy::TreeChoice;
use polydraft::{Draft, DraftTree, Drafting, Draws, Growth, NodeId, Policy, Token};
use pyo3::prelude::*;
use rayon::prelude::*;

use crate::distribution::{Distributions, PyDistribution, PySampling};
use crate::errors::{Failure, Result, lock};
use crate::threads::work;
use crate::tree::{self, PyTree};
use crate::{arrays, pool, random};

/// A tree of drafted tokens that knows how each was drawn.
///
/// Node 0 is the root: the sequence so far, whose last token is `root`. Every other node is a token
/// after its parent; nodes are numbered parents first. Arrays of nodes have an entry for the root,
/// so that row i of the target's logits belongs to node i.
///
/// `Draft(tree, root, depth)` is grown level by level with the draft model's distributions, and no
/// deeper than `depth`: what room there is left, never anything that depends on tokens. `tree` is a
/// `Tree` or the name of one for no verifier, so that `3,2,1` and `binary` are drawn i.i.d.
///
/// >>> draft = Draft("paths:3,2")
/// >>> while (nodes := draft.frontier()):
/// ...     draft.grow([[0.0, 1.0, 2.0]] * len(nodes), rng=1)
/// >>> draft.form, draft.depths.max()
/// ('3 i.i.d. paths', np.int64(2))
///
/// `Draft.from_paths` and `Draft.given` take what an engine has drawn by itself.
#[pyclass(name = "Draft", module = "polydraft")]
pub struct PyDraft {
    pub draft: Draft,
    tree: Option<Py<PyTree>>,
    /// Nodes below this have been asked.
    first_open: usize,
    /// Tokens of a path at most.
    depth: usize,
    root: Token,
}

/// Draws in one tree that somebody else has drawn, a shared node as often as it was drawn: as many
/// as a trace can have. They are written out one by one.
const MOST_DRAWS: u64 = 1 << 20;

impl Drop for PyDraft {
    fn drop(&mut self) {
        let mut distributions = Vec::new();
        self.draft.clear(&mut distributions);
        pool::give_back(distributions);
    }
}

impl PyDraft {
    /// One that was drawn elsewhere, after the token `root`.
    pub fn taken_over(draft: Draft, root: Token) -> Self {
        let first_open = draft.tree().len();
        Self { draft, tree: None, first_open, depth: 0, root }
    }

    fn frontier_of(&self, policy: &dyn Policy) -> Vec<NodeId> {
        let tree = self.draft.tree();
        let within = |node: &NodeId| {
            tree.depth(*node) < self.depth && policy.may_grow(&self.draft.path(*node))
        };
        (self.first_open..tree.len()).filter(within).collect()
    }

    fn array<'py, T: numpy::Element>(
        &self,
        py: Python<'py>,
        of: impl Fn(&DraftTree, NodeId) -> T,
    ) -> Bound<'py, PyArray1<T>> {
        let tree = self.draft.tree();
        PyArray1::from_iter(py, (0..tree.len()).map(|node| of(tree, node)))
    }

    fn check(&self, node: NodeId) -> Result<()> {
        let nodes = self.draft.tree().len();
        match node < nodes {
            true => Ok(()),
            false => {
                Err(Failure::input(format!("draft: expected a node below {nodes}, got {node}")))
            }
        }
    }
}

#[pymethods]
impl PyDraft {
    #[new]
    #[pyo3(signature = (tree, root=0, depth=None))]
    fn new(tree: &Bound<'_, PyAny>, root: Token, depth: Option<usize>) -> Result<Self> {
        let (tree, depth) =
            (tree::given(tree, &TreeChoice::default())?.unbind(), depth.unwrap_or(usize::MAX));
        Ok(Self { draft: Draft::new(), tree: Some(tree), first_open: 0, depth, root })
    }

    /// The nodes whose next-token distribution the tree asks for now; empty when it is complete.
    fn frontier(&self, py: Python<'_>) -> Result<Vec<NodeId>> {
        match &self.tree {
            None => Ok(Vec::new()),
            Some(tree) => tree.get().with(py, |policy| self.frontier_of(policy)),
        }
    }

    /// Draws below the nodes of `frontier()`. `distributions` has the draft's logits there,
    /// `[nodes, vocabulary]`, to which `sampling` is applied, or a list of distributions.
    #[pyo3(signature = (distributions, rng=None, sampling=None))]
    fn grow<'py>(
        &mut self,
        py: Python<'py>,
        distributions: &Bound<'py, PyAny>,
        rng: Option<&Bound<'py, PyAny>>,
        sampling: Option<PySampling>,
    ) -> Result<()> {
        let Some(tree) = &self.tree else {
            return Err(Failure::unsupported(
                "draft: expected one that is drawn here, got one that was drawn elsewhere",
            ));
        };
        let policy = &tree.get().policy;
        let distributions = Distributions::new("distributions", distributions, sampling)?;
        let view = distributions.view()?;
        let nodes = tree.get().with(py, |policy| self.frontier_of(policy))?;
        if view.len() != nodes.len() {
            let message = format!(
                "distributions: expected {} rows, one for each node of the frontier, got {}",
                nodes.len(),
                view.len()
            );
            return Err(Failure::input(message));
        }
        let rng = random::given(py, rng)?;
        let mut rng = rng.try_borrow_mut().map_err(PyErr::from)?;
        let (source, draft) = (&mut rng.source, &mut self.draft);
        let before = draft.tree().len();
        work(py, || {
            // All distributions first: where one is none, nothing has been drawn.
            let made = (0..nodes.len()).into_par_iter().map(|row| view.drafted(row));
            let made: Vec<_> = made.collect::<polydraft::Result<_>>()?;
            let policy = lock(policy);
            for (node, probs) in nodes.into_iter().zip(made) {
                pool::give_back(draft.grow(node, probs, policy.as_ref(), source)?);
            }
            Ok(())
        })?;
        self.first_open = before;
        Ok(())
    }

    /// Takes independent paths that somebody else has drawn: tokens `[paths, depth]`, and the
    /// distributions that they were drawn from: logits `[paths, depth, vocabulary]`, to which
    /// `sampling` is applied. Common beginnings become one node; the distribution there is that of
    /// the first path that has it.
    ///
    /// >>> logits = np.zeros((2, 3, 5), dtype=np.float32)
    /// >>> Draft.from_paths([[1, 2, 3], [1, 4, 0]], logits).tokens
    /// array([0, 1, 2, 4, 3, 0], dtype=uint32)
    #[staticmethod]
    #[pyo3(signature = (tokens, distributions, root=0, sampling=None))]
    fn from_paths(
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        distributions: &Bound<'_, PyAny>,
        root: Token,
        sampling: Option<PySampling>,
    ) -> Result<Self> {
        let paths: Vec<Vec<Token>> = tokens
            .try_iter()?
            .map(|path| arrays::tokens("tokens", &path?))
            .collect::<Result<_>>()?;
        let depth = paths.first().map_or(0, Vec::len);
        if paths.iter().any(|path| path.len() != depth) {
            return Err(Failure::input(
                "tokens: expected paths of one length, shape [paths, depth]",
            ));
        }
        let rows: Vec<Distributions<'_>> = distributions
            .try_iter()?
            .map(|path| Distributions::new("distributions", &path?, sampling.clone()))
            .collect::<Result<_>>()?;
        let views: Vec<_> = rows.iter().map(Distributions::view).collect::<Result<_>>()?;
        if views.len() != paths.len() || views.iter().any(|view| view.len() != depth) {
            return Err(Failure::input(format!(
                "distributions: expected shape [{}, {depth}, vocabulary], a row for each token",
                paths.len()
            )));
        }
        let draft = work(py, || {
            let mut draft = Draft::new();
            // Paths by the node that they have come to.
            let mut ends = vec![DraftTree::ROOT; paths.len()];
            for level in 0..depth {
                let mut nodes = ends.clone();
                nodes.sort_unstable();
                nodes.dedup();
                let here = |node: NodeId| {
                    (0..paths.len()).filter(|path| ends[*path] == node).collect::<Vec<_>>()
                };
                let through: Vec<Vec<usize>> = nodes.iter().map(|node| here(*node)).collect();
                let made: Vec<_> =
                    through.par_iter().map(|paths| views[paths[0]].distribution(level)).collect();
                for ((node, through), probs) in nodes.into_iter().zip(through).zip(made) {
                    let drawn: Vec<Token> =
                        through.iter().map(|path| paths[*path][level]).collect();
                    let growth = match level {
                        0 => Growth::Fresh(Draws::iid(drawn.len())),
                        _ => Growth::Continue,
                    };
                    draft.record(node, probs?, growth, &drawn)?;
                    for (path, token) in through.into_iter().zip(drawn) {
                        ends[path] = draft.tree().child(node, token).unwrap_or(node);
                    }
                }
            }
            Ok(draft)
        })?;
        let first_open = draft.tree().len();
        Ok(Self { draft, tree: None, first_open, depth: 0, root })
    }

    /// Takes a tree that somebody else has drawn. Arrays have an entry for each node, the root
    /// first, whose own are not looked at but for `tokens[0]`.
    ///
    /// `tokens` and `parents`: shape `[nodes]`, parents first, the children of a node in the order
    /// of their draws; `distributions`: the draft's logits that a node's *children* were drawn
    /// from, `[nodes, vocabulary]`, to which `sampling` is applied; rows of leaves are not looked
    /// at, and those after the last node with children may be missing. `counts`: how often each
    /// node was drawn (default: once), 2^20 in all at most. `scheme`: how children are drawn
    /// (`polydraft.DRAFTINGS`). `begins`: for each node, whether draws begin there; where they do
    /// not, every path that came there goes on with one draw (default: they begin at the root alone
    /// for `iid`, everywhere for the others). All of it is the caller's word: verifiers are exact
    /// if it is true.
    #[staticmethod]
    #[pyo3(name = "given")]
    #[pyo3(signature = (
        tokens, parents, distributions, counts=None, scheme="iid", begins=None, sampling=None
    ))]
    #[allow(clippy::too_many_arguments)]
    fn taken(
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        parents: &Bound<'_, PyAny>,
        distributions: &Bound<'_, PyAny>,
        counts: Option<&Bound<'_, PyAny>>,
        scheme: &str,
        begins: Option<Vec<bool>>,
        sampling: Option<PySampling>,
    ) -> Result<Self> {
        let scheme: Drafting = scheme.parse()?;
        let (tokens, parents) =
            (arrays::tokens("tokens", tokens)?, arrays::integers("parents", parents)?);
        let nodes = tokens.len();
        let counts = match counts {
            None => vec![1; nodes],
            Some(counts) => arrays::tokens("counts", counts)?,
        };
        let lengths = [parents.len(), counts.len(), begins.as_ref().map_or(nodes, Vec::len)];
        if nodes == 0 || lengths.iter().any(|length| *length != nodes) {
            let [parents, counts, begins] = lengths;
            return Err(Failure::input(format!(
                "draft: expected tokens, parents, counts and begins of one length, the root \
                 included, got {nodes}, {parents}, \
                 {counts} and {begins}"
            )));
        }
        let draws: u64 = counts[1..].iter().map(|count| u64::from(*count)).sum();
        if draws > MOST_DRAWS {
            let message =
                format!("counts: expected at most {MOST_DRAWS} draws in all, got {draws}");
            return Err(Failure::Library("TooLarge", message));
        }
        let mut children = vec![Vec::new(); nodes];
        for (node, &parent) in parents.iter().enumerate().skip(1) {
            match usize::try_from(parent).ok().filter(|parent| *parent < node) {
                Some(parent) => children[parent].push(node),
                None => {
                    let expected = format!("parents: node {node} should have one before it");
                    return Err(Failure::input(format!("{expected}, got {parent}")));
                }
            }
        }
        let distributions = Distributions::new("distributions", distributions, sampling)?;
        let view = distributions.view()?;
        let last =
            (0..nodes).rev().find(|node| !children[*node].is_empty()).map_or(0, |node| node + 1);
        if view.len() < last {
            return Err(Failure::input(format!(
                "distributions: expected at least {last} rows, one for each node, got {}",
                view.len()
            )));
        }
        let draft = work(py, || {
            let drawn_at: Vec<NodeId> =
                (0..nodes).filter(|node| !children[*node].is_empty()).collect();
            let made: Vec<_> = drawn_at.par_iter().map(|node| view.distribution(*node)).collect();
            let mut draft = Draft::new();
            for (node, probs) in drawn_at.into_iter().zip(made) {
                let fresh = node == DraftTree::ROOT
                    || begins.as_ref().map_or(scheme != Drafting::Iid, |begins| begins[node]);
                let drawn: Vec<Token> = children[node]
                    .iter()
                    .flat_map(|&child| std::iter::repeat_n(tokens[child], counts[child] as usize))
                    .collect();
                let growth = match fresh {
                    true => Growth::Fresh(Draws { scheme, count: drawn.len() }),
                    false => Growth::Continue,
                };
                draft.record(node, probs?, growth, &drawn)?;
                let numbered = draft.tree().children(node).eq(children[node].iter().copied());
                if !numbered {
                    return Err(Failure::input(format!(
                        "draft: expected nodes numbered level by level, the children of a node one \
                         after the other and each \
                         token once, got others at node {node}"
                    )));
                }
            }
            Ok(draft)
        })?;
        Ok(Self { draft, tree: None, first_open: nodes, depth: 0, root: tokens[0] })
    }

    /// Number of nodes, the root included.
    fn __len__(&self) -> usize {
        self.draft.tree().len()
    }

    /// The token of each node, `root` first: uint32 `[nodes]`. With `positions` and `mask`, the
    /// inputs of a pass of the target.
    #[getter]
    fn tokens<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<Token>> {
        self.array(
            py,
            |tree, node| if node == DraftTree::ROOT { self.root } else { tree.token(node) },
        )
    }

    /// The parent of each node, -1 for the root: int64 `[nodes]`.
    #[getter]
    fn parents<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        self.array(
            py,
            |tree, node| if node == DraftTree::ROOT { -1 } else { tree.parent(node) as i64 },
        )
    }

    /// Tokens from the root to each node: int64 `[nodes]`. Added to the root's position, the
    /// positions of a pass.
    #[getter]
    fn depths<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        self.array(py, |tree, node| tree.depth(node) as i64)
    }

    /// Number of draws of each node, 0 for the root: int64 `[nodes]`.
    #[getter]
    fn counts<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        self.array(py, |tree, node| tree.draws(node) as i64)
    }

    /// Which nodes each node sees: itself and those above it: bool `[nodes, nodes]`.
    fn mask<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyArray2<bool>>> {
        let tree = self.draft.tree();
        let mut rows = vec![vec![false; tree.len()]; tree.len()];
        for node in 0..tree.len() {
            if node != DraftTree::ROOT {
                rows[node] = rows[tree.parent(node)].clone();
            }
            rows[node][node] = true;
        }
        PyArray2::from_vec2(py, &rows).map_err(|error| Failure::input(error.to_string()))
    }

    /// The nodes from the root (left out) to `node`.
    fn path(&self, node: NodeId) -> Result<Vec<NodeId>> {
        self.check(node)?;
        Ok(self.draft.tree().path(node))
    }

    /// The nodes below which nothing was drawn.
    fn leaves(&self) -> Vec<NodeId> {
        (0..self.draft.tree().len()).filter(|node| self.draft.draws(*node).is_none()).collect()
    }

    /// The distribution that the children of a node were drawn from; none at a leaf.
    fn distribution(&self, node: NodeId) -> Option<PyDistribution> {
        self.draft.distribution(node).map(|probs| probs.clone().into())
    }

    /// The kinds of draws in it, for people; verifiers go by it.
    #[getter]
    fn form(&self) -> String {
        self.draft.form().to_string()
    }

    fn __repr__(&self) -> String {
        format!("Draft({} nodes, {})", self.draft.tree().len(), self.draft.form())
    }
}
