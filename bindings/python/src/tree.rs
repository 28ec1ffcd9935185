//! Trees by the names that users type: where drafts grow.

use std::sync::Mutex;

use polydraft::policy::{Auto, DEFAULT_DEPTH, Distinct, TreeChoice, TreeName};
use polydraft::{Policy, PolicyKind, VerifierKind};
use pyo3::prelude::*;

use crate::errors::{Failure, Result, lock};
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

/// What a tree depends on beside its name.
pub struct Beside<'a> {
    /// The verifier: it decides the drafting scheme.
    pub verifier: &'a VerifierKind,
    /// Drafts, or samplings of the draft, each of which draws a path; 0 where there is one.
    pub drafts: usize,
    /// The acceptances that sequoia trees are made from, if they are known.
    pub acceptance: Option<&'a [f64]>,
}

impl Beside<'_> {
    /// The tree that a value stands for; without one, as the program has it: one path, as deep as
    /// is worth it, or with several drafts a path from each.
    pub fn tree(&self, value: Option<&Bound<'_, PyAny>>) -> Result<PolicyKind> {
        let tree = match value.map(|value| (value, value.extract::<String>())) {
            None => self.unnamed(),
            Some((_, Ok(name))) => self.named(&name.parse()?)?,
            Some((value, Err(_))) => given(value)?.get().kind.clone(),
        };
        let (drafts, paths) = (self.drafts, tree.build()?.form().distinct());
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
        let Err(unfit) = self.verifier.build()?.supports(&tree.build()?.form()) else {
            return Ok(tree);
        };
        let all = VerifierKind::all();
        // A verifier whose output does not depend on the draft is only for users who ask for that.
        let usual = |kind: &&VerifierKind| {
            kind.build().is_ok_and(|verifier| !verifier.uses_shared_randomness())
        };
        let fit = all.iter().filter(usual).filter(|other| tree.is_supported_by(other));
        let fit: Vec<String> = fit.map(VerifierKind::to_string).collect();
        let fit = fit.join(", ");
        Err(Failure::unsupported(format!("{unfit}; verifiers for this tree: {fit}")))
    }

    fn named(&self, name: &TreeName) -> Result<PolicyKind> {
        let Self { verifier, acceptance, .. } = *self;
        if let (TreeName::Sequoia(_), None) = (name, acceptance) {
            return Err(Failure::input(
                "a sequoia tree needs measured acceptances: make them with 'polydraft-lab bench \
                 acceptance --save FILE', then give Engine acceptance=FILE",
            ));
        }
        let verifier = Some(verifier);
        Ok(name.choose(&TreeChoice { verifier, acceptance, ..TreeChoice::default() })?)
    }

    fn unnamed(&self) -> PolicyKind {
        /// Paths of verifiers that know no tree of a depth that changes.
        const PATHS: usize = 2;
        let auto = PolicyKind::Auto(Auto::default());
        let paths = PolicyKind::paths(PATHS, DEFAULT_DEPTH);
        match self.drafts {
            0 if auto.is_supported_by(self.verifier) => auto,
            0 if paths.is_supported_by(self.verifier) => paths,
            0 => PolicyKind::paths(1, DEFAULT_DEPTH),
            drafts => PolicyKind::Distinct(Distinct { drafts, depth: DEFAULT_DEPTH }),
        }
    }
}

/// A tree, or the name of one.
pub fn given<'py>(value: &Bound<'py, PyAny>) -> Result<Bound<'py, PyTree>> {
    names::given(value, PyTree::new)
}
