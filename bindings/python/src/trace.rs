//! Recorded distributions, and verifiers replayed on them.

use std::path::PathBuf;

use numpy::PyArray1;
use polydraft::VerifierKind;
use polydraft::{PolicyKind, Token};
use polydraft_reference::comparison::{Sample, mean};
use polydraft_reference::trace::{Position, Replay, Shard, Trace, in_rounds, replay};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rayon::prelude::*;

use crate::distribution::PyDistribution;
use crate::draft::PyDraft;
use crate::errors::{Failure, Result};
use crate::threads::work;

/// Recording of `polydraft-lab trace`: a folder, or one of its files. Each item is the shard of one
/// prompt, checked when it is read.
///
/// >>> for shard in Trace("traces/demo"):                            # doctest: +SKIP
/// ...     for position in shard:
/// ...         position.draft.tokens, position.target[0].to_numpy()
#[pyclass(name = "Trace", module = "polydraft", frozen)]
pub struct PyTrace {
    trace: Trace,
}

#[pymethods]
impl PyTrace {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> Result<Self> {
        work(py, || Ok(Self { trace: Trace::open(&path)? }))
    }

    /// Models, settings and program: a dictionary, as in `trace.json`.
    #[getter]
    fn header<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        parsed(py, &serde_json::to_string(self.trace.header()).unwrap_or_default())
    }

    /// The tree that was drafted, as users type it.
    #[getter]
    fn tree(&self) -> String {
        self.trace.header().tree.to_string()
    }

    /// The files of the prompts, a `pathlib.Path` each.
    #[getter]
    fn files(&self) -> Vec<PathBuf> {
        self.trace.files().collect()
    }

    /// Positions of all prompts.
    #[getter]
    fn positions(&self) -> usize {
        self.trace.positions()
    }

    fn __len__(&self) -> usize {
        self.trace.len()
    }

    fn __getitem__(&self, py: Python<'_>, index: usize) -> Result<PyShard> {
        if index >= self.trace.len() {
            return Err(pyo3::exceptions::PyIndexError::new_err(index).into());
        }
        work(py, || Ok(PyShard { shard: self.trace.shard(index)? }))
    }

    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        items(slf)
    }
}

/// The items one after the other, each made when it is asked for. Python would do so by
/// `__getitem__` alone, but type checkers do not know that.
fn items<'py>(container: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let builtins = container.py().import("builtins")?;
    let indices = builtins.call_method1("range", (container.len()?,))?;
    builtins.call_method1("map", (container.getattr("__getitem__")?, indices))
}

fn parsed<'py>(py: Python<'py>, json: &str) -> Result<Bound<'py, PyAny>> {
    Ok(py.import("json")?.call_method1("loads", (json,))?)
}

/// Shard of one prompt. Each item is a position, over all sequences after the prompt.
#[pyclass(name = "Shard", module = "polydraft", frozen)]
pub struct PyShard {
    shard: Shard,
}

#[pymethods]
impl PyShard {
    /// The number of the prompt.
    #[getter]
    fn number(&self) -> usize {
        self.shard.number()
    }

    /// The prompt: uint32 `[tokens]`.
    #[getter]
    fn prompt<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<Token>> {
        PyArray1::from_slice(py, self.shard.prompt())
    }

    /// Sequences that the target generated after the prompt: uint32 `[tokens]` each.
    #[getter]
    fn sequences<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyArray1<Token>>> {
        self.shard
            .sequences()
            .iter()
            .map(|sequence| PyArray1::from_slice(py, &sequence.tokens))
            .collect()
    }

    /// The most probability that is missing from a distribution.
    #[getter]
    fn left_out(&self) -> f64 {
        self.shard.left_out()
    }

    /// The program that recorded it: a dictionary.
    #[getter]
    fn made<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        parsed(py, &self.shard.made().to_string())
    }

    fn __len__(&self) -> usize {
        self.shard.positions()
    }

    fn __getitem__(&self, py: Python<'_>, index: usize) -> Result<PyPosition> {
        if index >= self.shard.positions() {
            return Err(pyo3::exceptions::PyIndexError::new_err(index).into());
        }
        let Position { at, draft, target } = work(py, || Ok(self.shard.position(index)?))?;
        let sequences = self.shard.sequences();
        let sequence =
            sequences.iter().position(|sequence| sequence.positions.contains(&index)).unwrap_or(0);
        let before = sequences.get(sequence).and_then(|sequence| sequence.tokens[..at].last());
        let root = before.or(self.shard.prompt().last()).copied().unwrap_or(0);
        let draft = Py::new(py, PyDraft::taken_over(draft, root))?;
        let target = target.into_iter().map(|probs| Py::new(py, PyDistribution::from(probs)));
        Ok(PyPosition { sequence, at, draft, target: target.collect::<PyResult<_>>()? })
    }

    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        items(slf)
    }
}

/// A position of a sequence: the index of the sequence (`sequence`), the number of tokens before it
/// (`at`), the `draft` there, with the distribution of every draw, and the `target`'s
/// distributions at its nodes.
#[pyclass(name = "Position", module = "polydraft", frozen, get_all)]
pub struct PyPosition {
    sequence: usize,
    at: usize,
    draft: Py<PyDraft>,
    target: Vec<Py<PyDistribution>>,
}

/// A sample as Python carries it: positions, drafts, nodes, mean tokens of each verifier.
type Plain = (usize, usize, usize, Vec<f64>);
/// Results by prompt and sequence; none where no position was compared.
type ByPrompt = Vec<Vec<Option<Plain>>>;

/// Compares verifiers on the prompts of traces, or of files of them: the tree, the verifiers that
/// are exact for it, and by prompt and sequence (positions, drafts, nodes, tokens of each
/// verifier). On all threads.
#[pyfunction]
#[pyo3(signature = (paths, verifiers, tree=None))]
pub fn _replay(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    verifiers: Vec<String>,
    tree: Option<String>,
) -> Result<(String, Vec<String>, ByPrompt)> {
    let verifiers = verifiers
        .iter()
        .map(|name| Ok(polydraft_reference::verifier(name)?))
        .collect::<Result<Vec<VerifierKind>>>()?;
    work(py, || {
        let traces = Trace::open_all(&paths)?;
        let Some(first) = traces.first() else {
            return Err(Failure::input("replay: expected at least one file of a trace, got none"));
        };
        let recorded = &first.header().tree;
        let tree: PolicyKind = tree.map_or(Ok(recorded.clone()), |tree| tree.parse())?;
        let one = Replay::new(recorded, &tree, &verifiers)?;
        let shards =
            traces.iter().flat_map(|trace| (0..trace.len()).map(move |number| (trace, number)));
        let prompts = shards.collect::<Vec<_>>().into_par_iter().map(|(trace, number)| {
            let samples =
                replay(&trace.shard(number)?, std::slice::from_ref(&one), number)?.swap_remove(0);
            let plain =
                |sample: Sample| (sample.positions, sample.drafts, sample.nodes, sample.tokens);
            Ok(samples.into_iter().map(|sample| sample.map(plain)).collect())
        });
        let prompts = prompts.collect::<polydraft_reference::trace::Result<_>>()?;
        let verifiers = one.verifiers().iter().map(VerifierKind::to_string).collect();
        Ok((tree.to_string(), verifiers, prompts))
    })
}

/// Samples of prompts as means, errors and sums: sequences, positions, drafts, nodes per draft, and
/// for each verifier its tokens per target pass, their standard error, the difference to the first
/// and its error, and the sum over sequences.
#[pyfunction]
pub fn _summary<'py>(py: Python<'py>, prompts: ByPrompt) -> Result<Bound<'py, PyDict>> {
    let sample = |prompt: usize, plain: Option<Plain>| {
        plain.map(|(positions, drafts, nodes, tokens)| Sample {
            prompt,
            positions,
            drafts,
            nodes,
            tokens,
        })
    };
    let sequences = |(prompt, sequences): (usize, Vec<Option<Plain>>)| {
        sequences.into_iter().map(|plain| sample(prompt, plain)).collect()
    };
    let samples = in_rounds(&prompts.into_iter().enumerate().map(sequences).collect::<Vec<_>>());
    let Some(first) = samples.first() else {
        return Err(Failure::input("replay: expected a trace with positions, got none"));
    };
    let rows = (0..first.tokens.len()).map(|index| {
        let (tokens, error) = mean(&samples, |sample| sample.tokens[index]);
        let (difference, difference_error) =
            mean(&samples, |sample| sample.tokens[index] - sample.tokens[0]);
        let sum: f64 = samples.iter().map(|sample| sample.tokens[index]).sum();
        (tokens, error, difference, difference_error, sum)
    });
    let (drafts, nodes): (usize, usize) = samples
        .iter()
        .fold((0, 0), |(drafts, nodes), sample| (drafts + sample.drafts, nodes + sample.nodes));
    let dict = PyDict::new(py);
    dict.set_item("sequences", samples.len())?;
    dict.set_item("positions", samples.iter().map(|sample| sample.positions).sum::<usize>())?;
    dict.set_item("drafts", drafts)?;
    dict.set_item("nodes_per_call", nodes as f64 / drafts as f64)?;
    dict.set_item("rows", rows.collect::<Vec<_>>())?;
    Ok(dict)
}
