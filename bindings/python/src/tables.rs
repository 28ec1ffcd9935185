//! Models of explicit probabilities.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use polydraft::conformance::tree::{ContextDistributions, random_pair};
use polydraft::{Distribution, Token};
use polydraft_engine::{Model, TableModel};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rand::SeedableRng;

use crate::arguments::Seed;
use crate::arrays::{self, Rows};
use crate::distribution::PyDistribution;
use crate::errors::{Failure, Result};
use crate::threads::work;

/// A model of explicit probabilities, for exact tests and for teaching.
///
/// `TableModel(distributions)`: a dictionary from contexts (tuples of token ids) to next-token
/// probabilities, shape `[vocabulary]`. A context is looked up by its longest suffix that is
/// listed; `()` must be.
///
/// >>> model = TableModel({(): [0.5, 0.5], (1,): [0.25, 0.75]})
/// >>> model.distribution([0, 1]).probability(0)
/// 0.25
#[pyclass(name = "TableModel", module = "polydraft", frozen)]
pub struct PyTableModel {
    pub model: Arc<TableModel>,
}

impl PyTableModel {
    fn made(next: BTreeMap<Vec<Token>, Vec<f64>>) -> Result<Self> {
        let vocabulary = next.values().next().map_or(0, Vec::len);
        Ok(Self { model: Arc::new(TableModel::new("table", vocabulary, next)?) })
    }
}

#[pymethods]
impl PyTableModel {
    #[new]
    fn new(distributions: &Bound<'_, PyDict>) -> Result<Self> {
        let mut next = BTreeMap::new();
        for (context, probs) in distributions {
            let context = arrays::tokens("context", &context)?;
            let rows = Rows::one("probabilities", &probs)?;
            next.insert(context, rows.slices()?[0].to_vec());
        }
        Self::made(next)
    }

    /// From JSON: `{"vocabulary": 2, "next": {"": [0.5, 0.5], "0 1": [1, 0]}}`.
    #[staticmethod]
    fn from_json(text: &str) -> Result<Self> {
        Ok(Self { model: Arc::new(TableModel::from_json("table", text)?) })
    }

    /// From a file of such JSON.
    #[staticmethod]
    fn read(path: PathBuf) -> Result<Self> {
        Ok(Self { model: Arc::new(TableModel::read(&path)?) })
    }

    /// Number of tokens.
    #[getter]
    pub fn vocabulary(&self) -> usize {
        self.model.info().vocabulary.size()
    }

    /// The distribution of the next token after a context of token ids.
    fn distribution(&self, context: &Bound<'_, PyAny>) -> Result<PyDistribution> {
        let context = arrays::tokens("context", context)?;
        Ok(self.model.distribution(&context).clone().into())
    }
}

impl ContextDistributions for PyTableModel {
    fn distribution(&self, text: &[Token]) -> polydraft::Result<&Distribution> {
        Ok(self.model.distribution(text))
    }
}

/// A random target and a draft that agrees with it more or less (`agreement`, from 0 to 1), with a
/// distribution for every sequence of up to `depth` tokens.
#[pyfunction]
#[pyo3(signature = (vocabulary, depth, agreement=0.5, seed=Seed(0)))]
#[pyo3(text_signature = "(vocabulary, depth, agreement=0.5, seed=0)")]
pub fn random_tables(
    py: Python<'_>,
    vocabulary: usize,
    depth: usize,
    agreement: f64,
    seed: Seed,
) -> Result<(PyTableModel, PyTableModel)> {
    let Seed(seed) = seed;
    /// Numbers of each model's table at most: the tokens of its sequences, and a probability for
    /// each token after them.
    const MOST: f64 = 3e7;
    if vocabulary == 0 || !(0.0..=1.0).contains(&agreement) {
        return Err(Failure::input(
            "random tables: expected a vocabulary of at least one token, and an agreement from 0 \
             to 1",
        ));
    }
    let (mut contexts, mut numbers) = (1.0, 0.0);
    for length in 0..=depth {
        numbers += contexts * (length as f64 + vocabulary as f64);
        contexts *= vocabulary as f64;
        if numbers > MOST {
            let message = format!(
                "random tables: expected at most {MOST:.0e} numbers, got more than {numbers:.1e}"
            );
            return Err(Failure::Library("TooLarge", message));
        }
    }
    work(py, || {
        let mut random = rand_chacha::ChaCha12Rng::seed_from_u64(seed);
        let pair = random_pair(vocabulary, depth, agreement, false, &mut random)?;
        let table = |distributions: std::collections::HashMap<Vec<Token>, Distribution>| {
            PyTableModel::made(
                distributions.into_iter().map(|(text, probs)| (text, probs.to_vec())).collect(),
            )
        };
        Ok((table(pair.target)?, table(pair.draft)?))
    })
}
