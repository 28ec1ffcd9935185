//! Verifiers that decide on drafts.

use std::sync::{Mutex, OnceLock};

use polydraft::policy::TreeChoice;
use polydraft::{Distribution, DraftTree, NodeId, TargetDistributions, Verifier, VerifierKind};
use polydraft_reference::{verifier as named, verifier_from_json};
use pyo3::prelude::*;
use pyo3::types::PyList;
use rayon::prelude::*;

use crate::distribution::{Distributions, DistributionsView, PySampling};
use crate::draft::PyDraft;
use crate::errors::{Failure, Result, lock};
use crate::names::{self, Named};
use crate::outcome::PyOutcome;
use crate::pool;
use crate::random::{self, PyRng, Source};
use crate::threads::work;
use crate::tree::{self, PyTree};

/// Distributions that are made when a verifier first looks.
struct Lazy<'a> {
    distributions: &'a DistributionsView<'a>,
    made: Vec<OnceLock<Distribution>>,
}

impl<'a> Lazy<'a> {
    fn new(distributions: &'a DistributionsView<'a>, draft: &polydraft::Draft) -> Result<Self> {
        let nodes = draft.tree().len();
        if distributions.len() < nodes {
            let got = distributions.len();
            return Err(Failure::input(format!(
                "target: expected {nodes} rows, one for each node of the draft, got {got}"
            )));
        }
        if let Some(expected) = draft.distribution(DraftTree::ROOT).map(Distribution::vocabulary)
            && let Some(got) =
                (0..nodes).map(|node| distributions.vocabulary(node)).find(|size| *size != expected)
        {
            return Err(Failure::input(format!(
                "target: expected {expected} tokens, as the draft has, got {got}"
            )));
        }
        Ok(Self { distributions, made: vec![OnceLock::new(); nodes] })
    }
}

impl TargetDistributions for Lazy<'_> {
    fn target(&self, node: NodeId) -> polydraft::Result<&Distribution> {
        if let DistributionsView::Made(distributions) = self.distributions {
            return Ok(&distributions[node]);
        }
        let cell = &self.made[node];
        match cell.get() {
            Some(probs) => Ok(probs),
            None => {
                let probs = self.distributions.distribution(node)?;
                Ok(cell.get_or_init(|| probs))
            }
        }
    }
}

impl Drop for Lazy<'_> {
    fn drop(&mut self) {
        pool::give_back(
            std::mem::take(&mut self.made).into_iter().filter_map(OnceLock::into_inner),
        );
    }
}

/// Decides what to emit, by the name that users type (`polydraft.VERIFIERS`), or a dictionary with
/// it as `"verifier"` and settings. The output has the target's distribution, whatever the draft's
/// is.
///
/// >>> verifier = Verifier("nested-priority")
/// >>> verifier.supports("paths:4,8"), Verifier("token").supports("paths:4,8")
/// (True, False)
#[pyclass(name = "Verifier", module = "polydraft", frozen)]
pub struct PyVerifier {
    pub kind: VerifierKind,
    /// At work, as many as were at once.
    idle: Mutex<Vec<Box<dyn Verifier>>>,
    fallbacks: Mutex<u64>,
}

impl PyVerifier {
    fn take(&self) -> Result<Box<dyn Verifier>> {
        let idle = lock(&self.idle).pop();
        Ok(match idle {
            Some(verifier) => verifier,
            None => self.kind.build()?,
        })
    }

    /// One decision.
    fn decide(
        &self,
        draft: &polydraft::Draft,
        target: &DistributionsView<'_>,
        source: &mut Source,
    ) -> Result<PyOutcome> {
        let distributions = Lazy::new(target, draft)?;
        let mut verifier = self.take()?;
        let before = verifier.fallbacks();
        let outcome = verifier.verify(draft, &distributions, source)?;
        *lock(&self.fallbacks) += verifier.fallbacks() - before;
        lock(&self.idle).push(verifier);
        Ok(PyOutcome::new(draft, outcome))
    }

    pub fn build(&self) -> Result<Box<dyn Verifier>> {
        Ok(self.kind.build()?)
    }

    /// A tree, or the one for this verifier by its name.
    pub fn tree<'py>(&self, value: &Bound<'py, PyAny>) -> Result<Bound<'py, PyTree>> {
        let choice = TreeChoice { verifier: Some(&self.kind), ..TreeChoice::default() };
        tree::given(value, &choice)
    }
}

#[pymethods]
impl PyVerifier {
    #[new]
    #[pyo3(signature = (verifier="nested-priority".into()))]
    fn new(verifier: Named<'_>) -> Result<Self> {
        let kind = verifier.described("verifier", |name| Ok(named(name)?), verifier_from_json)?;
        let verifier =
            Self { idle: Mutex::new(vec![kind.build()?]), fallbacks: Mutex::new(0), kind };
        Ok(verifier)
    }

    /// The name that users type.
    #[getter]
    fn name(&self) -> String {
        self.kind.to_string()
    }

    /// Returns whether the verifier is exact for such trees, or for a draft of this form. The name
    /// of a tree is resolved for this verifier.
    fn supports(&self, tree: &Bound<'_, PyAny>) -> Result<bool> {
        let verifier = self.build()?;
        if let Ok(draft) = tree.cast::<PyDraft>() {
            let draft = draft.try_borrow().map_err(PyErr::from)?;
            return Ok(verifier.supports(draft.draft.form()).is_ok());
        }
        let tree = self.tree(tree)?;
        let form = tree.get().with(tree.py(), |policy| policy.form())?;
        Ok(verifier.supports(&form).is_ok())
    }

    /// Raises `Unsupported`, with what it was made for, if it is not exact for such trees.
    fn require(&self, tree: &Bound<'_, PyAny>) -> Result<()> {
        let tree = self.tree(tree)?;
        let form = tree.get().with(tree.py(), |policy| policy.form())?;
        Ok(self.build()?.supports(&form)?)
    }

    /// Nodes so far at which a weaker algorithm took over. The distribution is exact all the same.
    #[getter]
    fn fallbacks(&self) -> u64 {
        *lock(&self.fallbacks)
    }

    /// Decides on a draft. `target`: the target's logits at the draft's nodes, `[nodes,
    /// vocabulary]`, to which `sampling` is applied, made into distributions only where the
    /// verifier looks; or a list of distributions. `rng` is an `Rng` or a seed.
    #[pyo3(signature = (draft, target, rng=None, sampling=None))]
    fn verify<'py>(
        &self,
        py: Python<'py>,
        draft: PyRef<'py, PyDraft>,
        target: &Bound<'py, PyAny>,
        rng: Option<&Bound<'py, PyAny>>,
        sampling: Option<PySampling>,
    ) -> Result<PyOutcome> {
        let distributions = Distributions::new("target", target, sampling)?;
        let view = distributions.view()?;
        let rng = random::given(py, rng)?;
        let mut rng = rng.try_borrow_mut().map_err(PyErr::from)?;
        let (draft, source) = (&draft.draft, &mut rng.source);
        work(py, || self.decide(draft, &view, source))
    }

    /// Decides on many drafts, on all threads: lists of one length. What one gets does not depend
    /// on the others, so each has an rng of its own.
    #[pyo3(signature = (drafts, targets, rngs, sampling=None))]
    fn verify_batch<'py>(
        &self,
        py: Python<'py>,
        drafts: Vec<PyRef<'py, PyDraft>>,
        targets: &Bound<'py, PyAny>,
        rngs: &Bound<'py, PyAny>,
        sampling: Option<PySampling>,
    ) -> Result<Py<PyList>> {
        let targets: Vec<Distributions<'py>> = targets
            .try_iter()?
            .map(|target| Distributions::new("target", &target?, sampling.clone()))
            .collect::<Result<_>>()?;
        let rngs: Vec<Bound<'py, PyRng>> =
            rngs.try_iter()?.map(|one| random::given(py, Some(&one?))).collect::<Result<_>>()?;
        if targets.len() != drafts.len() || rngs.len() != drafts.len() {
            let (drafts, targets, rngs) = (drafts.len(), targets.len(), rngs.len());
            return Err(Failure::input(format!(
                "batch: expected a target and an rng for each of {drafts} drafts, got {targets} \
                 and {rngs}"
            )));
        }
        let views: Vec<DistributionsView<'_>> =
            targets.iter().map(Distributions::view).collect::<Result<_>>()?;
        let mut rngs: Vec<PyRefMut<'py, PyRng>> = rngs
            .iter()
            .map(|one| one.try_borrow_mut().map_err(PyErr::from))
            .collect::<PyResult<_>>()?;
        let tasks: Vec<_> = drafts
            .iter()
            .zip(&views)
            .zip(&mut rngs)
            .map(|((draft, view), rng)| (&draft.draft, view, &mut rng.source))
            .collect();
        let outcomes = work(py, || {
            let decided =
                tasks.into_par_iter().map(|(draft, view, source)| self.decide(draft, view, source));
            decided.collect::<Result<Vec<_>>>()
        })?;
        Ok(PyList::new(
            py,
            outcomes
                .into_iter()
                .map(|outcome| Py::new(py, outcome))
                .collect::<PyResult<Vec<_>>>()?,
        )?
        .unbind())
    }

    fn __repr__(&self) -> String {
        format!("Verifier('{}')", self.kind)
    }
}

#[pymethods]
impl PyTree {
    /// Tells a tree that learns what became of a draft, between steps.
    fn observe(&self, py: Python<'_>, draft: &PyDraft, outcome: &PyOutcome) -> Result<()> {
        self.with(py, |policy| policy.observe(&draft.draft, &outcome.outcome))
    }
}

/// A verifier, or the name of one.
pub fn given<'py>(value: &Bound<'py, PyAny>) -> Result<Bound<'py, PyVerifier>> {
    names::given(value, PyVerifier::new)
}
