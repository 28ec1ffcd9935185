//! Costs of steps on this machine: measured once for a pair of models and stored, so that the
//! adaptive draft length chooses alike, and a seed gives the same output again.
//!
//! The measured time of a generation corrects the stored costs after it. They change
//! where it disagrees for long, and otherwise stay; costs in a file of the user's never change.

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

/// The prompt of the sequence whose steps are measured: the acceptance of drafts depends on it.
const SAMPLE: &str = include_str!("costs/sample.txt");
/// To be raised when the method of measurement changes.
const METHOD: u32 = 8;
/// A program that was built for tests is slower, and not in all alike: its costs are not the
/// other's.
const BUILD: &str = if cfg!(debug_assertions) { "debug" } else { "release" };

/// A file of costs. Where it is given by name, only the costs count.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Kept {
    /// Machine, threads, program, models and their weight types, verifier.
    #[serde(default)]
    of: Vec<String>,
    costs: Costs,
}

/// Models as the cost cache knows them, and the text whose steps are measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CostKey {
    /// The models, their files and weight types.
    models: Vec<String>,
    /// The prompt of the sequence whose steps are measured.
    sample: Vec<Token>,
}

impl CostKey {
    /// The key of loaded models.
    ///
    /// # Errors
    /// A tokenizer that refuses the text whose steps are measured.
    pub fn new(options: &ModelOptions, models: &Models) -> Result<Self> {
        let sample = models.language.tokenizer.encode(SAMPLE.trim_end())?;
        Ok(Self { models: options.identity(models), sample })
    }

    /// The key of steps that a verifier decides, on this machine, of this program.
    fn of_steps(&self, sampling: &Sampling, verifier: &VerifierKind) -> Vec<String> {
        // Where nothing is drawn, verification is hardly any work.
        let decides = if sampling.temperature == 0.0 { "decides greedily" } else { "decides" };
        let version = format!("{}, {BUILD}, costs {METHOD}", env!("CARGO_PKG_VERSION"));
        let threads = format!("{} threads", threads());
        let of = [machine(), threads, version, format!("{verifier} {decides}")];
        of.into_iter().chain(self.models.iter().cloned()).collect()
    }
}

/// The costs of steps that this verifier decides, where target and draft are sampled so: those of
/// `file`; or those that were measured before for these models on this machine; or they are
/// measured now, and stored.
///
/// # Errors
/// A file that holds no costs; failures of the models.
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

/// What is known of the costs of a run's steps.
pub enum CostLookup {
    /// They are in a file, or were measured before.
    Known(Costs),
    /// They are to be measured.
    Pending(Box<PendingCosts>),
}

impl CostLookup {
    /// The costs, measured and stored now if they are not known.
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

/// Costs that are being measured, a part at a time.
pub struct PendingCosts {
    measurement: CostMeasurement,
    sampling: [Sampling; 2],
    verifier: VerifierKind,
    of: Vec<String>,
    place: Option<PathBuf>,
    /// Whether the place is a file of the user's.
    named: bool,
}

/// The costs as [`find_or_measure`] finds them, or how they are measured.
///
/// # Errors
/// A file that holds no costs.
pub fn look_up(
    file: Option<&Path>,
    key: &CostKey,
    engine: &Engine,
    [sampling, of_draft]: [&Sampling; 2],
    verifier: &VerifierKind,
) -> Result<CostLookup> {
    let of = key.of_steps(sampling, verifier);
    let place = file.map(Path::to_owned).or_else(|| place(&of));
    match place.as_deref().filter(|place| place.exists()).map(read) {
        Some(kept) if file.is_some() => return Ok(CostLookup::Known(kept?.costs)),
        Some(Ok(kept)) if kept.of == of => return Ok(CostLookup::Known(kept.costs)),
        _ => {}
    }
    Ok(CostLookup::Pending(Box::new(PendingCosts {
        measurement: CostMeasurement::new(engine, &key.sample),
        sampling: [*sampling, *of_draft],
        verifier: verifier.clone(),
        of,
        place,
        named: file.is_some(),
    })))
}

impl PendingCosts {
    /// Measures the next part, some steps; whether there is another one.
    ///
    /// # Errors
    /// Failures of the models.
    pub fn advance(&mut self, engine: &mut Engine) -> Result<bool> {
        let Self { measurement, sampling: [sampling, of_draft], verifier, .. } = self;
        let mut request = |prompt, tree| {
            let speculation =
                polydraft_engine::Speculation::new(verifier.build()?, PolicyKind::build(&tree)?)?;
            Ok(Request::new(prompt)
                .sampling(*sampling)
                .speculation(speculation.with_sampling(*of_draft))
                .rng(requests::seeded(0)))
        };
        measurement.advance(engine, &mut request).context("measuring what steps cost")
    }

    /// Stores the costs, and returns them. Those of a machine that was busy are measured again next
    /// time.
    ///
    /// # Errors
    /// A file of the user's that cannot be written.
    pub fn finish(self, listener: &dyn Listener) -> Result<Costs> {
        let Self { measurement, of, place, named, .. } = self;
        let kept = Kept { of, costs: measurement.costs() };
        listener.detail(&message![
            "measured what steps cost here, for ",
            OptionName::Tree.with("auto"),
        ]);
        if !named && !measurement.is_quiet() {
            let busy = "the machine was busy meanwhile: it is measured again next time";
            listener.detail(&busy.into());
            return Ok(kept.costs);
        }
        match (place.map(|place| keep(&place, &kept)), named) {
            (Some(written), true) => written?,
            (Some(Ok(())), false) => {}
            _ => listener.detail(&message![
                "the costs cannot be cached: give ",
                OptionName::Costs.with("FILE"),
                ", or a seed gives another output each time",
            ]),
        }
        Ok(kept.costs)
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
                "the clock corrected what steps cost: a seed may give another output from now on";
            listener.detail(&corrected.into());
        }
        let of = key.of_steps(sampling, &speculation.verifier);
        // What cannot be cached is learned anew.
        place(&of).map(|place| keep(&place, &Kept { of, costs: auto.costs.clone() }));
    }
}

/// Where costs of this key are stored, if the user has a cache.
fn place(of: &[String]) -> Option<PathBuf> {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    let name = format!("polydraft/costs/{:016x}.json", hasher.finish());
    Some(polydraft_files::cache_dir()?.join(name))
}

fn read(file: &Path) -> Result<Kept> {
    let text = polydraft_files::read_text(file, polydraft_files::FileKind::RECORD)
        .with_context(|| format!("cannot read the costs {}", file.display()))?;
    let kept: Kept = serde_json::from_str(&text).map_err(|error| {
        let begin = format!("{}: expected costs as ", file.display());
        let end = format!(" writes them where the file is new: {error}");
        Advice(message![begin, OptionName::Costs, end])
    })?;
    let auto = polydraft::policy::Auto { costs: kept.costs.clone(), ..Default::default() };
    PolicyKind::Auto(auto).build().with_context(|| format!("{}", file.display()))?;
    Ok(kept)
}

/// Writes a file that is whole or not there.
fn keep(file: &Path, kept: &Kept) -> Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let write = || -> Result<()> {
        fs::create_dir_all(folder)?;
        let mut new = NamedTempFile::new_in(folder)?;
        new.write_all(serde_json::to_string(kept)?.as_bytes())?;
        new.persist(file)?;
        Ok(())
    };
    write().with_context(|| format!("cannot write the costs {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_costs_are_whole_and_the_newest() {
        let folder = std::env::temp_dir().join(format!("polydraft-costs-{}", std::process::id()));
        let file = folder.join("costs.json");
        let of = |name: &str| Kept { of: vec![name.to_owned()], costs: Costs::default() };
        for kept in [of("1"), of("2")] {
            keep(&file, &kept).unwrap();
            assert_eq!(read(&file).unwrap(), kept);
        }
        // What cannot be read is measured anew, and replaced.
        fs::write(&file, "{").unwrap();
        assert!(read(&file).unwrap_err().to_string().contains("costs.json"));
        keep(&file, &of("3")).unwrap();
        assert_eq!(read(&file).unwrap(), of("3"));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(&folder).unwrap();
    }
}
