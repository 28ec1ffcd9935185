//! What passes cost on this machine: measured once for a pair of models, and kept, so that trees
//! that choose themselves choose alike, and a seed gives the same text again.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use polydraft::coupling::RuleRegistry;
use polydraft::policy::Costs;
use polydraft::{PolicyKind, Sampling, VerifierKind};
use polydraft_engine::Request;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::machine::{machine, threads};
use crate::models::{ModelOptions, Models};
use crate::{Listener, Speculation, requests};

/// What the text begins with whose steps are measured: how good drafts are depends on that.
const SAMPLE: &str = include_str!("costs/sample.txt");

/// To be raised when costs are measured in another way.
const METHOD: u32 = 5;

/// A program that was built for tests is slower, and not in all alike: its costs are not the
/// other's.
const BUILD: &str = if cfg!(debug_assertions) { "debug" } else { "release" };

/// A file of costs. Where it is given by name, only the costs count; in the cache, all of it must
/// fit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Measured {
    machine: String,
    threads: usize,
    /// Of the program that measured.
    version: String,
    /// Models, and how they are held.
    models: Vec<String>,
    /// What decides.
    #[serde(default)]
    verifier: String,
    costs: Costs,
}

/// Gives an adaptive tree the costs that it chooses by, as [`find`] finds them.
///
/// # Errors
/// A file that holds no costs; failures of the models.
pub fn settle<R: RuleRegistry>(
    file: Option<&Path>,
    options: &ModelOptions,
    models: &mut Models,
    sampling: &Sampling,
    speculation: &mut Speculation<R>,
    listener: &dyn Listener,
) -> Result<()> {
    let Speculation { tree, sampling: of_draft, verifier } = speculation;
    if let Some(auto) = tree.auto_mut() {
        auto.costs = find(file, options, models, [sampling, of_draft], verifier, listener)?;
    }
    Ok(())
}

/// The costs of steps that this verifier decides, where target and draft are sampled so: those of
/// `file`; or those that were measured before for these models on this machine; or they are
/// measured now, and kept.
///
/// # Errors
/// A file that holds no costs; failures of the models.
pub fn find<R: RuleRegistry>(
    file: Option<&Path>,
    options: &ModelOptions,
    models: &mut Models,
    [sampling, of_draft]: [&Sampling; 2],
    verifier: &VerifierKind<R>,
    listener: &dyn Listener,
) -> Result<Costs> {
    if let Some(file) = file.filter(|file| file.exists()) {
        return Ok(read(file)?.costs);
    }
    let mut measured = Measured {
        machine: machine(),
        threads: threads(),
        version: format!("{}, {BUILD}, costs {METHOD}", env!("CARGO_PKG_VERSION")),
        models: options.identity(models),
        // Where nothing is drawn, laws are single tokens and verification is hardly any work.
        verifier: if sampling.temperature == 0.0 {
            format!("{verifier}, greedy")
        } else {
            verifier.to_string()
        },
        costs: Costs::default(),
    };
    let kept = if file.is_some() { None } else { place(&measured) };
    if let Some(before) = kept.as_deref().and_then(|kept| read(kept).ok())
        && (Measured { costs: before.costs.clone(), ..measured.clone() }) == before
    {
        return Ok(before.costs);
    }
    let mut request = |prompt, tree| {
        let speculation =
            polydraft_engine::Speculation::new(verifier.build()?, PolicyKind::build(&tree)?)?;
        Ok(Request::new(prompt)
            .sampling(*sampling)
            .speculation(speculation.with_sampling(*of_draft))
            .rng(requests::seeded(0)))
    };
    let text = models.language.text.encode(SAMPLE.trim_end())?;
    let found = models.engine.costs(&text, &mut request).context("measuring what steps cost")?;
    if found.busy {
        listener.note(
            "note: the machine was busy while it was measured what passes cost: --tree auto may \
             choose badly until the \
             file named below is removed",
        );
    }
    measured.costs = found.costs;
    if let Some(file) = file {
        keep(file, &measured)
            .with_context(|| format!("cannot write the costs {}", file.display()))?;
        listener.note(&format!(
            "note: measured what passes cost here, once, for --tree auto: {}",
            file.display()
        ));
        return Ok(measured.costs);
    }
    let stays = "the same seed gives the same text as long as these costs stay";
    let keep_in = |kept: &Path| {
        kept.parent().map_or(Ok(()), fs::create_dir_all)?;
        keep(kept, &measured)
    };
    match kept.map(|kept| (keep_in(&kept), kept)) {
        Some((Ok(()), kept)) => {
            // Another program may have been faster: all go by the same.
            measured.costs = read(&kept)?.costs;
            listener.note(&format!(
                "note: measured what passes cost here, once, for --tree auto; {stays}: {}",
                kept.display()
            ));
        }
        _ => listener.note(&format!(
            "note: measured what passes cost here, for --tree auto; there is no cache folder to \
             keep it, so give \
             --costs FILE: {stays}"
        )),
    }
    Ok(measured.costs)
}

fn read(file: &Path) -> Result<Measured> {
    let text = polydraft_files::read_text(file, polydraft_files::Kind::RECORD)
        .with_context(|| format!("cannot read the costs {}", file.display()))?;
    let measured: Measured = serde_json::from_str(&text).with_context(|| {
        format!("{}: expected costs as --costs writes them where the file is new", file.display())
    })?;
    let auto = polydraft::policy::Auto { costs: measured.costs.clone(), ..Default::default() };
    PolicyKind::Auto(auto).build().with_context(|| format!("{}", file.display()))?;
    Ok(measured)
}

/// Where costs are kept, if the user has a cache.
pub fn folder() -> Option<PathBuf> {
    Some(dirs::cache_dir()?.join("polydraft/costs"))
}

/// Where costs of this kind are kept.
fn place(measured: &Measured) -> Option<PathBuf> {
    let mut hasher = DefaultHasher::new();
    (&measured.machine, measured.threads, &measured.version, &measured.models, &measured.verifier)
        .hash(&mut hasher);
    Some(folder()?.join(format!("{:016x}.json", hasher.finish())))
}

/// Writes a file that is whole or not there. One that is there by now stays if it can be read.
fn keep(file: &Path, measured: &Measured) -> Result<()> {
    let folder =
        file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if file.exists() && read(file).is_err() {
        fs::remove_file(file)?;
    }
    let mut new = NamedTempFile::new_in(folder)?;
    new.write_all(serde_json::to_string(measured)?.as_bytes())?;
    match new.persist_noclobber(file) {
        // The first one counts.
        Err(error) if error.error.kind() != ErrorKind::AlreadyExists => Err(error.error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_costs_count() {
        let folder = std::env::temp_dir().join(format!("polydraft-costs-{}", std::process::id()));
        let file = folder.join("costs.json");
        fs::create_dir_all(&folder).unwrap();
        let of = |threads| Measured {
            machine: "m".to_owned(),
            threads,
            version: "v".to_owned(),
            models: vec!["t".to_owned()],
            verifier: "block".to_owned(),
            costs: Costs::default(),
        };
        keep(&file, &of(1)).unwrap();
        keep(&file, &of(2)).unwrap();
        assert_eq!(read(&file).unwrap(), of(1));
        // What cannot be read is replaced.
        fs::write(&file, "{").unwrap();
        assert!(read(&file).unwrap_err().to_string().contains("costs.json"));
        keep(&file, &of(3)).unwrap();
        assert_eq!(read(&file).unwrap(), of(3));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(&folder).unwrap();
    }
}
