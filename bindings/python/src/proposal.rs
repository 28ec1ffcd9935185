//! Drafting scheme of the tokens at one node, and the distribution of the tuple.

use std::sync::Arc;

use polydraft::{Distribution, Drafting, Draws, Proposal, Token};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::distribution::{self, PyDistribution};
use crate::errors::{Failure, Result};
use crate::threads::work;
use crate::{arrays, random};

/// Distributions of drafts with how these are drawn.
pub struct Owned {
    draws: Draws,
    distributions: Vec<Distribution>,
}

impl Owned {
    /// From a distribution, or a list of one for each draft where the scheme is `distinct`.
    pub fn new(distributions: &Bound<'_, PyAny>, count: usize, scheme: &str) -> Result<Self> {
        let scheme: Drafting = scheme.parse()?;
        let many =
            distributions.is_instance_of::<PyList>() || distributions.is_instance_of::<PyTuple>();
        let several =
            many && distributions.get_item(0).is_ok_and(|first| first.extract::<f64>().is_err());
        let distributions: Vec<Arc<Distribution>> = match several {
            true => distributions
                .try_iter()?
                .map(|probs| distribution::given("draft", &probs?))
                .collect::<Result<_>>()?,
            false => vec![distribution::given("draft", distributions)?],
        };
        let owned = Self {
            draws: Draws { scheme, count },
            distributions: distributions.into_iter().map(Arc::unwrap_or_clone).collect(),
        };
        owned.get()?;
        Ok(owned)
    }

    /// Returns the proposal of the library.
    pub fn get(&self) -> polydraft::Result<Proposal<'_>> {
        Proposal::new(self.draws, &self.distributions)
    }
}

/// The distribution of the tuple of drafts at a node: `count` of them from `draft` by `scheme`, one
/// of `polydraft.DRAFTINGS`.
///
/// `draft` is a distribution, or a list of `count` of them where the scheme is `distinct`.
///
/// >>> proposal = Proposal([0.5, 0.3, 0.2], 2, "without-replacement")
/// >>> proposal.probability([0, 1]), len(proposal.tuples())
/// (0.3, 6)
#[pyclass(name = "Proposal", module = "polydraft", frozen)]
pub struct PyProposal {
    pub owned: Owned,
}

#[pymethods]
impl PyProposal {
    #[new]
    #[pyo3(signature = (draft, count, scheme="iid"))]
    fn new(draft: &Bound<'_, PyAny>, count: usize, scheme: &str) -> Result<Self> {
        Ok(Self { owned: Owned::new(draft, count, scheme)? })
    }

    /// The number of drafts.
    #[getter]
    fn count(&self) -> usize {
        self.owned.draws.count
    }

    /// The scheme.
    #[getter]
    fn scheme(&self) -> &'static str {
        self.owned.draws.scheme.name()
    }

    /// The distribution that draft `index` comes from.
    fn distribution(&self, index: usize) -> Result<PyDistribution> {
        let count = self.owned.draws.count;
        match index < count {
            true => Ok(self.owned.get()?.distribution(index).clone().into()),
            false => {
                Err(Failure::input(format!("draft: expected an index below {count}, got {index}")))
            }
        }
    }

    /// Draws a tuple. It is shorter where fewer tokens can be drawn.
    #[pyo3(signature = (rng=None))]
    fn draw<'py>(&self, py: Python<'py>, rng: Option<&Bound<'py, PyAny>>) -> Result<Vec<Token>> {
        let rng = random::given(py, rng)?;
        let mut rng = rng.try_borrow_mut().map_err(PyErr::from)?;
        let mut drafts = Vec::new();
        self.owned.get()?.draw(&mut rng.source, &mut drafts);
        Ok(drafts)
    }

    /// The probability of exactly this tuple, order included.
    fn probability(&self, drafts: &Bound<'_, PyAny>) -> Result<f64> {
        let drafts = arrays::tokens("drafts", drafts)?;
        let proposal = self.owned.get()?;
        // One that cannot be drawn, of whatever length, has none.
        Ok(if proposal.check(&drafts).is_ok() { proposal.probability(&drafts) } else { 0.0 })
    }

    /// Every tuple of positive probability: pairs of probability and tokens. Exponential in the
    /// number of drafts.
    fn tuples(&self, py: Python<'_>) -> Result<Vec<(f64, Vec<Token>)>> {
        /// Maximum number of tuples that are enumerated.
        const MOST: f64 = 1e6;
        let proposal = self.owned.get()?;
        let bound = proposal.tuple_bound();
        if bound > MOST {
            let message =
                format!("tuples: expected at most {MOST:.0e} of them, got up to {bound:.1e}");
            return Err(Failure::Library("TooLarge", message));
        }
        work(py, || Ok(proposal.tuples()))
    }
}
