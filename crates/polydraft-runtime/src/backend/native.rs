//! Models on the project's own kernels.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use polydraft::Token;
use polydraft_engine::{Model, ModelInfo};
use polydraft_models::{HeadTarget, LoadOptions, Loaded, Opened, Precision, TransformerModel};
use polydraft_text::Language;

use super::{Backend, CacheType, LoadedTarget, loaded};
use crate::listen::Listener;
use crate::message::{OptionName, message};
use crate::models::{ModelOptions, advise};
use crate::usage::Usage;
use crate::{copies, machine};

/// The native backend, with what it is told of models.
pub struct Native<'a> {
    /// The options of all models.
    pub options: &'a ModelOptions,
    /// Whether llama.cpp computes the target: the type of the KV cache is then the target's alone.
    pub beside_llama: bool,
    /// Takes messages.
    pub listener: &'a dyn Listener,
}

impl Native<'_> {
    /// Reads everything but the weights of a target.
    ///
    /// # Errors
    /// Files that are missing or wrong.
    pub fn open(path: &Path) -> Result<Opened> {
        Opened::new(path).map_err(|error| advise(error).context("loading the target model"))
    }

    /// How a target is loaded.
    ///
    /// # Errors
    /// [`Usage`] for a type of the KV cache that only llama.cpp has.
    pub fn load_options(&self, path: &Path, self_draft: Option<Precision>) -> Result<LoadOptions> {
        let precision = self.options.precision(path);
        Ok(LoadOptions { precision, cache: self.cache()?, self_draft, ..LoadOptions::default() })
    }

    fn cache(&self) -> Result<polydraft_models::CacheType> {
        match self.options.cache_type {
            None | Some(CacheType::F32) => Ok(polydraft_models::CacheType::F32),
            Some(CacheType::F16) => Ok(polydraft_models::CacheType::F16),
            Some(_) if self.beside_llama => Ok(polydraft_models::CacheType::F32),
            Some(other) => Err(Usage::unknown(
                OptionName::CacheType,
                message![
                    OptionName::CacheType.with(other),
                    " is llama.cpp's: expected f32 or f16 for a model on the native backend",
                ],
            )),
        }
    }

    /// Loads the weights of a target, and its self-draft from the cache of copies or made anew.
    ///
    /// # Errors
    /// Weights that are missing, wrong, or too large for the memory.
    pub fn load(&self, opened: Opened, self_draft: Option<Precision>) -> Result<Loaded> {
        let clock = Instant::now();
        let path = opened.description.directory.clone();
        let how = self.load_options(&path, self_draft)?;
        let kept = copies::folder(self.options.copies.as_deref());
        let kept = kept.and_then(|copies| copies.place(&opened.description, &how));
        let model = opened.load_with(how, kept.as_ref());
        let model = model.map_err(|error| advise(error).context("loading the target model"))?;
        if let (Some(file), Some(copy)) = (&kept, &model.self_draft) {
            copies::keep(file, copy, model.was_cached, self.listener);
        }
        self.report("target", &path, how.precision, clock);
        Ok(model)
    }

    fn report(&self, role: &str, path: &Path, precision: Precision, clock: Instant) {
        let (seconds, threads) = (clock.elapsed().as_secs_f64(), machine::threads());
        let path = path.display();
        let text = format!("{path} in {precision}, {threads} threads; loaded in {seconds:.2} s");
        self.listener.detail(&loaded(role, text));
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
        let clock = Instant::now();
        let precision = self.options.draft_precision(path);
        let how = LoadOptions { precision, cache: self.cache()?, ..LoadOptions::default() };
        let loaded = Opened::new(path).and_then(|opened| opened.load(how));
        let Loaded { mut model, language, .. } =
            loaded.map_err(|error| advise(error).context("loading the draft model"))?;
        self.report("draft", path, precision, clock);
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
