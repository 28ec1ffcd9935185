//! Options of models, and the loaded models.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use polydraft_engine::{DrafterKind, Engine};
use polydraft_llama::CacheType;
use polydraft_models::{Precision, is_gguf, is_head};
use polydraft_text::{ChatTemplate, Language, SpecialTokens};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::backend::{Backend, BackendOptions};
use crate::hub::Reference;
use crate::keeper::TableKeeper;
use crate::places::{demo, located, title, weight_bytes};
use crate::self_draft::SelfDraft;
use crate::{Usage, as_text};

/// Which models, their weight types, and their backends. Options that are not given are chosen.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelOptions {
    /// The target: a directory, a GGUF file, or a hub id; none is the demo pair's.
    pub target: Option<String>,
    /// The draft: a model, a draft head, a table of n-grams, `self`, `self:TYPE`, `mtp` or `ngram`.
    /// None is the demo pair's draft where no target is named; else `self` where that helps, or
    /// `ngram`.
    pub draft: Option<String>,
    /// Further drafts, each as `draft` is named but no `self`: each draws a path of its own.
    pub further_drafts: Vec<String>,
    /// A file whose n-grams `ngram` uses too.
    pub corpus: Option<PathBuf>,
    /// A table of n-grams that drafts, and learns from what the target says; it need not be there
    /// yet.
    pub learn: Option<PathBuf>,
    /// Whether n-grams of the sequence are mixed into the draft's distribution; none is for draft
    /// heads and MTP layers.
    pub mix_ngrams: Option<bool>,
    /// Tokens that the draft may propose: how many of the first, or a file that lists them.
    pub draft_vocabulary: Option<String>,
    /// The layers of the target whose inputs a draft head reads.
    pub draft_layers: Option<Vec<usize>>,
    /// The weight type; none is as the file of a GGUF has it, else f32.
    #[serde(with = "as_text")]
    pub dtype: Option<Precision>,
    /// The draft's weight type.
    #[serde(with = "as_text")]
    pub draft_dtype: Option<Precision>,
    /// The folder where quantised copies are cached, or `none`.
    pub copies: Option<PathBuf>,
    /// The type of the KV cache.
    #[serde(with = "as_text")]
    pub cache_type: Option<CacheType>,
    /// Never uses the network.
    pub offline: bool,
    /// How conversations are put to the model, where it is not as the model says.
    pub template: TemplateOptions,
    /// The backends, and the settings of llama.cpp.
    pub backend: BackendOptions,
}

/// What overrides a model's own chat template.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TemplateOptions {
    /// A file with another one, in Jinja.
    pub file: Option<PathBuf>,
    /// Its variables where a conversation says nothing of them.
    pub variables: Map<String, Value>,
    /// Whether it gets the variables that llama.cpp's server gives it: today's date, and the tools
    /// as JSON.
    pub extras: bool,
}

impl TemplateOptions {
    /// The file's text.
    ///
    /// # Errors
    /// A file that cannot be read, or is no template.
    pub(crate) fn read(&self) -> Result<Option<(String, &Path)>> {
        let Some(file) = &self.file else { return Ok(None) };
        let text = polydraft_files::read_text(file, polydraft_files::Kind::SETTINGS)
            .with_context(|| format!("cannot read the chat template {}", file.display()))?;
        // Before anything is loaded.
        ChatTemplate::from_source(&text, SpecialTokens::default(), file)?;
        Ok(Some((text, file)))
    }
}

/// Loaded models.
pub struct Models {
    /// The target and its drafter.
    pub engine: Engine,
    /// The target's tokenizer, chat template and end tokens.
    pub language: Language,
    /// The draft, where it was named.
    pub draft: Option<String>,
    /// What stores the n-grams that are learned, if some are.
    pub learned: Option<TableKeeper>,
}

impl Models {
    /// Stores what was learned, where something is; nothing is stored after that.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn store(&mut self) -> Result<()> {
        self.learned.take().map_or(Ok(()), TableKeeper::close)
    }
}

/// What the demo pair's target is called.
const DEMO_NAME: &str = "target";
/// The draft where none is named and a self-draft would not help: it costs next to nothing.
pub(crate) const FALLBACK: &str = "ngram";

/// The draft that is a layer of the target's own.
pub(crate) const MTP: &str = "mtp";

/// Whether a quantised self-draft is wanted.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Own {
    No,
    RequestParams(SelfDraft),
    IfItHelps(SelfDraft),
}

impl ModelOptions {
    /// What the target is called if nobody says otherwise: as its directory or file.
    pub fn target_name(&self) -> String {
        let Some(target) = &self.target else { return DEMO_NAME.to_owned() };
        let path = std::path::absolute(target).unwrap_or_else(|_| target.into());
        if !path.exists() {
            return Reference::parse(target).map_or_else(|| target.clone(), |id| id.title());
        }
        match path.file_stem().filter(|_| is_gguf(&path)) {
            Some(name) => name.to_string_lossy().into_owned(),
            None => title(&path),
        }
    }

    /// Bytes of the weights of target and draft, as far as they are files here.
    pub fn weight_bytes(&self) -> u64 {
        let demo = demo().ok().map(|demo| demo.join("target"));
        let target = self.target.as_ref().map(PathBuf::from).or(demo);
        let drafts = self.draft.iter().chain(&self.further_drafts).map(PathBuf::from);
        target.into_iter().chain(drafts).map(|path| weight_bytes(&path)).sum()
    }

    /// How many drafts there are.
    pub fn drafts(&self) -> usize {
        1 + self.further_drafts.len()
    }

    /// The same with one draft, of several: options of weights are for those that have some.
    pub(crate) fn with_draft(&self, name: &str) -> Self {
        let mut options = Self { draft: Some(name.to_owned()), ..self.clone() };
        options.further_drafts.clear();
        if DrafterKind::named(name).is_some() {
            (options.draft_dtype, options.draft_vocabulary, options.draft_layers) =
                (None, None, None);
        } else {
            options.corpus = None;
        }
        options
    }

    /// The measured acceptances of the demo pair, if it is used.
    pub fn demo_acceptance(&self) -> Option<PathBuf> {
        let demo_pair = self.target.is_none() && self.draft.is_none() && self.learn.is_none();
        demo_pair.then(|| demo().ok().map(|demo| demo.join("acceptance.json"))).flatten()
    }

    /// How far apart a logit may be when computed in another pass. On the native backend it is the
    /// same to the last bit; llama.cpp's products depend on how many tokens are in a pass.
    pub fn rounding(&self) -> f32 {
        let target = Path::new(self.target.as_deref().unwrap_or_default());
        match self.target_backend(target) {
            Ok(Backend::Llama) => 0.3,
            _ => 1e-3,
        }
    }

    /// The target's backend.
    pub(crate) fn target_backend(&self, path: &Path) -> Result<Backend> {
        let has_head = self.draft.as_deref().is_some_and(|draft| is_head(Path::new(draft)));
        let own = self.draft.as_deref().map(SelfDraft::named).transpose()?.flatten();
        let native = self.dtype.is_some().then_some("--dtype");
        self.backend.of_target(path, native, has_head || own.is_some() || self.has_mtp())
    }

    /// Whether the target's own layer that predicts further tokens drafts for it.
    pub(crate) fn drafts_by_mtp(&self) -> bool {
        self.draft.as_deref() == Some(MTP)
    }

    /// Whether n-grams are mixed into the draft's distribution: a head does not copy. Alone, a
    /// model's own weights copy better than n-grams do.
    pub(crate) fn mixes_ngrams(&self) -> bool {
        let is_head = || {
            let name = self.draft.as_deref();
            let path = name.and_then(|name| located(name).ok());
            self.drafts_by_mtp() || path.is_some_and(|path| is_head(&path))
        };
        self.mix_ngrams.unwrap_or_else(|| self.further_drafts.is_empty() && is_head())
    }

    /// Whether it does, alone or beside others.
    fn has_mtp(&self) -> bool {
        self.draft.iter().chain(&self.further_drafts).any(|draft| draft == MTP)
    }

    /// A draft model's backend.
    pub(crate) fn draft_backend(&self, path: &Path) -> Result<Backend> {
        let native = match () {
            _ if self.draft_dtype.or(self.dtype).is_some() => Some("--dtype or --draft-dtype"),
            _ if self.draft_vocabulary.is_some() => Some("--draft-vocabulary"),
            _ => None,
        };
        self.backend.of_draft(path, native)
    }

    /// Whether a model on llama.cpp drafts.
    pub(crate) fn drafts_on_llama(&self) -> bool {
        self.is_on_llama(&self.draft, |path| self.draft_backend(path))
    }

    /// Whether the target is on llama.cpp.
    pub(crate) fn target_is_on_llama(&self) -> bool {
        self.is_on_llama(&self.target, |path| self.target_backend(path))
    }

    fn is_on_llama(
        &self,
        name: &Option<String>,
        backend: impl Fn(&Path) -> Result<Backend>,
    ) -> bool {
        let place = name.as_deref().and_then(|name| located(name).ok());
        place.is_some_and(|path| matches!(backend(&path), Ok(Backend::Llama)))
    }

    /// The quantised self-draft: if the draft names it, or if no draft is named.
    pub(crate) fn own_copy(&self) -> Result<Own> {
        if self.has_default_draft() && self.corpus.is_none() && self.learn.is_none() {
            return SelfDraft::default().or(self.draft_dtype).map(Own::IfItHelps);
        }
        match self.draft.as_deref().map(SelfDraft::named).transpose()?.flatten() {
            Some(own) => own.or(self.draft_dtype).map(Own::RequestParams),
            None => Ok(Own::No),
        }
    }

    /// Whether no draft is named for a target of the user's own: then it is the quantised
    /// self-draft where that is small enough, else n-grams, which cost nothing.
    pub(crate) fn has_default_draft(&self) -> bool {
        self.target.is_some() && self.draft.is_none()
    }

    /// Whether nothing is said of the draft at all, so that it may be a layer of the target's own.
    pub(crate) fn says_nothing_of_drafts(&self) -> bool {
        self.has_default_draft() && self.draft_dtype.is_none() && self.corpus.is_none()
    }

    /// The drafter, if it is no model.
    pub(crate) fn drafter(&self) -> Option<DrafterKind> {
        let fallback = self.has_default_draft().then_some(FALLBACK);
        DrafterKind::named(self.draft.as_deref().or(fallback)?)
    }

    /// The weight type of a model.
    pub(crate) fn precision(&self, path: &Path) -> Precision {
        self.dtype.unwrap_or(default_precision(path))
    }

    /// The native backend's type of the KV cache.
    pub(crate) fn native_cache(&self) -> Result<polydraft_models::CacheType> {
        match self.cache_type {
            None | Some(CacheType::F32) => Ok(polydraft_models::CacheType::F32),
            Some(CacheType::F16) => Ok(polydraft_models::CacheType::F16),
            // The target's type then; a draft on this backend has its own.
            Some(_) if self.target_is_on_llama() => Ok(polydraft_models::CacheType::F32),
            Some(other) => Err(Usage::error(format_args!(
                "--cache-type {other} is llama.cpp's: expected f32 or f16 for a model on the \
                 native backend"
            ))),
        }
    }
}

/// The default weight type of a model.
pub fn default_precision(path: &Path) -> Precision {
    if is_gguf(path) { Precision::File } else { Precision::F32 }
}

/// The error of a model that could not be loaded, with the option that helps.
pub fn advise(error: polydraft_models::Error) -> anyhow::Error {
    use polydraft_models::Error;
    match &error {
        Error::Memory { fits, .. } if !fits.is_empty() => anyhow!("{error}; choose with --dtype"),
        Error::Memory { .. } => anyhow!("{error}; no --dtype is small enough"),
        _ => error.into(),
    }
}
