//! The step of the Rust bench `verify`, on arrays that Python hands over: for `bench/verify.py`,
//! and only in wheels that are built for it.

use std::hint::black_box;
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use polydraft::{Distribution, NodeId, Sampling, TargetDistributions};
use pyo3::prelude::*;
use rayon::prelude::*;

use crate::arrays::{Row, Rows};
use crate::draft::PyDraft;
use crate::errors::{Failure, Result, lock};
use crate::random::seeded;
use crate::threads::work;
use crate::verify::PyVerifier;

/// Distributions made in memory that is used again, when they are asked for.
struct Lazy<'a> {
    target: &'a [&'a [f32]],
    spare: Vec<Mutex<Option<Distribution>>>,
    made: Vec<OnceLock<Distribution>>,
}

impl TargetDistributions for Lazy<'_> {
    fn target(&self, node: NodeId) -> polydraft::Result<&Distribution> {
        if let Some(probs) = self.made[node].get() {
            return Ok(probs);
        }
        let logits = self.target[node];
        let probs = match lock(&self.spare[node]).take() {
            Some(mut probs) => {
                probs.set_from_logits(logits, &Sampling::default()).map(|()| probs)?
            }
            None => Distribution::from_logits(logits, &Sampling::default())?,
        };
        Ok(self.made[node].get_or_init(|| probs))
    }
}

/// Seconds of one step in Rust, by seed: the softmax of the draft's logits at nodes with children,
/// into memory that is used again, and the decision of the verifier; and the tokens that it emits.
#[pyfunction]
pub fn _rust_step(
    py: Python<'_>,
    verifier: &PyVerifier,
    draft: PyRef<'_, PyDraft>,
    draft_logits: &Bound<'_, PyAny>,
    target_logits: &Bound<'_, PyAny>,
    seeds: Vec<u64>,
) -> Result<Vec<(f64, Vec<polydraft::Token>)>> {
    let [draft_rows, target_rows] =
        [Rows::new("draft", draft_logits)?, Rows::new("target", target_logits)?];
    let (draft_rows, target_rows) =
        (singles(draft_rows.slices()?)?, singles(target_rows.slices()?)?);
    let draft = &draft.draft;
    work(py, || {
        let mut working = verifier.build()?;
        let nodes: Vec<NodeId> =
            (0..draft.tree().len()).filter(|node| draft.distribution(*node).is_some()).collect();
        let probs = |logits: &[f32]| Distribution::from_logits(logits, &Sampling::default());
        let mut drawn = nodes
            .iter()
            .map(|node| probs(draft_rows[*node]))
            .collect::<polydraft::Result<Vec<_>>>()?;
        let mut spare = target_rows
            .iter()
            .map(|row| probs(row).map(Some))
            .collect::<polydraft::Result<Vec<_>>>()?;
        seeds
            .into_iter()
            .map(|seed| {
                let mut random = seeded(seed);
                let memory = spare.iter_mut().map(|probs| Mutex::new(probs.take())).collect();
                let clock = Instant::now();
                drawn.par_iter_mut().zip(&nodes).try_for_each(|(probs, node)| {
                    probs.set_from_logits(black_box(draft_rows[*node]), &Sampling::default())
                })?;
                let lazy = Lazy {
                    target: &target_rows,
                    spare: memory,
                    made: vec![OnceLock::new(); target_rows.len()],
                };
                let outcome = black_box(working.verify(draft, &lazy, &mut random)?);
                let seconds = clock.elapsed().as_secs_f64();
                for (node, probs) in lazy.made.into_iter().enumerate() {
                    spare[node] = probs.into_inner().or_else(|| lock(&lazy.spare[node]).take());
                }
                let accepted = outcome.accepted.iter().map(|&node| draft.tree().token(node));
                Ok((seconds, accepted.chain([outcome.token]).collect()))
            })
            .collect()
    })
}

fn singles(rows: Vec<Row<'_>>) -> Result<Vec<&[f32]>> {
    rows.into_iter()
        .map(|row| match row {
            Row::F32(row) => Ok(row),
            Row::F64(_) => Err(Failure::input("bench: expected float32")),
        })
        .collect()
}
