//! Trees for a verifier: what their names leave open, chosen by what is known beside them.

use polydraft::PolicyKind;
use polydraft::policy::TreeChoice;
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
