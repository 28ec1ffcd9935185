//! Options shared by several measurements.

use std::path::PathBuf;

use anyhow::Result;
use polydraft::PolicyKind;
use polydraft_cli::output;
use polydraft_cli::save::Save;
use serde::Serialize;

/// Trees and temperatures at which verifiers are compared.
#[derive(clap::Args, Debug)]
pub struct GridArgs {
    /// Numbers of paths; empty for no path trees [default: 4; for 'bench decode' 2].
    #[arg(long, short = 'k', value_name = "K,..", value_delimiter = ',', value_parser = number)]
    paths: Option<Vec<Option<usize>>>,
    /// Depths of the paths [default: 4; for 'bench decode' 2,4].
    #[arg(
        long,
        short = 'd',
        value_name = "L,..",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=256),
    )]
    depths: Option<Vec<u32>>,
    /// Another tree, as for 'generate --tree', with the verifiers that are exact for it. May be
    /// repeated. With an empty --paths, only these trees are used.
    #[arg(long = "tree", value_name = "TREE")]
    pub trees: Vec<PolicyKind>,
    /// Temperatures, for target and draft.
    #[arg(long, short = 't', value_name = "T,..", default_value = "1", value_delimiter = ',')]
    pub temperatures: Vec<f64>,
}

impl GridArgs {
    /// Returns the numbers of paths, or `default` if none were given.
    pub fn paths(&self, default: &[usize]) -> Vec<usize> {
        match &self.paths {
            Some(paths) => paths.iter().copied().flatten().collect(),
            None => default.to_vec(),
        }
    }

    /// Returns the depths of the paths, or `default` if none were given.
    pub fn depths(&self, default: &[usize]) -> Vec<usize> {
        match &self.depths {
            Some(depths) => depths.iter().map(|&depth| depth as usize).collect(),
            None => default.to_vec(),
        }
    }
}

fn number(text: &str) -> Result<Option<usize>, String> {
    match text.parse() {
        _ if text.is_empty() => Ok(None),
        Ok(count @ 1..=1024) => Ok(Some(count)),
        _ => Err("expected a number from 1 to 1024".to_owned()),
    }
}

/// Output options.
#[derive(clap::Args, Debug)]
pub struct RecordArgs {
    /// Write the record to this file as JSON.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
}

impl RecordArgs {
    /// Opens the file of the record, if one was given. Called before measuring, so that errors come
    /// early.
    ///
    /// # Errors
    /// A folder that does not exist or is not writable.
    pub fn begin(&self) -> Result<Option<Save>> {
        self.save.as_deref().map(Save::prepare).transpose()
    }

    /// Prints the report as JSON or as the given table.
    ///
    /// # Errors
    /// A closed output.
    pub fn print<R: Serialize>(
        &self,
        report: &R,
        table: impl FnOnce(&R) -> Result<()>,
    ) -> Result<()> {
        if self.json { output::json(report) } else { table(report) }
    }
}

/// Writes the record to its file, if there is one.
///
/// # Errors
/// Errors of the file system, such as a full disk.
pub fn finish<R: Serialize>(save: Option<Save>, report: &R) -> Result<()> {
    match save {
        Some(save) => save.finish((serde_json::to_string_pretty(report)? + "\n").as_bytes()),
        None => Ok(()),
    }
}
