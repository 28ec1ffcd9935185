//! Options of models, and the loaded models.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use polydraft::policy::Costs;
use polydraft_engine::{Engine, Model};
use polydraft_models::{Precision, is_gguf};
use polydraft_text::{ChatTemplate, Language, SpecialTokens};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::backend::{BackendOptions, CacheType};
use crate::draft::{Draft, NONE};
use crate::hub::Reference;
use crate::listen::Silent;
use crate::message::{OptionName, message};
use crate::model_files::{demo_folder, display_name, weight_bytes};
use crate::serde_display;
use crate::table_saver::TableSaver;
use crate::target::ResolvedTarget;
use crate::usage::{Advice, Usage};

/// Models of a run, with their weight types and backends. Missing options get defaults.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelOptions {
    /// Target: a directory, a GGUF file, or a hub id; `None` is the demo pair's.
    pub target: Option<String>,
    /// Drafts, each a model, a draft head, a table of n-grams, `self`, `self:TYPE`, `mtp`, `ngram`,
    /// or, alone, `none`. Several drafts each draw their own path; `self` must be the first. If
    /// empty, a default is chosen: the demo pair's draft without a target, otherwise a head that
    /// lies beside the target, `mtp` if the target has such a layer, `self` if it is expected to
    /// pay within the output, or `ngram`.
    pub drafts: Vec<String>,
    /// File whose n-grams `ngram` uses too.
    pub corpus: Option<PathBuf>,
    /// Table of n-grams that drafts and learns from the target's output; created if missing.
    pub learn: Option<PathBuf>,
    /// Whether n-grams of the sequence are mixed into the draft's distribution; by default only for
    /// draft heads and MTP layers.
    pub mix_ngrams: Option<bool>,
    /// Maximum number of tokens that are generated with these models; `None` if unknown. A default
    /// draft whose preparation takes longer than it saves in so many tokens is not chosen.
    pub expected_tokens: Option<usize>,
    /// Whether a seed must decide the output: neither what was measured earlier nor the expected
    /// number of tokens has an influence on the default draft.
    pub is_seeded: bool,
    /// Tokens that the draft may propose: the first N, or a file that lists them.
    pub draft_vocabulary: Option<String>,
    /// Layers of the target whose inputs a draft head reads.
    pub draft_layers: Option<Vec<usize>>,
    /// Weight type; by default the file's for GGUF, otherwise f32.
    #[serde(with = "serde_display")]
    pub dtype: Option<Precision>,
    /// Weight type of the draft.
    #[serde(with = "serde_display")]
    pub draft_dtype: Option<Precision>,
    /// Folder where quantised copies are cached, or `none`.
    pub copies: Option<PathBuf>,
    /// Type of the KV cache.
    #[serde(with = "serde_display")]
    pub cache_type: Option<CacheType>,
    /// Whether to use only downloaded models.
    pub offline: bool,
    /// Settings that override the model's chat template.
    pub template: TemplateOptions,
    /// Backends, and the settings of llama.cpp.
    pub backend: BackendOptions,
}

/// Settings that override a model's own chat template.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TemplateOptions {
    /// File with a chat template in Jinja.
    pub file: Option<PathBuf>,
    /// Default values of template variables.
    pub variables: Map<String, Value>,
    /// Whether to define the variables of llama.cpp's server: today's date, and the tools as JSON.
    pub extras: bool,
}

impl TemplateOptions {
    /// Reads the template file.
    ///
    /// # Errors
    /// A file that cannot be read, or is not a template.
    pub(crate) fn read(&self) -> Result<Option<(String, &Path)>> {
        let Some(file) = &self.file else { return Ok(None) };
        let text = polydraft_files::read_text(file, polydraft_files::FileKind::CONFIG)
            .with_context(|| format!("cannot read the chat template {}", file.display()))?;
        // Before any weights are loaded.
        ChatTemplate::from_source(&text, SpecialTokens::default(), file)?;
        Ok(Some((text, file)))
    }

    /// Applies the file's `template`, if there is one, and the variables to a model's language.
    pub(crate) fn apply(
        &self,
        template: Option<(String, &Path)>,
        language: &mut Language,
    ) -> Result<()> {
        if let Some((text, file)) = template {
            language.use_template(&text, file)?;
        }
        let chat = language.chat.take().map(|chat| chat.with_variables(&self.variables));
        language.chat = if self.extras { chat.map(ChatTemplate::with_extras) } else { chat };
        Ok(())
    }
}

/// A model with its language, for callers that need its distributions.
pub struct LanguageModel {
    /// The model.
    pub model: Box<dyn Model>,
    /// Tokenizer, chat template and end tokens.
    pub language: Language,
}

/// Loaded models.
pub struct Models {
    /// Target and drafter.
    pub engine: Engine,
    /// Tokenizer, chat template and end tokens of the target.
    pub language: Language,
    /// Name of the draft; `None` for the demo pair's.
    pub draft: Option<String>,
    /// Stores the learned n-grams, if any.
    pub table_saver: Option<TableSaver>,
    /// Files and backend of the target.
    pub(crate) resolved_target: ResolvedTarget,
    /// The resolved draft.
    pub(crate) loaded_draft: Draft,
    /// Whether n-grams of the sequence are mixed into the draft's distribution.
    pub(crate) mixes_ngrams: bool,
    /// Costs of steps, estimated from the sizes of target and draft.
    pub(crate) estimated_costs: Costs,
}

impl Models {
    /// Stores the learned n-grams, if any, and stops learning to the file.
    ///
    /// # Errors
    /// A table that cannot be written.
    pub fn store(&mut self) -> Result<()> {
        self.table_saver.take().map_or(Ok(()), TableSaver::close)
    }

    /// Maximum difference of a logit between passes. On the native backend logits are bitwise
    /// reproducible; llama.cpp's products depend on the number of tokens in a pass.
    pub fn logit_tolerance(&self) -> f32 {
        if self.resolved_target.is_on_llama() { 0.3 } else { 1e-3 }
    }
}

/// Name of the demo pair's target.
const DEMO_NAME: &str = "target";

impl ModelOptions {
    /// Returns the target's default name: the name of its directory or file.
    pub fn target_name(&self) -> String {
        let Some(target) = &self.target else { return DEMO_NAME.to_owned() };
        let path = std::path::absolute(target).unwrap_or_else(|_| target.into());
        if !path.exists() {
            return Reference::parse(target).map_or_else(|| target.clone(), |id| id.display_name());
        }
        match path.file_stem().filter(|_| is_gguf(&path)) {
            Some(name) => name.to_string_lossy().into_owned(),
            None => display_name(&path),
        }
    }

    /// Returns the bytes of the weights of target and drafts that are files on this machine.
    pub fn weight_bytes(&self) -> u64 {
        let demo = demo_folder().ok().map(|demo| demo.join("target"));
        let target = self.target.as_ref().map(PathBuf::from).or(demo);
        let drafts = self.drafts.iter().filter_map(|name| Draft::resolve(name, true, &Silent).ok());
        let drafts = drafts.filter_map(|draft| draft.files().map(|files| files.path.clone()));
        target.into_iter().chain(drafts).map(|path| weight_bytes(&path)).sum()
    }

    /// Returns whether the draft is `none`: plain decoding.
    pub(crate) fn is_plain(&self) -> bool {
        self.drafts == [NONE]
    }

    /// Checks that the draft `none` is the only one.
    ///
    /// # Errors
    /// [`Usage`] for other drafts with it.
    pub(crate) fn check_none(&self) -> Result<()> {
        if self.is_plain() || !self.drafts.iter().any(|name| name == NONE) {
            return Ok(());
        }
        let message =
            message![OptionName::Draft.with(NONE), " must be the only draft: leave out the others"];
        Err(Usage::conflict(&[OptionName::Draft], message))
    }

    /// Number of drafts.
    pub fn draft_count(&self) -> usize {
        self.drafts.len().max(1)
    }

    /// Returns whether target and draft are the demo pair.
    pub fn is_demo_pair(&self) -> bool {
        self.target.is_none() && self.drafts.is_empty() && self.learn.is_none()
    }

    /// Returns the file of the demo pair's measured acceptances, if the demo pair is used.
    pub fn demo_acceptance(&self) -> Option<PathBuf> {
        let file = || demo_folder().ok().map(|demo| demo.join("acceptance.json"));
        self.is_demo_pair().then(file).flatten()
    }

    /// Returns the weight type of a model.
    pub(crate) fn precision(&self, path: &Path) -> Precision {
        self.dtype.unwrap_or(default_precision(path))
    }

    /// Returns the weight type of a draft model.
    pub(crate) fn draft_precision(&self, path: &Path) -> Precision {
        self.draft_dtype.unwrap_or_else(|| self.precision(path))
    }
}

/// Returns the default weight type of a model.
pub fn default_precision(path: &Path) -> Precision {
    if is_gguf(path) { Precision::File } else { Precision::F32 }
}

/// Adds the name of the option that would help to an error of loading a model.
pub fn advise(error: polydraft_models::Error) -> anyhow::Error {
    use polydraft_models::Error;
    let advice = match &error {
        Error::Memory { fits, .. } if !fits.is_empty() => {
            message![error.to_string(), "; choose with ", OptionName::Dtype]
        }
        Error::Memory { .. } => {
            message![error.to_string(), "; no ", OptionName::Dtype, " is small enough"]
        }
        _ => return error.into(),
    };
    Advice(advice).into()
}
