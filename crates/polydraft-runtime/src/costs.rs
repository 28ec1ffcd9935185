//! Costs of steps for adaptive draft length. An output never waits for a measurement.
//!
//! Outputs with a seed use costs in a file that the user named, or estimated ones
//! ([`Costs::estimated`]), so
//! that the seed decides the output. Outputs without a seed use costs that are corrected by the
//! times of their own steps and stored for later runs.

mod gains;

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use polydraft::policy::{Auto, Choices, Costs};
use polydraft::{PolicyKind, Sampling, VerifierKind};
use polydraft_engine::Request;
use polydraft_models::Precision;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::listen::Listener;
use crate::machine::{machine, threads};
use crate::message::{OptionName, message};
use crate::models::{ModelOptions, Models};
use crate::requests;
use crate::usage::Advice;

pub(crate) use gains::Gains;

/// Prompt of sequences whose steps are measured for a file; the acceptance depends on it.
const SAMPLE: &str = include_str!("costs/sample.txt");
/// Version of the method; increased when it changes.
const METHOD_VERSION: u32 = 9;
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

/// Models whose costs are stored, with their estimated costs.
#[derive(Debug, Clone, PartialEq)]
pub struct CostKey {
    /// Models, their files and weight types.
    models: Vec<String>,
    estimate: Costs,
    gains: Gains,
}

impl CostKey {
    /// Creates the key of loaded models.
    pub fn new(options: &ModelOptions, models: &Models) -> Self {
        let draft = models.loaded_draft.to_string();
        let gains = Gains::new(&models.resolved_target.path, options.dtype, draft);
        Self { models: options.identity(models), estimate: models.estimated_costs.clone(), gains }
    }

    /// Returns the costs of steps with this verifier, where the target is sampled like this.
    /// Nothing is measured.
    pub fn find(&self, sampling: &Sampling, verifier: &VerifierKind) -> StepCosts {
        let key = self.for_steps(sampling, verifier);
        let path = cache_file("costs", &key);
        let stored = path.as_deref().filter(|path| path.exists()).map(read);
        let learned = match stored {
            Some(Ok(stored)) if stored.key == key => stored.costs,
            _ => self.estimate.clone(),
        };
        let store = path.map(|path| Store { path, key, gains: self.gains.clone() });
        StepCosts { seeded: self.estimate.clone(), learned, learns: true, store }
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

/// Costs of steps with one verifier.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepCosts {
    seeded: Costs,
    learned: Costs,
    /// Whether times correct the costs.
    learns: bool,
    store: Option<Store>,
}

/// Where learned costs are stored.
#[derive(Debug, Clone, PartialEq)]
struct Store {
    path: PathBuf,
    key: Vec<String>,
    gains: Gains,
}

impl StepCosts {
    /// Returns costs that never change.
    pub fn fixed(costs: Costs) -> Self {
        Self { seeded: costs.clone(), learned: costs, learns: false, store: None }
    }

    /// Returns costs that are learned, and not stored.
    pub fn learning(costs: Costs) -> Self {
        Self { learns: true, ..Self::fixed(costs) }
    }

    /// Sets the costs of an adaptive tree. Those of an output with a seed depend on no time that
    /// was measured.
    pub fn apply(&self, tree: &mut Auto, is_seeded: bool) {
        tree.costs = if is_seeded { self.seeded.clone() } else { self.learned.clone() };
        tree.times_plain = !is_seeded && self.learns && tree.costs.learned.needs_plain_steps();
    }

    /// Corrects the costs by an output without a seed.
    pub fn learn(&mut self, choices: &Choices) {
        if self.learns {
            self.learned.learn(choices);
        }
    }

    /// Stores learned costs for later runs; without a cache folder they are learned again.
    pub fn store(&self) {
        let Some(Store { path, key, gains }) = self.store.as_ref().filter(|_| self.learns) else {
            return;
        };
        let file = CostFile { key: key.clone(), costs: self.learned.clone() };
        // A folder that cannot be written is no reason to fail an output.
        if write(path, &file).is_ok() {
            gains.store(&self.learned.learned);
        }
    }
}

/// Returns the costs in `file` or, if there is none, measures them now and writes them there. Only
/// for measurements that the user asked for.
///
/// # Errors
/// A file without costs, or that cannot be written; failures of the models.
pub fn read_or_measure(
    file: Option<&Path>,
    models: &mut Models,
    [sampling, draft_sampling]: [&Sampling; 2],
    verifier: &VerifierKind,
    listener: &dyn Listener,
) -> Result<Costs> {
    if let Some(file) = file.filter(|file| file.exists()) {
        return Ok(read(file)?.costs);
    }
    let sample = models.language.tokenizer.encode(SAMPLE.trim_end())?;
    let mut request = |prompt, tree| {
        let speculation =
            polydraft_engine::Speculation::new(verifier.build()?, PolicyKind::build(&tree)?)?;
        Ok(Request::new(prompt)
            .sampling(*sampling)
            .speculation(speculation.with_sampling(*draft_sampling))
            .rng(requests::seeded(0)))
    };
    let costs = models.engine.measure_costs(&sample, &mut request);
    let costs = costs.context("measuring the costs of steps")?;
    listener.detail(&message![
        "measured the costs of steps on this machine, for ",
        OptionName::Tree.with("auto"),
    ]);
    if let Some(file) = file {
        write(file, &CostFile { key: Vec::new(), costs: costs.clone() })?;
    }
    Ok(costs)
}

/// Stores measured costs of a model's passes, by numbers of tokens, starting with 1. They replace
/// the estimated ones also for outputs with a seed.
///
/// # Errors
/// A cache folder that cannot be written.
pub fn store_passes(target: &Path, dtype: Precision, passes: &[(usize, f64)]) -> Result<()> {
    match passes_file(target, dtype) {
        Some(file) => write(&file, &passes),
        None => Ok(()),
    }
}

/// Returns the stored costs of a model's passes, relative to a pass over one token.
pub(crate) fn stored_passes(target: &Path, dtype: Precision) -> Option<Vec<(usize, f64)>> {
    let text = fs::read_to_string(passes_file(target, dtype)?).ok()?;
    let passes: Vec<(usize, f64)> = serde_json::from_str(&text).ok()?;
    let (_, one) = *passes.first().filter(|(tokens, seconds)| *tokens == 1 && *seconds > 0.0)?;
    let is_valid = passes.is_sorted_by(|a, b| a.0 < b.0) && passes.iter().all(|p| p.1.is_finite());
    is_valid.then(|| passes.into_iter().map(|(tokens, seconds)| (tokens, seconds / one)).collect())
}

fn passes_file(target: &Path, dtype: Precision) -> Option<PathBuf> {
    let target = target.canonicalize().unwrap_or_else(|_| target.to_owned());
    let size = crate::model_files::weight_bytes(&target);
    let key = (machine(), threads(), env!("CARGO_PKG_VERSION"), target, size, dtype.name());
    cache_file("passes", &key)
}

/// Returns the path of a cached file of this kind, if the user has a cache.
fn cache_file(kind: &str, key: &impl Hash) -> Option<PathBuf> {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    let name = format!("polydraft/{kind}/{:016x}.json", hasher.finish());
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
    let auto = Auto { costs: stored.costs.clone(), ..Auto::default() };
    PolicyKind::Auto(auto).build().with_context(|| format!("{}", file.display()))?;
    Ok(stored)
}

/// Writes a file atomically.
fn write(file: &Path, stored: &impl Serialize) -> Result<()> {
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
