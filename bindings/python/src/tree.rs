//! Trees by the names that users type: where drafts grow.

use std::sync::Mutex;

use polydraft::policy::{TreeChoice, TreeName};
use polydraft::{Policy, PolicyKind, VerifierKind};
use pyo3::prelude::*;

use crate::errors::{Result, lock};
use crate::names::{self, Named};
use crate::threads::work;

/// Where a draft's tree grows, by the name that users type: `paths:4,8`, `delayed:2,3,2`, `3,2,1`,
/// `binary`, `3-ary`, `stop-below:0.2,paths:2,8`, `auto`, .. (`polydraft.TREES`), or a dictionary
/// with the name as `"tree"` and settings.
///
/// >>> tree = Tree("paths:4,8")
/// >>> tree.describe(), tree.depth, tree.nodes
/// ('4 paths of 8', 8, 32.0)
#[pyclass(name = "Tree", module = "polydraft", frozen)]
pub struct PyTree {
    pub kind: PolicyKind,
    pub policy: Mutex<Box<dyn Policy>>,
}

impl PyTree {
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
    #[new]
    fn new(tree: Named<'_>) -> Result<Self> {
        let by_name = |name: &str| Ok(name.parse::<TreeName>()?.choose(&TreeChoice::default())?);
        let kind: PolicyKind = tree.described(by_name, serde_json::from_value)?;
        Ok(Self { policy: Mutex::new(kind.build()?), kind })
    }

    /// What it is, for people.
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

/// The tree that a value stands for beside a verifier: a name leaves the drafting scheme to it.
/// Sequoia trees are made from these acceptances.
pub fn for_verifier(
    value: &Bound<'_, PyAny>,
    verifier: &VerifierKind,
    acceptance: Option<&[f64]>,
) -> Result<PolicyKind> {
    match value.extract::<String>() {
        Ok(name) => {
            let verifier = Some(verifier);
            let choice = TreeChoice { verifier, acceptance, ..TreeChoice::default() };
            Ok(name.parse::<TreeName>()?.choose(&choice)?)
        }
        Err(_) => Ok(given(value)?.get().kind.clone()),
    }
}

/// A tree, or the name of one.
pub fn given<'py>(value: &Bound<'py, PyAny>) -> Result<Bound<'py, PyTree>> {
    names::given(value, PyTree::new)
}
