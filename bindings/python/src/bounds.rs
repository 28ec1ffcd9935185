//! The best that any rule or verifier can do.

use polydraft::{Problem, acceptance};
use polydraft_reference::optimum;
use polydraft_reference::paths::{Limits, PathProblem, multi_path_optimum};
use pyo3::prelude::*;

use crate::distribution;
use crate::errors::Result;
use crate::proposal::Owned;
use crate::tables::PyTableModel;
use crate::threads::work;

/// The largest acceptance that any rule can have with so many drafts from `draft`.
///
/// >>> round(optimal_acceptance([0.5, 0.3, 0.2], [0.2, 0.3, 0.5], 2), 12)
/// 0.86
#[pyfunction]
#[pyo3(signature = (target, draft, drafts=1, scheme="iid"))]
pub fn optimal_acceptance(
    target: &Bound<'_, PyAny>,
    draft: &Bound<'_, PyAny>,
    drafts: usize,
    scheme: &str,
) -> Result<f64> {
    let py = target.py();
    let (target, drafts) =
        (distribution::given("target", target)?, Owned::new(draft, drafts, scheme)?);
    work(py, || Ok(acceptance::optimal(&Problem::new(&target, drafts.get()?)?)?))
}

/// The largest acceptance and the tokens that limit it, ascending: those of which more are drafted
/// than the target wants. By another method than `optimal_acceptance`.
#[pyfunction]
#[pyo3(signature = (target, draft, drafts=1, scheme="iid"))]
pub fn limiting_tokens(
    target: &Bound<'_, PyAny>,
    draft: &Bound<'_, PyAny>,
    drafts: usize,
    scheme: &str,
) -> Result<(f64, Vec<polydraft::Token>)> {
    let py = target.py();
    let (target, drafts) =
        (distribution::given("target", target)?, Owned::new(draft, drafts, scheme)?);
    let best = work(py, || Ok(optimum::best(&Problem::new(&target, drafts.get()?)?)?))?;
    Ok((best.acceptance, best.tokens))
}

/// SpecTr's bounds (lower, upper) of the optimal acceptance of so many i.i.d. drafts.
#[pyfunction]
pub fn acceptance_bounds(
    target: &Bound<'_, PyAny>,
    draft: &Bound<'_, PyAny>,
    drafts: usize,
) -> Result<(f64, f64)> {
    let (target, draft) =
        (distribution::given("target", target)?, Owned::new(draft, drafts, "iid")?);
    let problem = Problem::new(&target, draft.get()?)?;
    Ok(acceptance::bounds(problem.target, problem.proposal.distribution(0), drafts))
}

/// The most tokens per target pass that any verifier can emit on average: of `paths`
/// independent paths of `depth` tokens that table models draft and score. A linear program;
/// exponential in all there is.
#[pyfunction]
#[pyo3(signature = (target, draft, paths, depth, seconds=60.0))]
pub fn optimal_block_efficiency(
    py: Python<'_>,
    target: &PyTableModel,
    draft: &PyTableModel,
    paths: usize,
    depth: usize,
    seconds: f64,
) -> Result<f64> {
    work(py, || {
        let problem = PathProblem {
            vocabulary: target.vocabulary(),
            depth,
            paths,
            target: &|context| Ok(target.model.distribution(context).clone()),
            draft: &|context| Ok(draft.model.distribution(context).clone()),
        };
        Ok(multi_path_optimum(&problem, &Limits { seconds, ..Limits::default() })?)
    })
}
