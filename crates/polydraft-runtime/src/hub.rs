//! Models of the Hugging Face hub, by id.
//!
//! The cache (`HF_HOME`, `HF_HUB_CACHE`), the token (`HF_TOKEN`, or the one stored by the hub's
//! tools) and the address (`HF_ENDPOINT`) are those of the hub's own tools, which share the
//! downloads. Interrupted downloads are resumed.

use std::path::PathBuf;

use anyhow::{Result, anyhow, ensure};

mod cache;
mod choose;
mod client;
mod download;
mod reference;

use cache::Repository;
use choose::choose;
use client::{Client, Failure, Listing, RemoteFile};
use download::{Download, size};
pub use reference::Reference;

use crate::listen::Listener;
use crate::message::{OptionName, message};
use crate::usage::Advice;

/// Returns the folder or the GGUF file of a model in the cache, downloading it if necessary;
/// `offline` uses no network.
///
/// # Errors
/// Models that do not exist or need a login; files that cannot be written; offline, a model that
/// was not downloaded before.
pub fn fetch(reference: &Reference, offline: bool, listener: &dyn Listener) -> Result<PathBuf> {
    let cache = Repository::new(&reference.repository)?;
    if offline {
        return downloaded(reference, &cache).ok_or_else(|| {
            let missing = not_found(reference, "it was not downloaded before; leave out ");
            let advice = message![missing, OptionName::Offline, " (and HF_HUB_OFFLINE) to do so"];
            Advice(advice).into()
        });
    }
    let client = Client::new()?;
    match client.list(reference) {
        Ok(listing) => {
            let fetched = download(reference, &cache, &client, &listing, listener);
            fetched
                .map_err(|error| anyhow!("{reference}, a model of {}: {error:#}", client.address()))
        }
        Err(failure @ Failure::Unreachable(_)) => match downloaded(reference, &cache) {
            Some(path) => {
                let note =
                    format!("note: {failure}; using {reference} as it was downloaded before");
                listener.note(&note.into());
                Ok(path)
            }
            None => Err(explain_failure(reference, &failure)),
        },
        Err(failure) => Err(explain_failure(reference, &failure)),
    }
}

/// Returns the path of a model that was downloaded before.
fn downloaded(reference: &Reference, cache: &Repository) -> Option<PathBuf> {
    let commit = cache.commit(&reference.revision)?;
    let files = cache.files(&commit);
    let paths: Vec<_> = files.iter().map(String::as_str).collect();
    let choice = choose(&paths, reference.file.as_deref()).ok()?;
    model_path(cache, &commit, choice.gguf).ok()
}

fn model_path(cache: &Repository, commit: &str, gguf: Option<&str>) -> Result<PathBuf> {
    gguf.map_or_else(|| Ok(cache.snapshot(commit)), |path| cache.file(commit, path))
}

fn download(
    reference: &Reference,
    cache: &Repository,
    client: &Client,
    listing: &Listing,
    listener: &dyn Listener,
) -> Result<PathBuf> {
    let commit = &listing.commit;
    ensure!(cache::is_name(commit), "the hub returned an invalid commit {commit:?}");
    let paths: Vec<_> = listing.files.iter().map(|file| file.path.as_str()).collect();
    let choice = choose(&paths, reference.file.as_deref())?;
    let mut missing = Vec::new();
    for file in listing.files.iter().filter(|file| choice.files.contains(&file.path.as_str())) {
        if !cache.file(commit, &file.path)?.exists() {
            missing.push(
                client.resolve(reference, commit, file).map_err(|failure| anyhow!("{failure}"))?,
            );
        }
    }
    if !missing.is_empty() {
        // The largest first, so that downloads end at about the same time.
        missing.sort_by_key(|file: &RemoteFile| std::cmp::Reverse(file.size));
        let download = Download { client, cache, reference, commit, files: &missing };
        let what = match missing.len() {
            1 => missing[0].path.clone(),
            files => format!("{files} files"),
        };
        let (size, folder) = (size(download.bytes()), cache.folder().display());
        listener.note(&format!("downloading {reference}: {what}, {size}, to {folder}").into());
        download.run(listener)?;
    }
    cache.store_commit(&reference.revision, commit)?;
    model_path(cache, commit, choice.gguf)
}

fn not_found(reference: &Reference, why: impl std::fmt::Display) -> String {
    format!("{reference}: not a local folder, and as a model of the hub: {why}")
}

fn explain_failure(reference: &Reference, failure: &Failure) -> anyhow::Error {
    let advice = match failure {
        Failure::Unreachable(_) => {
            "without a network, use a model that was downloaded before, or download it elsewhere \
             and give its directory"
        }
        Failure::Refused { code, .. } if code == "RevisionNotFound" => {
            "the name after @ must be a branch, a tag or a commit"
        }
        Failure::Refused { .. } => {
            "if the id is right, the model may ask for a login: put your token into HF_TOKEN, and \
             accept the model's terms on its page"
        }
    };
    anyhow!(not_found(reference, format_args!("{failure}\n{advice}")))
}
