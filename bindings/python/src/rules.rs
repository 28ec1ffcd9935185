//! Token-level rules at one node.

use std::sync::{Arc, Mutex};

use numpy::PyArray1;
use polydraft::coupling::{Coupling, Rule};
use polydraft::{Distribution, Problem, Token, couple};
use polydraft_reference::{emitted, rule as named, rule_from_json};
use pyo3::prelude::*;

use crate::errors::{Result, lock};
use crate::names::Named;
use crate::proposal::Owned;
use crate::random::{PyRng, Source};
use crate::threads::work;
use crate::{arrays, distribution, random};

/// A rule prepared for one node: the target's distribution there, and how drafts were drawn.
/// `polydraft.couple` makes it.
#[pyclass(name = "Coupling", module = "polydraft", frozen)]
pub struct PyCoupling {
    rule: Mutex<Box<dyn Rule>>,
    target: Arc<Distribution>,
    drafts: Owned,
}

/// Emission of a rule: `token`, and the index of the draft that was `accepted`, if one was.
#[pyclass(name = "Emission", module = "polydraft", frozen, get_all)]
pub struct PyEmission {
    token: Token,
    accepted: Option<usize>,
}

#[pymethods]
impl PyEmission {
    fn __repr__(&self) -> String {
        let accepted = self.accepted.map_or("None".to_owned(), |index| index.to_string());
        format!("Emission(token={}, accepted={accepted})", self.token)
    }
}

/// The distribution of an emitted token: `probabilities`, f64 of shape `[vocabulary]`, and the
/// probability that a draft is `accepted`.
#[pyclass(name = "EmittedDistribution", module = "polydraft", frozen, get_all)]
pub struct PyEmittedDistribution {
    probabilities: Py<PyArray1<f64>>,
    accepted: f64,
}

impl PyEmittedDistribution {
    fn new(py: Python<'_>, probabilities: Vec<f64>, accepted: f64) -> Self {
        Self { probabilities: PyArray1::from_vec(py, probabilities).unbind(), accepted }
    }
}

/// The probability that a draft is accepted; with a `standard_error` where it is an estimate.
#[pyclass(name = "Acceptance", module = "polydraft", frozen, get_all)]
pub struct PyAcceptance {
    probability: f64,
    standard_error: Option<f64>,
}

#[pymethods]
impl PyAcceptance {
    fn __repr__(&self) -> String {
        match self.standard_error {
            None => format!("Acceptance({})", self.probability),
            Some(error) => format!("Acceptance({} ± {error:.1e})", self.probability),
        }
    }
}

/// Prepares a rule for one node.
///
/// `rule` is one of `polydraft.RULES`, or a dictionary with its name as `"rule"` and its settings.
/// `target` is a distribution or an array of probabilities, shape `[vocabulary]`, and so is
/// `draft`, from which `drafts` tokens are drawn by `scheme` (a list of distributions for the
/// scheme `distinct`).
///
/// >>> coupling = couple("priority", [0.5, 0.3, 0.2], [0.2, 0.3, 0.5], drafts=2)
/// >>> round(coupling.acceptance().probability, 12)
/// 0.86
/// >>> coupling.emitted().probabilities.round(12)
/// array([0.5, 0.3, 0.2])
#[pyfunction(name = "couple")]
#[pyo3(signature = (rule, target, draft, drafts=1, scheme="iid"))]
pub fn couple_rule(
    rule: Named<'_>,
    target: &Bound<'_, PyAny>,
    draft: &Bound<'_, PyAny>,
    drafts: usize,
    scheme: &str,
) -> Result<PyCoupling> {
    let kind = rule.described("rule", |name| Ok(named(name)?), rule_from_json)?;
    let coupling = PyCoupling {
        rule: Mutex::new(kind.build()?),
        target: distribution::given("target", target)?,
        drafts: Owned::new(draft, drafts, scheme)?,
    };
    work(target.py(), || coupling.with(|_| Ok(())))?;
    Ok(coupling)
}

impl PyCoupling {
    /// Prepares the rule and does something with it.
    fn with<T>(&self, job: impl FnOnce(&mut Coupling<'_>) -> Result<T>) -> Result<T> {
        let mut rule = lock(&self.rule);
        let problem = Problem::new(&self.target, self.drafts.get()?)?;
        job(&mut couple(rule.as_mut(), problem)?)
    }

    fn random<T: Send>(
        &self,
        py: Python<'_>,
        rng: Option<&Bound<'_, PyAny>>,
        job: impl FnOnce(&mut Coupling<'_>, &mut Source) -> Result<T> + Send,
    ) -> Result<T> {
        let rng: Bound<'_, PyRng> = random::given(py, rng)?;
        let mut rng = rng.try_borrow_mut().map_err(PyErr::from)?;
        let source = &mut rng.source;
        work(py, || self.with(|coupling| job(coupling, source)))
    }
}

#[pymethods]
impl PyCoupling {
    /// The probability that a draft is accepted: by formula, else by enumeration, else estimated,
    /// which alone uses `rng`.
    #[pyo3(signature = (rng=None))]
    fn acceptance(&self, py: Python<'_>, rng: Option<&Bound<'_, PyAny>>) -> Result<PyAcceptance> {
        let found = self.random(py, rng, |coupling, source| Ok(coupling.acceptance(source)))?;
        Ok(PyAcceptance { probability: found.probability, standard_error: found.standard_error })
    }

    /// Draws the drafts of this node.
    #[pyo3(signature = (rng=None))]
    fn draw(&self, py: Python<'_>, rng: Option<&Bound<'_, PyAny>>) -> Result<Vec<Token>> {
        self.random(py, rng, |_, source| {
            let mut drafts = Vec::new();
            self.drafts.get()?.draw(source, &mut drafts);
            Ok(drafts)
        })
    }

    /// Decides what to emit for these drafts, which were drawn as the node says: token ids, shape
    /// `[drafts]`.
    #[pyo3(signature = (drafts, rng=None))]
    fn emit(
        &self,
        py: Python<'_>,
        drafts: &Bound<'_, PyAny>,
        rng: Option<&Bound<'_, PyAny>>,
    ) -> Result<PyEmission> {
        let drafts = arrays::tokens("drafts", drafts)?;
        let emission =
            self.random(py, rng, |coupling, source| Ok(coupling.emit(&drafts, source)?))?;
        Ok(PyEmission { token: emission.token, accepted: emission.accepted })
    }

    /// The exact distribution of the emitted token given these drafts.
    fn distribution(
        &self,
        py: Python<'_>,
        drafts: &Bound<'_, PyAny>,
    ) -> Result<PyEmittedDistribution> {
        let drafts = arrays::tokens("drafts", drafts)?;
        let probs = work(py, || self.with(|coupling| Ok(coupling.distribution(&drafts)?)))?;
        Ok(PyEmittedDistribution::new(py, probs.probabilities, probs.accepted))
    }

    /// The distribution of the emitted token over all drafts, every decision followed to its end:
    /// the target's, if the rule is exact.
    fn emitted(&self, py: Python<'_>) -> Result<PyEmittedDistribution> {
        let all = work(py, || {
            let problem = Problem::new(&self.target, self.drafts.get()?)?;
            Ok(emitted(lock(&self.rule).as_mut(), problem)?)
        })?;
        Ok(PyEmittedDistribution::new(py, all.probs, all.acceptance))
    }

    /// Why another rule does this one's work here, if so.
    fn fallback(&self, py: Python<'_>) -> Result<Option<String>> {
        work(py, || {
            self.with(|coupling| {
                Ok(coupling
                    .fallback()
                    .map(|fallback| format!("{}: {}", fallback.rule, fallback.reason)))
            })
        })
    }
}
