//! Models on polydraft's own kernels.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use polydraft::Token;
use polydraft_engine::{Model, ModelInfo};
use polydraft_models::{HeadTarget, LoadOptions, Loaded, Opened, Precision, TransformerModel};
use polydraft_text::Language;

use super::{Backend, CacheType, LoadedTarget, load_message};
use crate::listen::Listener;
use crate::message::{OptionName, message};
use crate::models::{ModelOptions, advise};
use crate::usage::Usage;
use crate::{copies, machine};

/// The native backend, with the options of models.
pub struct Native<'a> {
    /// Options of all models.
    pub options: &'a ModelOptions,
    /// Whether llama.cpp computes the target; the KV cache type then applies to the target only.
    pub target_on_llama: bool,
    /// Receiver of messages.
    pub listener: &'a dyn Listener,
}

impl Native<'_> {
    /// Reads everything but the weights of a target.
    ///
    /// # Errors
    /// Missing or invalid files.
    pub fn open(path: &Path) -> Result<Opened> {
        Opened::new(path).map_err(|error| advise(error).context("loading the target model"))
    }

    /// Returns the options for loading a target.
    ///
    /// # Errors
    /// [`Usage`] for a KV cache type that only llama.cpp supports.
    pub fn load_options(&self, path: &Path, self_draft: Option<Precision>) -> Result<LoadOptions> {
        let precision = self.options.precision(path);
        Ok(LoadOptions { precision, cache: self.cache()?, self_draft, ..LoadOptions::default() })
    }

    /// Returns the type of the KV cache.
    ///
    /// # Errors
    /// [`Usage`] for a type that only llama.cpp supports.
    pub fn cache(&self) -> Result<polydraft_models::CacheType> {
        match self.options.cache_type {
            None | Some(CacheType::F32) => Ok(polydraft_models::CacheType::F32),
            Some(CacheType::F16) => Ok(polydraft_models::CacheType::F16),
            Some(_) if self.target_on_llama => Ok(polydraft_models::CacheType::F32),
            Some(other) => Err(Usage::unknown(
                OptionName::CacheType,
                message![
                    OptionName::CacheType.with(other),
                    " is for llama.cpp only: expected f32 or f16 for a model on the native backend",
                ],
            )),
        }
    }

    /// Loads the weights of a target, and its self-draft from the cache or newly quantised.
    ///
    /// # Errors
    /// Weights that are missing, invalid, or too large for the memory.
    pub fn load(&self, opened: Opened, self_draft: Option<Precision>) -> Result<Loaded> {
        let start = Instant::now();
        let path = opened.description.directory.clone();
        let options = self.load_options(&path, self_draft)?;
        let cached = copies::cache_folder(self.options.copies.as_deref());
        let cached = cached.and_then(|copies| copies.file_for(&opened.description, &options));
        let model = opened.load_with(options, cached.as_ref());
        let model = model.map_err(|error| advise(error).context("loading the target model"))?;
        if let (Some(file), Some(copy)) = (&cached, &model.self_draft) {
            copies::store(file, copy, model.was_cached, self.listener);
        }
        self.report("target", &path, options.precision, start);
        Ok(model)
    }

    fn report(&self, role: &str, path: &Path, precision: Precision, start: Instant) {
        let (seconds, threads) = (start.elapsed().as_secs_f64(), machine::threads());
        let path = path.display();
        let message = format!("{path} in {precision}, {threads} threads; loaded in {seconds:.2} s");
        self.listener.detail(&load_message(role, message));
    }
}

impl Backend for Native<'_> {
    fn load_target(
        &self,
        path: &Path,
        opened: Option<Opened>,
        self_draft: Option<Precision>,
    ) -> Result<Box<dyn LoadedTarget>> {
        let opened = opened.map_or_else(|| Self::open(path), Ok)?;
        Ok(Box::new(self.load(opened, self_draft)?))
    }

    fn load_draft(
        &self,
        path: &Path,
        tokens: Option<&[Token]>,
    ) -> Result<(Box<dyn Model>, Language)> {
        let start = Instant::now();
        let precision = self.options.draft_precision(path);
        let options = LoadOptions { precision, cache: self.cache()?, ..LoadOptions::default() };
        let loaded = Opened::new(path).and_then(|opened| opened.load(options));
        let Loaded { mut model, language, .. } =
            loaded.map_err(|error| advise(error).context("loading the draft model"))?;
        self.report("draft", path, precision, start);
        if let Some(tokens) = tokens {
            model.restrict_output(tokens).context("cutting the draft's vocabulary")?;
        }
        Ok((Box::new(model), language))
    }
}

impl LoadedTarget for Loaded {
    fn info(&self) -> &ModelInfo {
        self.model.info()
    }

    fn language(&self) -> &Language {
        &self.language
    }

    fn take_self_draft(&mut self) -> Option<TransformerModel> {
        self.self_draft.take()
    }

    fn for_head(&mut self, _: Precision) -> Result<HeadTarget<'_>> {
        Ok(HeadTarget::Native(&mut self.model))
    }

    fn native(&mut self) -> Option<&mut TransformerModel> {
        Some(&mut self.model)
    }

    fn into_parts(self: Box<Self>) -> (Box<dyn Model>, Language) {
        (Box::new(self.model), self.language)
    }
}
