//! Text that a model writes itself, for the training of its draft head.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use polydraft_lessons::{ShardPlan, ShardProgress, write_shards};
use pyo3::prelude::*;

use crate::errors::{Failure, Result};
use crate::threads::work;

/// Interval of the calls that ask Python whether to continue.
const EVERY: Duration = Duration::from_millis(500);

/// Writes text into a folder until there are so many tokens, or until `watch(shards, kept, open)`,
/// which is called about twice a second, says no; see `polydraft-lessons`.
#[pyfunction]
#[pyo3(signature = (target, folder, tokens, watch, *, dtype=None, layers=None, shard=100_000,
    together=64, longest=512, temperatures=vec![0.7, 1.0], given=vec![]))]
#[expect(clippy::too_many_arguments, reason = "keywords in Python")]
pub fn _write_lessons(
    py: Python<'_>,
    target: PathBuf,
    folder: PathBuf,
    tokens: usize,
    watch: Py<PyAny>,
    dtype: Option<&str>,
    layers: Option<Vec<usize>>,
    shard: usize,
    together: usize,
    longest: usize,
    temperatures: Vec<f64>,
    given: Vec<PathBuf>,
) -> Result<()> {
    let dtype = dtype.map(str::parse).transpose().map_err(Failure::input)?;
    let plan = ShardPlan {
        target,
        dtype,
        layers,
        folder,
        tokens,
        shard,
        batch_size: together,
        max_sample_tokens: longest,
        temperatures,
        text_files: given,
    };
    let mut raised = None;
    let mut last_call: Option<Instant> = None;
    work(py, || {
        let mut go_on = |ShardProgress { shards, stored_tokens: kept, open_tokens: open }| {
            if open > 0 && last_call.is_some_and(|last_call| last_call.elapsed() < EVERY) {
                return true;
            }
            last_call = Some(Instant::now());
            Python::attach(|py| {
                let answer = watch.call1(py, (shards, kept, open));
                answer.and_then(|answer| answer.extract(py)).unwrap_or_else(|problem| {
                    raised = Some(problem);
                    false
                })
            })
        };
        Ok(write_shards(&plan, &mut go_on)?)
    })?;
    raised.map_or(Ok(()), |problem| Err(problem.into()))
}
