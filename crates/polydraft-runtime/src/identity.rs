//! Identities of models: in the cost cache, and in records that leave the machine.

use std::path::{Path, PathBuf};

use polydraft_models::Precision;

use crate::backend::{BackendKind, CacheType};
use crate::draft::{Corpus, Draft, Ngrams};
use crate::model_files::{title, weight_bytes};
use crate::models::{ModelOptions, Models};
use crate::plan::draft_backend;

impl ModelOptions {
    /// The models, their paths, sizes and weight types: where it is the same, so are the costs of
    /// passes.
    pub(crate) fn identity(&self, models: &Models) -> Vec<String> {
        let [target, draft] = named(models, &|place| without_links(place).display().to_string());
        let tokens = self.draft_vocabulary.clone().unwrap_or_else(|| "all tokens".to_owned());
        let mut all = vec![target, draft, tokens, stored(self.dtype), stored(self.draft_dtype)];
        all.extend(self.corpus.as_ref().map(|file| format!("quotes {}", file.display())));
        all.extend(self.learn.as_ref().map(|file| format!("learns {}", file.display())));
        all.extend(self.draft_layers.as_ref().map(|layers| format!("reads layers {layers:?}")));
        all.extend(models.mixes_ngrams.then(|| "n-grams mixed in".to_owned()));
        all.extend(self.rounded_cache());
        all.extend(self.on_llama(models));
        all
    }

    /// Which of target and draft llama.cpp computes, and how.
    fn on_llama(&self, models: &Models) -> Vec<String> {
        let is_on_llama = |draft: &Draft| match draft {
            Draft::Model(files) => matches!(draft_backend(self, files), Ok(BackendKind::Llama)),
            _ => false,
        };
        let drafts = models.loaded_draft.each().iter().any(is_on_llama);
        let backends = [("target", models.resolved_target.is_on_llama()), ("draft", drafts)];
        let on_llama = backends.into_iter().filter(|(_, on_llama)| *on_llama);
        on_llama.map(|(role, _)| format!("{role} on {}", self.backend.identity())).collect()
    }

    /// The type of the KV cache, where it is not as it is computed.
    fn rounded_cache(&self) -> Option<String> {
        self.cache_type
            .filter(|kind| *kind != CacheType::F32)
            .map(|kind| format!("KV cache in {kind}"))
    }

    /// Target and draft for records that leave this machine: without their folders.
    pub fn ids(&self, models: &Models) -> [String; 2] {
        // In the hub's cache a file is a link to contents whose name says nothing.
        let shown = |place: &Path| match place.is_file() {
            true => title(place),
            false => title(&without_links(place)),
        };
        let [target, draft] = named(models, &shown);
        let tokens = self
            .draft_vocabulary
            .as_ref()
            .map_or(String::new(), |tokens| format!(", tokens {tokens}"));
        let cache = self.rounded_cache().map_or(String::new(), |cache| format!(", {cache}"));
        let mixed = if models.mixes_ngrams { ", n-grams mixed in" } else { "" };
        [
            format!("{target}, {}{cache}", stored(self.dtype)),
            format!("{draft}, {}{tokens}{mixed}", stored(self.draft_dtype)),
        ]
    }
}

/// Target and draft, with how large they are; `show` writes a place.
fn named(models: &Models, show: &dyn Fn(&Path) -> String) -> [String; 2] {
    let sized = |place: &Path| format!("{} of {} bytes", show(place), weight_bytes(place));
    let draft = |draft: &Draft| match (draft, draft.files()) {
        (Draft::Ngrams(Ngrams { corpus: Some(Corpus::Table(file)), .. }), _) => sized(file),
        (_, Some(files)) => sized(&files.path),
        // With the type of a copy, which its name may leave open.
        (other, None) => other.to_string(),
    };
    let drafts: Vec<String> = models.loaded_draft.each().iter().map(draft).collect();
    [sized(&models.resolved_target.path), drafts.join(" + ")]
}

fn without_links(place: &Path) -> PathBuf {
    place.canonicalize().unwrap_or_else(|_| place.to_owned())
}

/// A weight type, in words.
fn stored(dtype: Option<Precision>) -> String {
    dtype.map_or_else(|| "as it comes".to_owned(), |dtype| dtype.to_string())
}
