//! Costs of steps on this machine, measured once for a pair of models and stored, so that the
//! adaptive draft length makes the same choices again and a seed gives the same output.
//!
//! The measured time of each generation corrects the stored costs. They change only after a
//! persistent deviation. Costs in a file given by the user never change.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use polydraft::policy::{Choices, Costs};
use polydraft::{PolicyKind, Sampling, Token, VerifierKind};
use polydraft_engine::{CostMeasurement, Engine, Request};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::listen::Listener;
use crate::machine::{machine, threads};
use crate::message::{OptionName, message};
use crate::models::{ModelOptions, Models};
use crate::requests;
use crate::requests::Settings;
use crate::usage::Advice;

/// Prompt of the measured sequence; the acceptance of drafts depends on it.
const SAMPLE: &str = include_str!("costs/sample.txt");
/// Version of the measurement; increased when the method changes.
const METHOD_VERSION: u32 = 8;
/// Build profile: a debug build is slower, but not uniformly, so its costs are stored separately.
const BUILD: &str = if cfg!(debug_assertions) { "debug" } else { "release" };

/// A file of costs. If the user named it, the key is ignored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct CostFile {
    /// Machine, threads, version, verifier, models and their weight types.
    #[serde(default, rename = "of")]
    key: Vec<String>,
    costs: Costs,
}

/// Key of a pair of models in the cost cache, and the prompt of the measured sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CostKey {
    /// Models, their files and weight types.
    models: Vec<String>,
    /// Prompt of the measured sequence.
    sample: Vec<Token>,
}

impl CostKey {
    /// Creates the key of loaded models.
    ///
    /// # Errors
    /// A tokenizer that rejects the prompt of the measured sequence.
    pub fn new(options: &ModelOptions, models: &Models) -> Result<Self> {
        let sample = models.language.tokenizer.encode(SAMPLE.trim_end())?;
        Ok(Self { models: options.identity(models), sample })
    }

    /// Returns the key of the costs with this verifier, on this machine, with this version.
    fn for_steps(&self, sampling: &Sampling, verifier: &VerifierKind) -> Vec<String> {
        // Greedy verification is nearly free, so its costs are stored separately.
        let decides = if sampling.temperature == 0.0 { "decides greedily" } else { "decides" };
        let version = format!("{}, {BUILD}, costs {METHOD_VERSION}", env!("CARGO_PKG_VERSION"));
        let threads = format!("{} threads", threads());
        let parts = [machine(), threads, version, format!("{verifier} {decides}")];
        parts.into_iter().chain(self.models.iter().cloned()).collect()
    }
}

/// Returns the costs of steps with this verifier and this sampling of target and draft: those in
/// `file`, those measured earlier for these models on this machine, or new ones, which are measured
/// now and stored.
///
/// # Errors
/// A file without costs; failures of the models.
pub fn find_or_measure(
    file: Option<&Path>,
    options: &ModelOptions,
    models: &mut Models,
    sampling: [&Sampling; 2],
    verifier: &VerifierKind,
    listener: &dyn Listener,
) -> Result<Costs> {
    let key = CostKey::new(options, models)?;
    let found = look_up(file, &key, &models.engine, sampling, verifier)?;
    found.costs(&mut models.engine, listener)
}

/// Result of a search for costs.
pub enum CostLookup {
    /// Costs from a file, or measured earlier.
    Known(Costs),
    /// Costs that must be measured.
    Pending(Box<PendingCosts>),
}

impl CostLookup {
    /// Returns the costs; unknown ones are measured and stored first.
    ///
    /// # Errors
    /// Failures of the models.
    pub fn costs(self, engine: &mut Engine, listener: &dyn Listener) -> Result<Costs> {
        match self {
            Self::Known(costs) => Ok(costs),
            Self::Pending(mut measuring) => {
                while measuring.advance(engine)? {}
                measuring.finish(listener)
            }
        }
    }
}

/// A cost measurement in progress, one part at a time.
pub struct PendingCosts {
    measurement: CostMeasurement,
    sampling: [Sampling; 2],
    verifier: VerifierKind,
    key: Vec<String>,
    path: Option<PathBuf>,
    /// Whether `path` is a file that the user named.
    is_user_file: bool,
}

/// Searches for the costs as [`find_or_measure`] does, without measuring.
///
/// # Errors
/// A file without costs.
pub fn look_up(
    file: Option<&Path>,
    key: &CostKey,
    engine: &Engine,
    [sampling, draft_sampling]: [&Sampling; 2],
    verifier: &VerifierKind,
) -> Result<CostLookup> {
    let step_key = key.for_steps(sampling, verifier);
    let path = file.map(Path::to_owned).or_else(|| cache_path(&step_key));
    match path.as_deref().filter(|path| path.exists()).map(read) {
        Some(stored) if file.is_some() => return Ok(CostLookup::Known(stored?.costs)),
        Some(Ok(stored)) if stored.key == step_key => return Ok(CostLookup::Known(stored.costs)),
        _ => {}
    }
    Ok(CostLookup::Pending(Box::new(PendingCosts {
        measurement: CostMeasurement::new(engine, &key.sample),
        sampling: [*sampling, *draft_sampling],
        verifier: verifier.clone(),
        key: step_key,
        path,
        is_user_file: file.is_some(),
    })))
}

impl PendingCosts {
    /// Measures the next part, a few steps, and returns whether there is another one.
    ///
    /// # Errors
    /// Failures of the models.
    pub fn advance(&mut self, engine: &mut Engine) -> Result<bool> {
        let Self { measurement, sampling: [sampling, draft_sampling], verifier, .. } = self;
        let mut request = |prompt, tree| {
            let speculation =
                polydraft_engine::Speculation::new(verifier.build()?, PolicyKind::build(&tree)?)?;
            Ok(Request::new(prompt)
                .sampling(*sampling)
                .speculation(speculation.with_sampling(*draft_sampling))
                .rng(requests::seeded(0)))
        };
        measurement.advance(engine, &mut request).context("measuring the costs of steps")
    }

    /// Stores the costs and returns them. Costs measured on a busy machine are not stored, and are
    /// measured again next time.
    ///
    /// # Errors
    /// A file named by the user that cannot be written.
    pub fn finish(self, listener: &dyn Listener) -> Result<Costs> {
        let Self { measurement, key, path, is_user_file, .. } = self;
        let stored = CostFile { key, costs: measurement.costs() };
        listener.detail(&message![
            "measured the costs of steps on this machine, for ",
            OptionName::Tree.with("auto"),
        ]);
        if !is_user_file && !measurement.is_quiet() {
            let busy = "the machine was busy: costs are measured again next time";
            listener.detail(&busy.into());
            return Ok(stored.costs);
        }
        match (path.map(|path| write(&path, &stored)), is_user_file) {
            (Some(written), true) => written?,
            (Some(Ok(())), false) => {}
            _ => listener.detail(&message![
                "the costs cannot be cached: without ",
                OptionName::Costs.with("FILE"),
                " a seed gives a different output each time",
            ]),
        }
        Ok(stored.costs)
    }
}

/// Corrects the costs by the measured time of a generation, for the next one and in the stored
/// file.
pub(crate) fn learn(
    key: &CostKey,
    Settings { sampling, speculation }: &mut Settings,
    choices: Option<&Choices>,
    listener: &dyn Listener,
) {
    if let (Some(speculation), Some(choices)) = (speculation, choices)
        && let Some(auto) = speculation.tree.auto_mut()
    {
        if auto.costs.calibrate(&choices.clock) {
            let corrected =
                "measured times corrected the costs of steps: a seed may now give another output";
            listener.detail(&corrected.into());
        }
        let key = key.for_steps(sampling, &speculation.verifier);
        // Costs that cannot be cached are learned again next time.
        cache_path(&key).map(|path| write(&path, &CostFile { key, costs: auto.costs.clone() }));
    }
}

/// Returns the path of the costs with this key, if the user has a cache.
fn cache_path(key: &[String]) -> Option<PathBuf> {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    let name = format!("polydraft/costs/{:016x}.json", hasher.finish());
    Some(polydraft_files::cache_dir()?.join(name))
}

fn read(file: &Path) -> Result<CostFile> {
    let text = polydraft_files::read_text(file, polydraft_files::FileKind::RECORD)
        .with_context(|| format!("cannot read the costs {}", file.display()))?;
    let stored: CostFile = serde_json::from_str(&text).map_err(|error| {
        let begin = format!("{}: expected costs as ", file.display());
        let end = format!(" writes them to a new file: {error}");
        Advice(message![begin, OptionName::Costs, end])
    })?;
    let auto = polydraft::policy::Auto { costs: stored.costs.clone(), ..Default::default() };
    PolicyKind::Auto(auto).build().with_context(|| format!("{}", file.display()))?;
    Ok(stored)
}

/// Writes a file atomically.
fn write(file: &Path, stored: &CostFile) -> Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let write = || -> Result<()> {
        fs::create_dir_all(folder)?;
        let mut new = NamedTempFile::new_in(folder)?;
        new.write_all(serde_json::to_string(stored)?.as_bytes())?;
        new.persist(file)?;
        Ok(())
    };
    write().with_context(|| format!("cannot write the costs {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_costs_atomically_and_replaces_unreadable_ones() {
        let folder = std::env::temp_dir().join(format!("polydraft-costs-{}", std::process::id()));
        let file = folder.join("costs.json");
        let with_key =
            |name: &str| CostFile { key: vec![name.to_owned()], costs: Costs::default() };
        for stored in [with_key("1"), with_key("2")] {
            write(&file, &stored).unwrap();
            assert_eq!(read(&file).unwrap(), stored);
        }
        // An unreadable file is replaced after a new measurement.
        fs::write(&file, "{").unwrap();
        assert!(read(&file).unwrap_err().to_string().contains("costs.json"));
        write(&file, &with_key("3")).unwrap();
        assert_eq!(read(&file).unwrap(), with_key("3"));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(&folder).unwrap();
    }
}
