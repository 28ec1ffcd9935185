//! Proofs by enumeration: what a verifier emits, every draw and every decision followed to its end.

use polydraft::conformance::statistics::GTest;
use polydraft::conformance::tree::{count_drafts, emitted, exact};
use polydraft::{Policy, Verifier};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::errors::{Failure, Result, lock};
use crate::tables::PyTableModel;
use crate::threads::work;
use crate::tree::PyTree;
use crate::verify;

/// Exact results of a verifier on the drafts of one tree: expected tokens per target pass
/// (`block_efficiency`), the largest difference between the probability of a sequence and that
/// under the target (`deviation`: rounding, or the verifier is wrong), and the number of different
/// drafts (`trees`).
#[pyclass(name = "Exact", module = "polydraft", frozen, get_all)]
pub struct PyExact {
    block_efficiency: f64,
    deviation: f64,
    trees: usize,
}

#[pymethods]
impl PyExact {
    fn __repr__(&self) -> String {
        let Self { block_efficiency, deviation, trees } = self;
        format!(
            "Exact(block_efficiency={block_efficiency}, deviation={deviation:.1e}, \
             trees={trees})"
        )
    }
}

/// Refuses what would take hours.
fn within(tree: &PyTree, draft: &PyTableModel) -> Result<()> {
    /// Drafts at most.
    const MOST: f64 = 3e6;
    let count = count_drafts(&tree.kind, draft.vocabulary());
    match count <= MOST {
        true => Ok(()),
        false => {
            let message =
                format!("enumeration: expected at most {MOST:.0e} drafts, got {count:.1e}");
            Err(Failure::Library("TooLarge", message))
        }
    }
}

/// Something that looks at all drafts of a tree, with a verifier for them, if they are not too
/// many.
fn enumerated<T: Send>(
    py: Python<'_>,
    (verifier, tree): (&Bound<'_, PyAny>, &Bound<'_, PyAny>),
    draft: &PyTableModel,
    look: impl FnOnce(&mut dyn Verifier, &dyn Policy) -> Result<T> + Send,
) -> Result<T> {
    let verifier = verify::given(verifier)?;
    let verifier = verifier.get();
    let tree = verifier.tree(tree)?;
    let tree = tree.get();
    within(tree, draft)?;
    work(py, || look(verifier.build()?.as_mut(), lock(&tree.policy).as_ref()))
}

/// Enumerates a verifier on table models: its exact distribution and block efficiency.
///
/// >>> target = TableModel({(): [0.5, 0.3, 0.2], (0,): [0.1, 0.8, 0.1]})
/// >>> draft = TableModel({(): [0.2, 0.3, 0.5]})
/// >>> found = exact_distribution("nested-priority", "paths:2,2", target, draft)
/// >>> found.deviation < 1e-12
/// True
#[pyfunction]
pub fn exact_distribution(
    py: Python<'_>,
    verifier: &Bound<'_, PyAny>,
    tree: &Bound<'_, PyAny>,
    target: &PyTableModel,
    draft: &PyTableModel,
) -> Result<PyExact> {
    let found = enumerated(py, (verifier, tree), draft, |verifier, policy| {
        Ok(exact(verifier, policy, target, draft, &mut |_| ())?)
    })?;
    Ok(PyExact {
        block_efficiency: found.block_efficiency,
        deviation: found.deviation,
        trees: found.trees,
    })
}

/// The distribution of what one step emits: a dictionary from the emitted tokens (tuples, of one
/// token or more) to their probability.
#[pyfunction]
pub fn emitted_distribution(
    py: Python<'_>,
    verifier: &Bound<'_, PyAny>,
    tree: &Bound<'_, PyAny>,
    target: &PyTableModel,
    draft: &PyTableModel,
) -> Result<Py<PyDict>> {
    let (emitted, _) = enumerated(py, (verifier, tree), draft, |verifier, policy| {
        Ok(emitted(verifier, policy, target, draft, &mut |_| ())?)
    })?;
    let dict = PyDict::new(py);
    for (text, probability) in emitted {
        dict.set_item(PyTuple::new(py, text)?, probability)?;
    }
    Ok(dict.unbind())
}

/// The G-test: do counts agree with a distribution that is known? `probabilities` and `counts` are
/// of all cells; those expected fewer than five times are pooled. Gives the statistic, its degrees
/// of freedom and the probability of a larger one.
///
/// >>> [round(value, 3) for value in g_test([0.5, 0.5], [60, 40])]
/// [4.027, 1, 0.045]
#[pyfunction]
pub fn g_test(probabilities: Vec<f64>, counts: Vec<u64>) -> Result<(f64, usize, f64)> {
    if probabilities.len() != counts.len() {
        let (expected, got) = (probabilities.len(), counts.len());
        return Err(Failure::input(format!(
            "counts: expected {expected}, one for each probability, got {got}"
        )));
    }
    if let Some(got) = probabilities.iter().find(|p| !(0.0..=1.0).contains(*p)) {
        return Err(Failure::input(format!("probabilities: expected each from 0 to 1, got {got}")));
    }
    let sum: f64 = probabilities.iter().sum();
    if (sum - 1.0).abs() > 1e-3 {
        return Err(Failure::input(format!(
            "probabilities: expected the sum 1 within 1e-3, got {sum}"
        )));
    }
    let test = GTest::new(probabilities.into_iter().zip(counts));
    Ok((test.statistic, test.degrees_of_freedom, test.p_value()))
}
