//! Costs of forward passes for adaptive trees.

use std::path::Path;

use anyhow::Result;
use polydraft::Sampling;
use polydraft_cli::output::Terminal;
use polydraft_runtime::{Models, Speculation, costs};

/// Sets the costs of an adaptive tree: read from a file, or measured.
///
/// # Errors
/// A file that does not contain costs; errors of the models.
pub fn settle(
    file: Option<&Path>,
    models: &mut Models,
    sampling: &Sampling,
    speculation: &mut Speculation,
) -> Result<()> {
    let Speculation { tree, sampling: of_draft, verifier, .. } = speculation;
    if let Some(auto) = tree.auto_mut() {
        let samplings = [sampling, &*of_draft];
        auto.costs = costs::read_or_measure(file, models, samplings, verifier, &Terminal)?;
    }
    Ok(())
}
