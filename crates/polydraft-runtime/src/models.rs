//! Options of models, and the loaded models.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use polydraft_engine::{Engine, Model};
use polydraft_models::{Precision, is_gguf};
use polydraft_text::{ChatTemplate, Language, SpecialTokens};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::as_text;
use crate::backend::{BackendOptions, CacheType};
use crate::draft::{Draft, NONE};
use crate::hub::Reference;
use crate::keeper::TableSaver;
use crate::listen::Silent;
use crate::message::{OptionName, message};
use crate::model_files::{demo_folder, title, weight_bytes};
use crate::target::ResolvedTarget;
use crate::usage::{Advice, Usage};

/// The models of a run, their weight types, and their backends. Options that are not given are
/// chosen.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelOptions {
    /// The target: a directory, a GGUF file, or a hub id; none is the demo pair's.
    pub target: Option<String>,
    /// The drafts, each a model, a draft head, a table of n-grams, `self`, `self:TYPE`, `mtp`,
    /// `ngram`, or, alone, `none`. Of several each draws a path of its own; `self` is the first. Of
    /// none the draft is chosen: the demo pair's where no target is named, else `mtp` where the
    /// target brings it, `self` where that is faster, or `ngram`.
    pub drafts: Vec<String>,
    /// A file whose n-grams `ngram` uses too.
    pub corpus: Option<PathBuf>,
    /// A table of n-grams that drafts, and learns from the target's output; created if missing.
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

/// Settings that override a model's own chat template.
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
    /// Reads the file.
    ///
    /// # Errors
    /// A file that cannot be read, or is no template.
    pub(crate) fn read(&self) -> Result<Option<(String, &Path)>> {
        let Some(file) = &self.file else { return Ok(None) };
        let text = polydraft_files::read_text(file, polydraft_files::FileKind::CONFIG)
            .with_context(|| format!("cannot read the chat template {}", file.display()))?;
        // Before anything is loaded.
        ChatTemplate::from_source(&text, SpecialTokens::default(), file)?;
        Ok(Some((text, file)))
    }

    /// Makes a model put conversations by the file's `template`, if there is one, with these
    /// variables.
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

/// A model with its text side, for users of its distributions.
pub struct LanguageModel {
    /// The model.
    pub model: Box<dyn Model>,
    /// Its tokenizer, chat template and end tokens.
    pub language: Language,
}

/// Loaded models.
pub struct Models {
    /// The target and its drafter.
    pub engine: Engine,
    /// The target's tokenizer, chat template and end tokens.
    pub language: Language,
    /// The draft, where it has a name: the demo pair's has none.
    pub draft: Option<String>,
    /// Stores the n-grams that are learned, if some are.
    pub table_saver: Option<TableSaver>,
    /// The files of the target.
    pub(crate) resolved_target: ResolvedTarget,
    /// The draft as it was loaded.
    pub(crate) loaded_draft: Draft,
    /// Whether n-grams of the sequence are mixed into the draft's distribution.
    pub(crate) mixes_ngrams: bool,
}

impl Models {
    /// Stores the n-grams that were learned, if some are; nothing is stored after that.
    ///
    /// # Errors
    /// A table that cannot be written.
    pub fn store(&mut self) -> Result<()> {
        self.learned.take().map_or(Ok(()), TableSaver::close)
    }

    /// The difference that a logit may have when computed in another pass. On the native backend it
    /// is the same to the last bit; llama.cpp's products depend on how many tokens are in a pass.
    pub fn logit_tolerance(&self) -> f32 {
        if self.resolved_target.is_on_llama() { 0.3 } else { 1e-3 }
    }
}

/// The name of the demo pair's target.
const DEMO_NAME: &str = "target";

impl ModelOptions {
    /// The target's name where nothing else is said: that of its directory or file.
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

    /// Bytes of the weights of target and drafts that are files on this machine.
    pub fn weight_bytes(&self) -> u64 {
        let demo = demo_folder().ok().map(|demo| demo.join("target"));
        let target = self.target.as_ref().map(PathBuf::from).or(demo);
        let drafts = self.drafts.iter().filter_map(|name| Draft::resolve(name, true, &Silent).ok());
        let drafts = drafts.filter_map(|draft| draft.files().map(|files| files.path.clone()));
        target.into_iter().chain(drafts).map(|path| weight_bytes(&path)).sum()
    }

    /// Whether the draft `none` is named: plain decoding.
    pub(crate) fn is_plain(&self) -> bool {
        self.drafts == [NONE]
    }

    /// Checks that the draft `none` has no others beside it.
    ///
    /// # Errors
    /// [`Usage`] where it has.
    pub(crate) fn check_none(&self) -> Result<()> {
        if self.is_plain() || !self.drafts.iter().any(|name| name == NONE) {
            return Ok(());
        }
        let message = message![OptionName::Draft.with(NONE), " stands alone: leave others out"];
        Err(Usage::conflict(&[OptionName::Draft], message))
    }

    /// The number of drafts.
    pub fn draft_count(&self) -> usize {
        self.drafts.len().max(1)
    }

    /// Whether target and draft are the demo pair's.
    pub fn is_demo_pair(&self) -> bool {
        self.target.is_none() && self.drafts.is_empty() && self.learn.is_none()
    }

    /// The measured acceptances of the demo pair, if it is used.
    pub fn demo_acceptance(&self) -> Option<PathBuf> {
        let file = || demo_folder().ok().map(|demo| demo.join("acceptance.json"));
        self.is_demo_pair().then(file).flatten()
    }

    /// The weight type of a model.
    pub(crate) fn precision(&self, path: &Path) -> Precision {
        self.dtype.unwrap_or(default_precision(path))
    }

    /// The weight type of a draft model.
    pub(crate) fn draft_precision(&self, path: &Path) -> Precision {
        self.draft_dtype.unwrap_or_else(|| self.precision(path))
    }
}

/// The default weight type of a model.
pub fn default_precision(path: &Path) -> Precision {
    if is_gguf(path) { Precision::File } else { Precision::F32 }
}

/// The error of a model that could not be loaded, with the option that helps.
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
