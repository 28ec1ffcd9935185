//! polydraft for Python: the native part of the wheel.
//!
//! Each file is one concern: `arguments` (numbers and text that callers give), `arrays` (what
//! Python's memory may be looked at), `errors` (exceptions), `threads` (the door out of the
//! interpreter's lock), then what the library offers, from distributions to engines. Python's own
//! part, in `python/polydraft`, has what is easier said there.

mod arguments;
mod arrays;
#[cfg(feature = "bench")]
mod bench;
mod bounds;
mod certify;
mod choice;
mod conformance;
mod distribution;
#[cfg(feature = "models")]
mod downloads;
mod draft;
mod drafting;
mod drafts;
mod engine;
mod errors;
#[cfg(feature = "models")]
mod lessons;
mod models;
mod names;
mod ngrams;
mod outcome;
mod pool;
#[cfg(feature = "program")]
mod program;
mod proposal;
mod random;
mod rules;
mod session;
mod tables;
mod threads;
mod trace;
mod tree;
mod verify;

use std::sync::LazyLock;

use polydraft::policy::TreeName;
use polydraft::{Drafting, VerifierKind};
use pyo3::prelude::*;

/// The native part of polydraft.
#[pymodule]
#[pyo3(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    LazyLock::force(&threads::FIRST);
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    let rules = polydraft_reference::rules();
    module.add("RULES", rules.all().iter().map(ToString::to_string).collect::<Vec<_>>())?;
    module.add("DRAFTINGS", Drafting::ALL.map(Drafting::name).to_vec())?;
    module.add(
        "VERIFIERS",
        VerifierKind::all_with(&rules).iter().map(VerifierKind::to_string).collect::<Vec<_>>(),
    )?;
    module.add("TREES", TreeName::examples())?;
    module.add_class::<random::PyRng>()?;
    module.add_class::<distribution::PySampling>()?;
    module.add_class::<distribution::PyDistribution>()?;
    module.add_class::<proposal::PyProposal>()?;
    module.add_class::<rules::PyCoupling>()?;
    module.add_class::<rules::PyEmission>()?;
    module.add_class::<rules::PyEmittedDistribution>()?;
    module.add_class::<rules::PyAcceptance>()?;
    module.add_class::<tree::PyTree>()?;
    module.add_class::<draft::PyDraft>()?;
    module.add_class::<verify::PyVerifier>()?;
    module.add_class::<outcome::PyOutcome>()?;
    module.add_class::<tables::PyTableModel>()?;
    module.add_class::<conformance::PyExact>()?;
    module.add_class::<engine::PyEngine>()?;
    module.add_class::<session::PySession>()?;
    module.add_class::<session::PyGeneration>()?;
    module.add_class::<certify::PyCertificate>()?;
    module.add_class::<ngrams::PyNgrams>()?;
    module.add_function(wrap_pyfunction!(rules::couple_rule, module)?)?;
    module.add_function(wrap_pyfunction!(bounds::optimal_acceptance, module)?)?;
    module.add_function(wrap_pyfunction!(bounds::limiting_tokens, module)?)?;
    module.add_function(wrap_pyfunction!(bounds::acceptance_bounds, module)?)?;
    module.add_function(wrap_pyfunction!(bounds::optimal_block_efficiency, module)?)?;
    module.add_function(wrap_pyfunction!(tables::random_tables, module)?)?;
    module.add_function(wrap_pyfunction!(conformance::exact_distribution, module)?)?;
    module.add_function(wrap_pyfunction!(conformance::emitted_distribution, module)?)?;
    module.add_function(wrap_pyfunction!(conformance::g_test, module)?)?;
    module.add_class::<trace::PyTrace>()?;
    module.add_class::<trace::PyShard>()?;
    module.add_class::<trace::PyPosition>()?;
    module.add_function(wrap_pyfunction!(trace::_replay, module)?)?;
    module.add_function(wrap_pyfunction!(trace::_summary, module)?)?;
    module.add_function(wrap_pyfunction!(certify::certify, module)?)?;
    module.add_function(wrap_pyfunction!(choice::_default_tree, module)?)?;
    module.add_function(wrap_pyfunction!(choice::_estimated_costs, module)?)?;
    module.add_function(wrap_pyfunction!(threads::_panic, module)?)?;
    #[cfg(feature = "bench")]
    module.add_function(wrap_pyfunction!(bench::_rust_step, module)?)?;
    #[cfg(feature = "models")]
    module.add_function(wrap_pyfunction!(models::use_threads, module)?)?;
    #[cfg(feature = "models")]
    module.add_function(wrap_pyfunction!(lessons::_write_lessons, module)?)?;
    #[cfg(feature = "program")]
    module.add_function(wrap_pyfunction!(program::_run_program, module)?)?;
    Ok(())
}
