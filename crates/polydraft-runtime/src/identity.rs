//! Identities of models: in the cost cache, and in records that leave the machine.

use std::path::{Path, PathBuf};

use polydraft_engine::DrafterKind;
use polydraft_llama::CacheType;
use polydraft_models::Precision;

use crate::models::{MTP, ModelOptions, Models};
use crate::places::{demo, located, title, weight_bytes};
use crate::self_draft::SelfDraft;

impl ModelOptions {
    /// The models, their paths, sizes and weight types: where it is the same, so are the costs of
    /// passes.
    pub(crate) fn identity(&self, models: &Models) -> Vec<String> {
        let [target, draft] =
            self.named(models, &|place| without_links(place).display().to_string());
        let words = self.draft_vocabulary.clone().unwrap_or_else(|| "all tokens".to_owned());
        let mut all = vec![target, draft, words, stored(self.dtype), stored(self.draft_dtype)];
        all.extend(self.corpus.as_ref().map(|file| format!("quotes {}", file.display())));
        all.extend(self.learn.as_ref().map(|file| format!("learns {}", file.display())));
        all.extend(self.draft_layers.as_ref().map(|layers| format!("reads layers {layers:?}")));
        all.extend(self.mixes_ngrams().then(|| "n-grams mixed in".to_owned()));
        all.extend(self.rounded_cache());
        all.extend(self.on_llama());
        all
    }

    /// Which of target and draft llama.cpp computes, and how.
    fn on_llama(&self) -> Vec<String> {
        let backends = [("target", self.target_is_on_llama()), ("draft", self.drafts_on_llama())];
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
        let [target, draft] = self.named(models, &shown);
        let words = self
            .draft_vocabulary
            .as_ref()
            .map_or(String::new(), |words| format!(", tokens {words}"));
        let cache = self.rounded_cache().map_or(String::new(), |cache| format!(", {cache}"));
        let mixed = if self.mixes_ngrams() { ", n-grams mixed in" } else { "" };
        [
            format!("{target}, {}{cache}", stored(self.dtype)),
            format!("{draft}, {}{words}{mixed}", stored(self.draft_dtype)),
        ]
    }

    /// Target and draft, with how large they are; `show` says where.
    fn named(&self, models: &Models, show: &dyn Fn(&Path) -> String) -> [String; 2] {
        let of = |name: Option<&str>, role: &str| match name {
            None if role == "draft" && self.has_default_draft() => {
                models.draft.clone().unwrap_or_else(|| "none".to_owned())
            }
            Some(name)
                if DrafterKind::named(name).is_some()
                    || role == "draft" && name == MTP
                    || matches!(SelfDraft::named(name), Ok(Some(_))) =>
            {
                // With the type of a copy, which its name may leave open.
                models.draft.clone().unwrap_or_else(|| name.to_owned())
            }
            name => {
                let place = name.map_or_else(|| demo().map(|demo| demo.join(role)), located);
                let place = place.unwrap_or_else(|_| role.into());
                format!("{} of {} bytes", show(&place), weight_bytes(&place))
            }
        };
        let mut draft = of(self.draft.as_deref(), "draft");
        for further in &self.further_drafts {
            draft = format!("{draft} + {further}");
        }
        [of(self.target.as_deref(), "target"), draft]
    }
}

fn without_links(place: &Path) -> PathBuf {
    place.canonicalize().unwrap_or_else(|_| place.to_owned())
}

/// A weight type, in words.
fn stored(dtype: Option<Precision>) -> String {
    dtype.map_or_else(|| "as it comes".to_owned(), |dtype| dtype.to_string())
}
