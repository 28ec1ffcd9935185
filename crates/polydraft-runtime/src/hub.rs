//! Models of the hub, by id.
//!
//! The hub's own crate does the work and uses its usual cache (`HF_HOME`), token (`HF_TOKEN`, or
//! the one that its tools stored) and address (`HF_ENDPOINT`). A download that broke off goes on
//! with the files that are missing.

use std::path::PathBuf;
use std::sync::Mutex;

use anyhow::{Result, anyhow};
use hf_hub::progress::{DownloadEvent, ProgressEvent, ProgressHandler};
use hf_hub::{HFClient, HFError};
use indicatif::{ProgressBar, ProgressStyle};

/// What a model needs, and nothing in unsupported formats.
const FILES: [&str; 9] = [
    "*.safetensors",
    "*.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer*.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
    "{vocab.json,merges.txt}",
];

/// What those patterns match besides: all weights once more, as Mistral's own programs read them,
/// and folders for other programs.
const UNREAD: [&str; 3] = ["consolidated*", "*/*.safetensors*", "*/*.json"];

/// Where some draft heads have their weights; of models with both, it is the same once more.
const PICKLE: &str = "pytorch_model.bin";

/// The tokenizer of models of Mistral's without any other.
const TEKKEN: &str = "tekken.json";

/// The folder of a model in the cache, downloaded if need be; `offline` uses no network.
pub fn fetch(id: &str, offline: bool) -> Result<PathBuf> {
    let folder = snapshot(id, offline, &FILES)?;
    if !["tokenizer.json", "vocab.json"].iter().any(|name| folder.join(name).exists()) {
        // Whoever reads the tokenizer says what is missing.
        let _ = snapshot(id, offline, &[TEKKEN]);
    }
    let files = std::fs::read_dir(&folder)?.flatten();
    match files
        .map(|file| file.path())
        .any(|path| path.extension().is_some_and(|end| end == "safetensors"))
    {
        true => Ok(folder),
        false => snapshot(id, offline, &[PICKLE]).or(Ok(folder)),
    }
}

fn snapshot(id: &str, offline: bool, files: &[&str]) -> Result<PathBuf> {
    let (name, revision) = match id.split_once('@') {
        Some((name, revision)) => (name, Some(revision.to_owned())),
        None => (id, None),
    };
    let (owner, model) = hf_hub::split_id(name);
    let failed = |e: HFError| explain(id, offline, e);
    let owned =
        |patterns: &[&str]| patterns.iter().map(|file| (*file).to_owned()).collect::<Vec<_>>();
    let client = HFClient::builder().retry_max_attempts(2).build_sync().map_err(failed)?;
    let snapshot = client
        .model(owner, model)
        .snapshot_download()
        .maybe_revision(revision)
        .allow_patterns(owned(files))
        .ignore_patterns(owned(&UNREAD))
        .local_files_only(offline)
        .progress(Bar::new(id))
        .send();
    snapshot.map_err(failed)
}

fn explain(id: &str, offline: bool, error: HFError) -> anyhow::Error {
    let advice = match &error {
        HFError::LocalEntryNotFound { .. } if offline => {
            "it was not downloaded before; leave out --offline (and HF_HUB_OFFLINE) to do so"
        }
        HFError::RepoNotFound { .. } | HFError::AuthRequired { .. } | HFError::Forbidden { .. } => {
            "if the id is right, the model may ask for a login: put your token into HF_TOKEN, and \
             accept the model's terms \
             on its page"
        }
        HFError::RevisionNotFound { .. } => "the name after @ must be a branch, a tag or a commit",
        _ => {
            "without a network, use --offline with a model that was downloaded before, or download \
             it elsewhere and give \
             its directory"
        }
    };
    anyhow!("{id}: there is no such folder here, and as a model of the hub: {error}\n{advice}")
}

/// Bytes of all files together.
struct Bar {
    bar: ProgressBar,
    files: Mutex<std::collections::HashMap<String, u64>>,
}

impl Bar {
    fn new(id: &str) -> Self {
        let bar = ProgressBar::hidden();
        if let Ok(style) =
            ProgressStyle::with_template("{msg} [{bar:30}] {bytes}/{total_bytes}, {eta} left")
        {
            bar.set_style(style);
        }
        bar.set_message(id.to_owned());
        Self { bar, files: Mutex::default() }
    }
}

impl ProgressHandler for Bar {
    fn on_progress(&self, event: &ProgressEvent) {
        let ProgressEvent::Download(event) = event else { return };
        match event {
            DownloadEvent::Start { total_bytes, .. } if *total_bytes > 0 => {
                self.bar.set_length(*total_bytes);
                // Shows itself only at a terminal.
                self.bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
            }
            DownloadEvent::Progress { files } => {
                let Ok(mut all) = self.files.lock() else { return };
                all.extend(files.iter().map(|f| (f.filename.clone(), f.bytes_completed)));
                self.bar.set_position(all.values().sum());
            }
            DownloadEvent::AggregateProgress { bytes_completed, .. } => {
                self.bar.set_position(*bytes_completed)
            }
            DownloadEvent::Complete => self.bar.finish_and_clear(),
            DownloadEvent::Start { .. } => {}
        }
    }
}
