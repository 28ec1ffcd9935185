//! Identities of models, for the cost cache and for records that leave the machine.

use std::path::{Path, PathBuf};

use polydraft_models::Precision;

use crate::backend::{BackendKind, CacheType};
use crate::draft::{Corpus, Draft, Ngrams};
use crate::model_files::{display_name, weight_bytes};
use crate::models::{ModelOptions, Models};
use crate::plan::draft_backend;
use crate::remote;

impl ModelOptions {
    /// Returns the models, their paths, sizes and weight types. Equal identities have equal costs.
    pub(crate) fn identity(&self, models: &Models) -> Vec<String> {
        let [target, draft] = names(models, &|path| without_links(path).display().to_string());
        let tokens = self.draft_vocabulary.clone().unwrap_or_else(|| "all tokens".to_owned());
        let mut all =
            vec![target, draft, tokens, dtype_name(self.dtype), dtype_name(self.draft_dtype)];
        all.extend(self.corpus.as_ref().map(|file| format!("quotes {}", file.display())));
        all.extend(self.learn.as_ref().map(|file| format!("learns {}", file.display())));
        all.extend(self.draft_layers.as_ref().map(|layers| format!("reads layers {layers:?}")));
        all.extend(models.mixes_ngrams.then(|| "n-grams mixed in".to_owned()));
        all.extend(self.rounded_cache());
        all.extend(self.on_llama(models));
        all
    }

    /// Returns which of the two models, target and draft, run on llama.cpp, with its settings.
    fn on_llama(&self, models: &Models) -> Vec<String> {
        let is_on_llama = |draft: &Draft| match draft {
            Draft::Model(files) => matches!(draft_backend(self, files), Ok(BackendKind::Llama)),
            _ => false,
        };
        let drafts = models.loaded_draft.components().iter().any(is_on_llama);
        let backends = [("target", models.resolved_target.is_on_llama()), ("draft", drafts)];
        let on_llama = backends.into_iter().filter(|(_, on_llama)| *on_llama);
        on_llama.map(|(role, _)| format!("{role} on {}", self.backend.identity())).collect()
    }

    /// Returns the KV cache type, if it is less precise than f32.
    fn rounded_cache(&self) -> Option<String> {
        self.cache_type
            .filter(|kind| *kind != CacheType::F32)
            .map(|kind| format!("KV cache in {kind}"))
    }

    /// Returns target and draft for records that leave this machine, without their folders.
    pub fn ids(&self, models: &Models) -> [String; 2] {
        // In the hub's cache a file is a link to a blob with a meaningless name.
        let name = |path: &Path| match path.is_file() {
            _ if remote::is_url(&path.to_string_lossy()) => "a remote draft".to_owned(),
            true => display_name(path),
            false => display_name(&without_links(path)),
        };
        let [target, draft] = names(models, &name);
        let tokens = self
            .draft_vocabulary
            .as_ref()
            .map_or(String::new(), |tokens| format!(", tokens {tokens}"));
        let cache = self.rounded_cache().map_or(String::new(), |cache| format!(", {cache}"));
        let mixed = if models.mixes_ngrams { ", n-grams mixed in" } else { "" };
        [
            format!("{target}, {}{cache}", dtype_name(self.dtype)),
            format!("{draft}, {}{tokens}{mixed}", dtype_name(self.draft_dtype)),
        ]
    }
}

/// Returns target and draft with their sizes; `show` formats a path.
fn names(models: &Models, show: &dyn Fn(&Path) -> String) -> [String; 2] {
    let sized = |path: &Path| format!("{} of {} bytes", show(path), weight_bytes(path));
    let draft = |draft: &Draft| match (draft, draft.files()) {
        (Draft::Ngrams(Ngrams { corpus: Some(Corpus::Table(file)), .. }), _) => sized(file),
        (_, Some(files)) => sized(&files.path),
        // Its address stays on this machine.
        (Draft::Remote(url), _) => show(Path::new(url)),
        // Includes the weight type of a self-draft, which the user may have left out.
        (other, None) => other.to_string(),
    };
    let drafts: Vec<String> = models.loaded_draft.components().iter().map(draft).collect();
    [sized(&models.resolved_target.path), drafts.join(" + ")]
}

fn without_links(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Returns the name of a weight type.
fn dtype_name(dtype: Option<Precision>) -> String {
    dtype.map_or_else(|| "as it comes".to_owned(), |dtype| dtype.to_string())
}
