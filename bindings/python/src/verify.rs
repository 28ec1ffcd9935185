//! Verifiers at work on drafts.

use std::sync::{Mutex, OnceLock};

use polydraft::{Distribution, DraftTree, NodeId, Outcome, TargetLaws, Token, Verifier};
use polydraft_reference::VerifierKind;
use pyo3::prelude::*;
use pyo3::types::PyList;
use rayon::prelude::*;

use crate::chance::{self, PyChance, Source};
use crate::distribution::{Laws, LawsView, PySampling};
use crate::draft::PyDraft;
use crate::errors::{Failure, Result, lock, work};
use crate::names::{self, Named};
use crate::pool;
use crate::tree::PyTree;

/// What a verifier decided: the `accepted` nodes from a child of the root downwards, one more
/// `token`, and both as the `tokens` to emit.
#[pyclass(name = "Outcome", module = "polydraft", frozen)]
pub struct PyOutcome {
    pub outcome: Outcome,
    tokens: Vec<Token>,
}

#[pymethods]
impl PyOutcome {
    /// Node numbers; may be empty.
    #[getter]
    fn accepted(&self) -> Vec<NodeId> {
        self.outcome.accepted.clone()
    }

    /// The token behind the accepted ones.
    #[getter]
    fn token(&self) -> Token {
        self.outcome.token
    }

    /// All tokens to emit: those of the accepted nodes, and one more.
    #[getter]
    fn tokens(&self) -> Vec<Token> {
        self.tokens.clone()
    }

    fn __repr__(&self) -> String {
        format!("Outcome(accepted={:?}, token={})", self.outcome.accepted, self.outcome.token)
    }
}

/// Laws that are made when a verifier first looks.
struct Lazy<'a> {
    laws: &'a LawsView<'a>,
    made: Vec<OnceLock<Distribution>>,
}

impl<'a> Lazy<'a> {
    fn new(laws: &'a LawsView<'a>, draft: &polydraft::Draft) -> Result<Self> {
        let nodes = draft.tree().len();
        if laws.len() < nodes {
            let got = laws.len();
            return Err(Failure::input(format!(
                "target: expected {nodes} rows, one for each node of the draft, got {got}"
            )));
        }
        if let Some(expected) = draft.law(DraftTree::ROOT).map(Distribution::vocabulary)
            && let Some(got) =
                (0..nodes).map(|node| laws.vocabulary(node)).find(|size| *size != expected)
        {
            return Err(Failure::input(format!(
                "target: expected {expected} tokens, as the draft has, got {got}"
            )));
        }
        Ok(Self { laws, made: vec![OnceLock::new(); nodes] })
    }
}

impl TargetLaws for Lazy<'_> {
    fn target(&self, node: NodeId) -> polydraft::Result<&Distribution> {
        if let LawsView::Made(laws) = self.laws {
            return Ok(&laws[node]);
        }
        let cell = &self.made[node];
        match cell.get() {
            Some(law) => Ok(law),
            None => {
                let law = self.laws.law(node)?;
                Ok(cell.get_or_init(|| law))
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
/// it as `"verifier"` and settings. The text has the target's law, whatever the draft's is.
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
        target: &LawsView<'_>,
        source: &mut Source,
    ) -> Result<PyOutcome> {
        let laws = Lazy::new(target, draft)?;
        let mut verifier = self.take()?;
        let before = verifier.fallbacks();
        let outcome = verifier.verify(draft, &laws, source)?;
        *lock(&self.fallbacks) += verifier.fallbacks() - before;
        lock(&self.idle).push(verifier);
        let accepted = outcome.accepted.iter().map(|&node| draft.tree().token(node));
        let tokens = accepted.chain([outcome.token]).collect();
        Ok(PyOutcome { outcome, tokens })
    }

    pub fn build(&self) -> Result<Box<dyn Verifier>> {
        Ok(self.kind.build()?)
    }
}

#[pymethods]
impl PyVerifier {
    #[new]
    #[pyo3(signature = (verifier="nested-priority".into()))]
    fn new(verifier: Named<'_>) -> Result<Self> {
        let kind: VerifierKind = verifier.described(|name| Ok(name.parse()?))?;
        let verifier =
            Self { idle: Mutex::new(vec![kind.build()?]), fallbacks: Mutex::new(0), kind };
        Ok(verifier)
    }

    /// The name that users type.
    #[getter]
    fn name(&self) -> String {
        self.kind.to_string()
    }

    /// Whether it is exact for such trees, or for a draft of this form.
    fn supports(&self, tree: &Bound<'_, PyAny>) -> Result<bool> {
        let verifier = self.build()?;
        if let Ok(draft) = tree.cast::<PyDraft>() {
            let draft = draft.try_borrow().map_err(PyErr::from)?;
            return Ok(verifier.supports(draft.draft.form()).is_ok());
        }
        let tree: Bound<'_, PyTree> = crate::tree::given(tree)?;
        let form = tree.get().with(tree.py(), |policy| policy.form())?;
        Ok(verifier.supports(&form).is_ok())
    }

    /// Raises `Unsupported`, with what it was made for, if it is not exact for such trees.
    fn require(&self, tree: &Bound<'_, PyAny>) -> Result<()> {
        let tree: Bound<'_, PyTree> = crate::tree::given(tree)?;
        let form = tree.get().with(tree.py(), |policy| policy.form())?;
        Ok(self.build()?.supports(&form)?)
    }

    /// Nodes so far at which a weaker algorithm took over. The law is exact all the same.
    #[getter]
    fn fallbacks(&self) -> u64 {
        *lock(&self.fallbacks)
    }

    /// Decides on a draft. `target`: the target's logits at the draft's nodes, `[nodes,
    /// vocabulary]`, to which `sampling` is applied, made into laws only where the verifier looks;
    /// or a list of distributions. `chance` is a `Chance` or a seed.
    #[pyo3(signature = (draft, target, chance=None, sampling=None))]
    fn verify<'py>(
        &self,
        py: Python<'py>,
        draft: PyRef<'py, PyDraft>,
        target: &Bound<'py, PyAny>,
        chance: Option<&Bound<'py, PyAny>>,
        sampling: Option<PySampling>,
    ) -> Result<PyOutcome> {
        let laws = Laws::new("target", target, sampling)?;
        let view = laws.view()?;
        let chance = chance::given(py, chance)?;
        let mut chance = chance.try_borrow_mut().map_err(PyErr::from)?;
        let (draft, source) = (&draft.draft, &mut chance.source);
        work(py, || self.decide(draft, &view, source))
    }

    /// Decides on many drafts, on all threads: lists of one length. What one gets does not depend
    /// on the others, so each has a chance of its own.
    #[pyo3(signature = (drafts, targets, chances, sampling=None))]
    fn verify_batch<'py>(
        &self,
        py: Python<'py>,
        drafts: Vec<PyRef<'py, PyDraft>>,
        targets: &Bound<'py, PyAny>,
        chances: &Bound<'py, PyAny>,
        sampling: Option<PySampling>,
    ) -> Result<Py<PyList>> {
        let targets: Vec<Laws<'py>> = targets
            .try_iter()?
            .map(|target| Laws::new("target", &target?, sampling.clone()))
            .collect::<Result<_>>()?;
        let chances: Vec<Bound<'py, PyChance>> =
            chances.try_iter()?.map(|one| chance::given(py, Some(&one?))).collect::<Result<_>>()?;
        if targets.len() != drafts.len() || chances.len() != drafts.len() {
            let (drafts, targets, chances) = (drafts.len(), targets.len(), chances.len());
            return Err(Failure::input(format!(
                "batch: expected a target and a chance for each of {drafts} drafts, got {targets} \
                 and {chances}"
            )));
        }
        let views: Vec<LawsView<'_>> = targets.iter().map(Laws::view).collect::<Result<_>>()?;
        let mut chances: Vec<PyRefMut<'py, PyChance>> = chances
            .iter()
            .map(|one| one.try_borrow_mut().map_err(PyErr::from))
            .collect::<PyResult<_>>()?;
        let tasks: Vec<_> = drafts
            .iter()
            .zip(&views)
            .zip(&mut chances)
            .map(|((draft, view), chance)| (&draft.draft, view, &mut chance.source))
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

/// A verifier, or the name of one.
pub fn given<'py>(value: &Bound<'py, PyAny>) -> Result<Bound<'py, PyVerifier>> {
    names::given(value, PyVerifier::new)
}
