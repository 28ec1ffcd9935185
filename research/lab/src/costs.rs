//! Costs of steps for adaptive trees.

use std::path::Path;

use anyhow::Result;
use polydraft::Sampling;
use polydraft_cli::output::Terminal;
use polydraft_runtime::{ModelOptions, Models, Speculation, costs};

/// Gives an adaptive tree its costs: those of a file, or measured ones.
///
/// # Errors
/// A file that holds no costs; failures of the models.
pub fn settle(
    file: Option<&Path>,
    options: &ModelOptions,
    models: &mut Models,
    sampling: &Sampling,
    speculation: &mut Speculation,
) -> Result<()> {
    let Speculation { tree, sampling: of_draft, verifier, .. } = speculation;
    if let Some(auto) = tree.auto_mut() {
        auto.costs = costs::find_or_measure(
            file,
            options,
            models,
            [sampling, of_draft],
            verifier,
            &Terminal,
        )?;
    }
    Ok(())
}
