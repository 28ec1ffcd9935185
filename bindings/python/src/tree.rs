//! Trees by the names that users type: where drafts grow.

use std::path::PathBuf;
use std::sync::Mutex;

use polydraft::policy::{TreeChoice, TreeName};
use polydraft::{Policy, PolicyKind, VerifierKind};
use pyo3::prelude::*;
use serde::de::Error as _;
use serde_json::Value;

use crate::errors::{Failure, Result, lock, wrong_type};
use crate::models;
use crate::names::{self, Named};
use crate::threads::work;

/// Where a draft's tree grows, by the name that users type: `paths:4,8`, `delayed:2,3,2`, `3,2,1`,
/// `binary`, `stop-below:0.2,paths:2,8`, `auto`, .. (an example of every form is in
/// `polydraft.TREES`), a dictionary with the name as `"tree"` and settings, or a tree, to copy it.
///
/// Names such as `3,2,1`, `binary` or `sequoia:16` leave open how tokens are drawn. `verifier`: the
/// one that the tree is for, which decides it; without one they are i.i.d. draws (a sequoia tree is
/// drawn without replacement). Where a verifier is known, as in `Engine.generate` or
/// `Verifier.supports`, a name is a tree for that one. `acceptance`: what a sequoia tree is made
/// from, the probability that the first, second, .. distinct draft at a node is accepted: numbers,
/// or a file such as `{"acceptance": [0.6, 0.15, 0.05]}`.
///
/// >>> tree = Tree("paths:4,8")
/// >>> tree.describe(), tree.depth, tree.nodes
/// ('4 paths of 8', 8, 32.0)
/// >>> Tree("2,2"), Tree("2,2", verifier="walk:hub")
/// (Tree('levels:2,2'), Tree('levels:2,2/greedy'))
/// >>> Tree("sequoia:4", acceptance=[0.6, 0.2]).nodes
/// 4.0
#[pyclass(name = "Tree", module = "polydraft", frozen)]
pub struct PyTree {
    pub kind: PolicyKind,
    pub policy: Mutex<Box<dyn Policy>>,
}

impl PyTree {
    /// One that grows as this says.
    pub fn from_kind(kind: PolicyKind) -> Result<Self> {
        Ok(Self { policy: Mutex::new(kind.build()?), kind })
    }

    /// Looks at the policy without the interpreter's lock: an enumeration on another thread has it
    /// for long.
    pub fn with<T: Send>(
        &self,
        py: Python<'_>,
        look: impl FnOnce(&mut dyn Policy) -> T + Send,
    ) -> Result<T> {
        work(py, || Ok(look(lock(&self.policy).as_mut())))
    }
}

#[pymethods]
impl PyTree {
    /// Returns a description of the tree.
    fn describe(&self) -> String {
        self.kind.describe()
    }

    /// The kinds of draws that its trees have, for people.
    #[getter]
    fn form(&self, py: Python<'_>) -> Result<String> {
        self.with(py, |policy| policy.form().to_string())
    }

    /// Tokens from the root to the deepest leaf, at most.
    #[getter]
    fn depth(&self, py: Python<'_>) -> Result<usize> {
        self.with(py, |policy| policy.depth())
    }

    /// Drafted tokens of a tree, at most; for budgets as expected.
    #[getter]
    fn nodes(&self) -> f64 {
        self.kind.nodes()
    }

    fn __repr__(&self) -> String {
        format!("Tree('{}')", self.kind)
    }
}

/// Context in which the name of a tree is resolved.
pub struct Beside<'a> {
    /// The verifier: it decides the drafting scheme.
    pub verifier: &'a VerifierKind,
    /// Drafts, or samplings of the draft, each of which draws a path; 0 where there is one.
    pub drafts: usize,
    /// The acceptances that sequoia trees are made from, if they are known.
    pub acceptance: Option<&'a [f64]>,
}

impl Beside<'_> {
    /// The tree that a value stands for; without one, as the program has it.
    pub fn tree(&self, value: Option<&Bound<'_, PyAny>>) -> Result<PolicyKind> {
        let Self { verifier, drafts, acceptance } = *self;
        let choice = TreeChoice { verifier: Some(verifier), acceptance, ..TreeChoice::default() };
        let tree = match value {
            None => PolicyKind::default_for(verifier, drafts),
            Some(value) => given(value, &choice)?.get().kind.clone(),
        };
        let paths = tree.build()?.form().distinct();
        match () {
            () if paths == drafts => self.supported(tree),
            () if paths == 0 => Err(Failure::input(format!(
                "{drafts} drafts, or samplings of the draft, draw one path each, \
                 tree=\"distinct:{drafts},L\": leave tree=\"{tree}\" out, or give one"
            ))),
            () => Err(Failure::input(format!(
                "tree=\"{tree}\" draws each of {paths} paths from a draft of its own: give as \
                 many samplings in draft_sampling=, or as many drafts"
            ))),
        }
    }

    /// The tree, if the verifier is exact for it.
    fn supported(&self, tree: PolicyKind) -> Result<PolicyKind> {
        let verifier = self.verifier;
        let Err(unfit) = verifier.build()?.supports(&tree.build()?.form()) else {
            return Ok(tree);
        };
        let mut message = unfit.to_string();
        let fit: Vec<_> = tree.verifiers().iter().map(VerifierKind::to_string).collect();
        if !fit.is_empty() {
            message += &format!("; verifiers for this tree: {}", fit.join(", "));
        }
        let trees = TreeName::examples_for(verifier);
        let trees: Vec<_> = trees.iter().map(|tree| format!("tree=\"{tree}\"")).collect();
        if !trees.is_empty() {
            message += &format!("; trees for {verifier}, for example: {}", trees.join(", "));
        }
        Err(Failure::unsupported(message))
    }
}

/// The name of a tree, or the settings of a dictionary.
pub fn read(tree: Named<'_>) -> Result<TreeName> {
    if let Named::Other(value) = &tree
        && let Ok(tree) = value.cast::<PyTree>()
    {
        return Ok(TreeName::Complete(tree.get().kind.clone()));
    }
    let from_json = |json: Value| {
        let name = json.get("tree").and_then(Value::as_str);
        match name.filter(|name| PolicyKind::named(name).is_none()) {
            Some(name) => Err(serde_json::Error::custom(format_args!(
                "expected with settings a tree of {}, got {name:?}, which has none beside its name",
                PolicyKind::NAMES.join(", ")
            ))),
            None => serde_json::from_value(json).map(TreeName::Complete),
        }
    };
    tree.described("tree", |name| Ok(name.parse()?), from_json)
}

/// The tree that a name stands for.
pub fn choose(name: &TreeName, choice: &TreeChoice<'_>) -> Result<PolicyKind> {
    if name.needs_acceptance() && choice.acceptance.is_none() {
        return Err(Failure::input(
            "a sequoia tree is made from measured acceptances: give Engine, Tree or \
             transformers.generate acceptance=[0.6, 0.15, 0.05], or a file such as \
             {\"acceptance\": [0.6, 0.15, 0.05]}: the probability that the first, second, .. \
             distinct draft at a node is accepted",
        ));
    }
    Ok(name.choose(choice)?)
}

/// A tree, or the name of one beside these facts.
pub fn given<'py>(
    value: &Bound<'py, PyAny>,
    choice: &TreeChoice<'_>,
) -> Result<Bound<'py, PyTree>> {
    names::given(value, |tree| PyTree::from_kind(choose(&read(tree)?, choice)?))
}

/// Reads measured acceptances: numbers, or a file of them.
pub fn read_acceptance(given: Option<&Bound<'_, PyAny>>) -> Result<Option<Vec<f64>>> {
    let Some(given) = given else { return Ok(None) };
    if let Ok(numbers) = given.extract() {
        return Ok(Some(numbers));
    }
    let file: PathBuf = given
        .extract()
        .map_err(|_| wrong_type("acceptance", "a list of numbers, or a file of them", given))?;
    work(given.py(), || models::read_acceptance(&file)).map(Some)
}
