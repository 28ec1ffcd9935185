//! Checked probability vectors, and how logits become such.

use std::sync::Arc;

use numpy::PyArray1;
use polydraft::{Distribution, Sampling, Token};
use pyo3::prelude::*;

use crate::arguments::TopK;
use crate::arrays::{Row, Rows};
use crate::errors::{Failure, Result};
use crate::random;
use crate::threads::work;

/// Sampling settings, which turn logits into the distribution of the next token: temperature (0
/// takes the largest logit always), then top-k, top-p and min-p, in the order of Hugging Face
/// transformers.
///
/// >>> Sampling(temperature=0.7, top_p=0.9)
/// Sampling(temperature=0.7, top_k=None, top_p=0.9, min_p=0.0)
#[pyclass(name = "Sampling", module = "polydraft", frozen, from_py_object)]
#[derive(Clone, Default)]
pub struct PySampling {
    pub settings: Sampling,
}

#[pymethods]
impl PySampling {
    #[new]
    #[pyo3(signature = (temperature=1.0, top_k=None, top_p=1.0, min_p=0.0))]
    fn new(temperature: f64, top_k: Option<TopK>, top_p: f64, min_p: f64) -> Result<Self> {
        let top_k = top_k.map(|count| count.0);
        let settings = Sampling { temperature, top_k, top_p, min_p };
        settings.validate()?;
        Ok(Self { settings })
    }

    /// Divides the logits; 0 takes the largest one.
    #[getter]
    fn temperature(&self) -> f64 {
        self.settings.temperature
    }

    /// Only the k likeliest tokens; none for all.
    #[getter]
    fn top_k(&self) -> Option<usize> {
        self.settings.top_k
    }

    /// Only the fewest tokens that reach this probability together.
    #[getter]
    fn top_p(&self) -> f64 {
        self.settings.top_p
    }

    /// Only tokens with at least this share of the largest probability.
    #[getter]
    fn min_p(&self) -> f64 {
        self.settings.min_p
    }

    fn __repr__(&self) -> String {
        let Sampling { temperature, top_k, top_p, min_p } = self.settings;
        let top_k = top_k.map_or("None".to_owned(), |k| k.to_string());
        format!(
            "Sampling(temperature={temperature:?}, top_k={top_k}, top_p={top_p:?}, min_p={min_p:?})"
        )
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.settings == other.settings
    }
}

/// A probability vector over the tokens `0..vocabulary`: finite, not negative, summing to 1. It is
/// never changed.
///
/// `Distribution(probabilities)` checks them, shape `[vocabulary]`, f32 or f64.
///
/// >>> probs = Distribution([0.5, 0.3, 0.2])
/// >>> probs.probability(1), probs.argmax(), probs.overlap(Distribution([0.2, 0.3, 0.5]))
/// (0.3, 0, 0.7)
/// >>> Distribution([0.5, 0.4])
/// Traceback (most recent call last):
/// polydraft.errors.InvalidInput: distribution: the entries should sum to 1 within 7e-7, got 0.9
#[pyclass(name = "Distribution", module = "polydraft", frozen)]
pub struct PyDistribution {
    pub probs: Arc<Distribution>,
}

impl From<Distribution> for PyDistribution {
    fn from(probs: Distribution) -> Self {
        Self { probs: Arc::new(probs) }
    }
}

impl PyDistribution {
    /// Checks that another distribution has the same vocabulary.
    fn check(&self, other: &Self) -> Result<()> {
        let (expected, got) = (self.probs.vocabulary(), other.probs.vocabulary());
        match got == expected {
            true => Ok(()),
            false => Err(Failure::input(format!(
                "other: expected a distribution over {expected} tokens, got one over {got}"
            ))),
        }
    }
}

#[pymethods]
impl PyDistribution {
    #[new]
    fn new(py: Python<'_>, probabilities: &Bound<'_, PyAny>) -> Result<Self> {
        let rows = Rows::one("probabilities", probabilities)?;
        let row = rows.slices()?[0];
        work(py, || Ok(Distribution::new(row.to_vec())?.into()))
    }

    /// Like `Distribution(probabilities)`, but a sum within 1e-3 of 1 is made 1.
    #[staticmethod]
    fn normalized(py: Python<'_>, probabilities: &Bound<'_, PyAny>) -> Result<Self> {
        let rows = Rows::one("probabilities", probabilities)?;
        let row = rows.slices()?[0];
        work(py, || Ok(Distribution::normalized(row.to_vec())?.into()))
    }

    /// The softmax of logits, shape `[vocabulary]`, after the filters of `sampling`.
    #[staticmethod]
    #[pyo3(signature = (logits, sampling=None))]
    fn from_logits(
        py: Python<'_>,
        logits: &Bound<'_, PyAny>,
        sampling: Option<PySampling>,
    ) -> Result<Self> {
        let (rows, sampling) =
            (Rows::one("logits", logits)?, sampling.unwrap_or_default().settings);
        let row = rows.slices()?[0];
        work(py, || Ok(row.distribution(&sampling)?.into()))
    }

    /// All probability on one token.
    #[staticmethod]
    fn one_hot(vocabulary: usize, token: Token) -> Result<Self> {
        Ok(Distribution::one_hot(vocabulary, token)?.into())
    }

    /// Number of tokens, of probability 0 or not.
    #[getter]
    fn vocabulary(&self) -> usize {
        self.probs.vocabulary()
    }

    /// Number of tokens of positive probability.
    #[getter]
    fn support_size(&self) -> usize {
        self.probs.support_size()
    }

    /// The probability of a token; 0 outside the vocabulary.
    fn probability(&self, token: Token) -> f64 {
        self.probs.probability(token)
    }

    /// All probabilities: f64, shape `[vocabulary]`.
    fn to_numpy<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        PyArray1::from_vec(py, self.probs.to_vec())
    }

    /// `numpy.asarray(probs)` gives `to_numpy()`.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> Result<Bound<'py, PyAny>> {
        if copy == Some(false) {
            return Err(Failure::unsupported(
                "array of a distribution: expected that a copy may be made",
            ));
        }
        let array = self.to_numpy(py).into_any();
        match dtype {
            None => Ok(array),
            Some(dtype) => Ok(array.call_method1("astype", (dtype,))?),
        }
    }

    /// The tokens of positive probability, ascending, and their probabilities: two arrays of shape
    /// `[support_size]`.
    fn support<'py>(
        &self,
        py: Python<'py>,
    ) -> (Bound<'py, PyArray1<Token>>, Bound<'py, PyArray1<f64>>) {
        let (tokens, mass): (Vec<_>, Vec<_>) = self.probs.support().unzip();
        (PyArray1::from_vec(py, tokens), PyArray1::from_vec(py, mass))
    }

    /// The likeliest token, the lowest id on a tie.
    fn argmax(&self) -> Token {
        self.probs.argmax()
    }

    /// The `count` likeliest tokens, likeliest first.
    fn most_likely(&self, count: usize) -> Vec<Token> {
        self.probs.most_likely(count)
    }

    /// Draws a token. `rng` is an `Rng` or a seed.
    #[pyo3(signature = (rng=None))]
    fn sample<'py>(&self, py: Python<'py>, rng: Option<&Bound<'py, PyAny>>) -> Result<Token> {
        let rng = random::given(py, rng)?;
        let mut rng = rng.try_borrow_mut().map_err(PyErr::from)?;
        Ok(self.probs.sample(&mut rng.source))
    }

    /// Half the sum of absolute differences.
    fn total_variation(&self, other: &Self) -> Result<f64> {
        self.check(other)?;
        Ok(self.probs.total_variation(&other.probs))
    }

    /// The sum of minima: the acceptance of a single draft.
    fn overlap(&self, other: &Self) -> Result<f64> {
        self.check(other)?;
        Ok(self.probs.overlap(&other.probs))
    }

    /// The probability that two draws are equal.
    fn collision(&self) -> f64 {
        self.probs.collision()
    }

    fn __len__(&self) -> usize {
        self.probs.vocabulary()
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.probs == other.probs
    }

    fn __repr__(&self) -> String {
        let likeliest = self.probs.most_likely(3);
        let shown: Vec<String> = likeliest
            .iter()
            .map(|token| format!("{token}: {:.4}", self.probs.probability(*token)))
            .collect();
        format!("Distribution({} tokens; {}, ..)", self.probs.vocabulary(), shown.join(", "))
    }
}

/// A distribution, or an array of probabilities.
pub fn given(what: &'static str, value: &Bound<'_, PyAny>) -> Result<Arc<Distribution>> {
    if let Ok(probs) = value.cast::<PyDistribution>() {
        return Ok(probs.get().probs.clone());
    }
    let rows = Rows::one(what, value)?;
    Ok(Arc::new(Distribution::new(rows.slices()?[0].to_vec())?))
}

/// Several distributions: each as such, or rows of logits.
pub enum Distributions<'py> {
    /// Given as they are.
    Made(Vec<Arc<Distribution>>),
    /// To be made where somebody looks.
    Logits(Rows<'py>, Sampling),
}

impl<'py> Distributions<'py> {
    /// From a list of distributions, or from logits, `[rows, vocabulary]`, to which `sampling` is
    /// applied.
    pub fn new(
        what: &'static str,
        value: &Bound<'py, PyAny>,
        sampling: Option<PySampling>,
    ) -> Result<Self> {
        if let Ok(list) = value.extract::<Vec<PyRef<'py, PyDistribution>>>()
            && !list.is_empty()
        {
            return match sampling {
                None => Ok(Self::Made(list.iter().map(|probs| probs.probs.clone()).collect())),
                Some(_) => Err(Failure::input(format!(
                    "{what}: expected logits to apply a sampling to, got distributions"
                ))),
            };
        }
        Ok(Self::Logits(Rows::new(what, value)?, sampling.unwrap_or_default().settings))
    }

    /// Returns a view that can be read without the GIL.
    pub fn view(&self) -> Result<DistributionsView<'_>> {
        Ok(match self {
            Self::Made(distributions) => DistributionsView::Made(distributions),
            Self::Logits(rows, sampling) => DistributionsView::Logits(rows.slices()?, *sampling),
        })
    }
}

/// Several distributions, as Rust sees them.
pub enum DistributionsView<'a> {
    /// Made.
    Made(&'a [Arc<Distribution>]),
    /// To be made.
    Logits(Vec<Row<'a>>, Sampling),
}

impl DistributionsView<'_> {
    /// Number of distributions.
    pub fn len(&self) -> usize {
        match self {
            Self::Made(distributions) => distributions.len(),
            Self::Logits(rows, _) => rows.len(),
        }
    }

    /// Number of tokens of one of them.
    pub fn vocabulary(&self, index: usize) -> usize {
        match self {
            Self::Made(distributions) => distributions[index].vocabulary(),
            Self::Logits(rows, _) => rows[index].len(),
        }
    }

    /// One of them, of one's own.
    pub fn distribution(&self, index: usize) -> polydraft::Result<Distribution> {
        match self {
            Self::Made(distributions) => Ok((*distributions[index]).clone()),
            Self::Logits(rows, sampling) => rows[index].distribution(sampling),
        }
    }

    /// Makes the draft's distribution at a row.
    pub fn drafted(&self, index: usize) -> polydraft::Result<Distribution> {
        match self {
            Self::Made(_) => self.distribution(index),
            Self::Logits(rows, sampling) => rows[index].drafted(sampling),
        }
    }
}
