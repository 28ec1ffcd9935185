//! Trees for a verifier, chosen by what is known beside their names, and costs for adaptive ones.

use polydraft::PolicyKind;
use polydraft::policy::{Costs, DraftShape, PassShape, TreeChoice};
use pyo3::prelude::*;

use crate::errors::{Failure, Result};
use crate::names::Named;
use crate::tree::{self, PyTree};
use crate::verify;

#[pymethods]
impl PyTree {
    #[new]
    #[pyo3(signature = (tree, *, verifier=None, acceptance=None))]
    fn new(
        tree: Named<'_>,
        verifier: Option<&Bound<'_, PyAny>>,
        acceptance: Option<&Bound<'_, PyAny>>,
    ) -> Result<Self> {
        let name = tree::read(tree)?;
        if acceptance.is_some() && !name.needs_acceptance() {
            return Err(Failure::input(
                "acceptance= is what tree=\"sequoia:N\" is made from: it has no meaning here",
            ));
        }
        let verifier = verifier.map(verify::given).transpose()?;
        let acceptance = tree::read_acceptance(acceptance)?;
        let choice = TreeChoice {
            verifier: verifier.as_ref().map(|verifier| &verifier.get().kind),
            acceptance: acceptance.as_deref(),
            ..TreeChoice::default()
        };
        Self::from_kind(tree::choose(&name, &choice)?)
    }
}

/// The name of the tree for a verifier where none is named, or the number or the depth of paths
/// alone.
#[pyfunction]
#[pyo3(signature = (verifier, paths=None, depth=None))]
pub fn _default_tree(
    verifier: &Bound<'_, PyAny>,
    paths: Option<usize>,
    depth: Option<usize>,
) -> Result<String> {
    let verifier = verify::given(verifier)?;
    let kind = &verifier.get().kind;
    let tree = match (paths, depth) {
        (None, None) => PolicyKind::default_for(kind, 0),
        _ => PolicyKind::paths_for(kind, paths, depth),
    };
    Ok(match tree {
        PolicyKind::Auto(_) => tree.name().to_owned(),
        tree => tree.to_string(),
    })
}

/// Estimated costs of steps as JSON, from the bytes and the number of the target's weights, the
/// bytes of its KV cache per token, the ratio of a draft model to it (none for n-grams), and the
/// costs of passes relative to one, by number of tokens, if they are known.
#[pyfunction]
pub fn _estimated_costs(
    weight_bytes: u64,
    weights: u64,
    cache_bytes: u64,
    draft: Option<f64>,
    passes: Option<Vec<(usize, f64)>>,
) -> Result<String> {
    let bytes_per_weight = Some(weight_bytes as f64 / weights.max(1) as f64);
    let target = PassShape { weight_bytes, bytes_per_weight, cache_bytes, measured: passes };
    let costs = Costs::estimated(&target, draft.map_or(DraftShape::Ngrams, DraftShape::Model));
    serde_json::to_string(&costs).map_err(|error| Failure::input(error.to_string()))
}
