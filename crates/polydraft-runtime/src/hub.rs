//! Models of the hub, by id.
//!
//! The cache (`HF_HOME`, `HF_HUB_CACHE`), the token (`HF_TOKEN`, or the one that the hub's tools
//! stored) and the address (`HF_ENDPOINT`) are those of the hub's own tools, which share what is
//! downloaded. A download that broke off goes on where it was.

use std::path::PathBuf;

use anyhow::{Result, anyhow, ensure};

mod cache;
mod choose;
mod client;
mod download;
mod reference;

use cache::Repository;
use choose::choose;
use client::{Client, Failure, Listing, Remote};
use download::{Download, size};
pub use reference::Reference;

use crate::listen::Listener;
use crate::message::{OptionName, message};
use crate::usage::Advice;

/// The folder or the GGUF file of a model in the cache, downloaded if need be; `offline` uses no
/// network.
///
/// # Errors
/// Models that are not there or not given to everyone; files that cannot be written; offline, what
/// was not downloaded before.
pub fn fetch(of: &Reference, offline: bool, listener: &dyn Listener) -> Result<PathBuf> {
    let cache = Repository::new(&of.repository)?;
    if offline {
        return kept(of, &cache).ok_or_else(|| {
            let missing = not_here(of, "it was not downloaded before; leave out ");
            let advice = message![missing, OptionName::Offline, " (and HF_HUB_OFFLINE) to do so"];
            Advice(advice).into()
        });
    }
    let client = Client::new()?;
    match client.list(of) {
        Ok(listing) => {
            let fetched = download(of, &cache, &client, &listing, listener);
            fetched.map_err(|error| anyhow!("{of}, a model of {}: {error:#}", client.address()))
        }
        Err(failure @ Failure::Unreachable(_)) => match kept(of, &cache) {
            Some(path) => {
                let note = format!("note: {failure}; {of} is taken as it was downloaded before");
                listener.note(&note.into());
                Ok(path)
            }
            None => Err(refused(of, &failure)),
        },
        Err(failure) => Err(refused(of, &failure)),
    }
}

/// What was downloaded before.
fn kept(of: &Reference, cache: &Repository) -> Option<PathBuf> {
    let commit = cache.commit(&of.revision)?;
    let files = cache.files(&commit);
    let paths: Vec<_> = files.iter().map(String::as_str).collect();
    let choice = choose(&paths, of.file.as_deref()).ok()?;
    opened(cache, &commit, choice.gguf).ok()
}

fn opened(cache: &Repository, commit: &str, gguf: Option<&str>) -> Result<PathBuf> {
    gguf.map_or_else(|| Ok(cache.snapshot(commit)), |path| cache.file(commit, path))
}

fn download(
    of: &Reference,
    cache: &Repository,
    client: &Client,
    listing: &Listing,
    listener: &dyn Listener,
) -> Result<PathBuf> {
    let commit = &listing.commit;
    ensure!(cache::is_name(commit), "the hub says a commit {commit:?}, which is none");
    let paths: Vec<_> = listing.files.iter().map(|file| file.path.as_str()).collect();
    let choice = choose(&paths, of.file.as_deref())?;
    let mut missing = Vec::new();
    for file in listing.files.iter().filter(|file| choice.files.contains(&file.path.as_str())) {
        if !cache.file(commit, &file.path)?.exists() {
            missing.push(client.resolve(of, commit, file).map_err(|failure| anyhow!("{failure}"))?);
        }
    }
    if !missing.is_empty() {
        // The large ones first, so that the last one does not come alone.
        missing.sort_by_key(|file: &Remote| std::cmp::Reverse(file.size));
        let download = Download { client, cache, of, commit, files: &missing };
        let what = match missing.len() {
            1 => missing[0].path.clone(),
            files => format!("{files} files"),
        };
        let (size, folder) = (size(download.bytes()), cache.folder().display());
        listener.note(&format!("downloading {of}: {what}, {size}, to {folder}").into());
        download.run(listener)?;
    }
    cache.keep_commit(&of.revision, commit)?;
    opened(cache, commit, choice.gguf)
}

fn not_here(of: &Reference, why: impl std::fmt::Display) -> String {
    format!("{of}: there is no such folder here, and as a model of the hub: {why}")
}

fn refused(of: &Reference, failure: &Failure) -> anyhow::Error {
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
    anyhow!(not_here(of, format_args!("{failure}\n{advice}")))
}
