//! Models on llama.cpp.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use polydraft::Token;
use polydraft_engine::{Model, ModelInfo};
use polydraft_llama::{Description, LlamaOptions};
use polydraft_models::{EmbeddingAndOutput, HeadTarget, Opened, Precision, TransformerModel};
use polydraft_text::Language;

use super::native::Native;
use super::{Backend, BackendOptions, LoadedTarget, load_message};
use crate::machine;

/// llama.cpp, with the options of models. Self-drafts of its targets are computed by the native
/// backend.
pub struct Llama<'a> {
    /// Backend of self-drafts, with the options of all models.
    pub native: Native<'a>,
}

impl BackendOptions {
    /// Identifies the settings that change the cost of a pass on llama.cpp.
    pub(crate) fn identity(&self) -> String {
        format!(
            "llama.cpp, {}, {:?} layers on GPUs, {}, {:?} threads, machines {:?}",
            self.flash_attention.unwrap_or_default(),
            self.gpu_layers,
            self.split.clone().unwrap_or_default(),
            self.batch_threads,
            self.rpc
        )
    }
}

impl Llama<'_> {
    fn load(
        &self,
        path: &Path,
        role: &str,
        options: &BackendOptions,
    ) -> Result<(Box<dyn Model>, Language)> {
        let threads = machine::threads() as u32;
        let llama_options = LlamaOptions {
            context: options.context,
            cells: options.cache_tokens,
            rpc: options.rpc.clone(),
            gpu_layers: options.gpu_layers,
            main_gpu: options.main_gpu.unwrap_or(0),
            split: options.split.clone().unwrap_or_default(),
            cache_type: self.native.options.cache_type.unwrap_or_default(),
            flash_attention: options.flash_attention.unwrap_or_default(),
            threads,
            batch_threads: options.batch_threads.unwrap_or(threads),
        };
        let start = Instant::now();
        let loaded_model = polydraft_llama::load(path, &llama_options)
            .with_context(|| format!("loading the {role} model"))?;
        let (path, context) = (path.display(), loaded_model.0.info().context);
        let seconds = start.elapsed().as_secs_f64();
        let message = format!(
            "{path} on llama.cpp, {threads} threads; context of {context} tokens; loaded in \
             {seconds:.2} s"
        );
        self.native.listener.detail(&load_message(role, message));
        Ok(loaded_model)
    }
}

impl Backend for Llama<'_> {
    /// Loads the target, distributed over RPC servers if any are given.
    fn load_target(
        &self,
        path: &Path,
        opened: Option<Opened>,
        self_draft: Option<Precision>,
    ) -> Result<Box<dyn LoadedTarget>> {
        // Before the target, because making the copy needs the full model in memory.
        let self_draft = match (opened, self_draft) {
            (Some(opened), Some(kind)) => {
                let loaded = self.native.load(opened, Some(kind));
                let context = "making a copy of the target on the native backend";
                loaded.context(context)?.self_draft
            }
            _ => None,
        };
        let (model, language) = self.load(path, "target", &self.native.options.backend)?;
        let path = path.to_owned();
        Ok(Box::new(LlamaTarget { model, language, path, self_draft, shared: None }))
    }

    /// Loads the draft on this machine, because the network would delay each of its passes, with at
    /// most the context length that it was trained for.
    fn load_draft(&self, path: &Path, _: Option<&[Token]>) -> Result<(Box<dyn Model>, Language)> {
        let trained = Description::read(path).context("loading the draft model")?.context;
        let mut options = self.native.options.backend.clone();
        options.context =
            options.context.map(|tokens| tokens.min(u32::try_from(trained).unwrap_or(u32::MAX)));
        if !options.rpc.is_empty() {
            // Splits and device numbers that count the RPC servers' devices first do not apply.
            (options.rpc, options.split, options.main_gpu) = (Vec::new(), None, None);
        }
        let (model, language) = self.load(path, "draft", &options)?;
        Ok((model, language))
    }
}

/// A target on llama.cpp.
struct LlamaTarget {
    model: Box<dyn Model>,
    language: Language,
    path: PathBuf,
    self_draft: Option<TransformerModel>,
    /// Tensors that a draft head may share, read from the target's file.
    shared: Option<EmbeddingAndOutput>,
}

impl LoadedTarget for LlamaTarget {
    fn info(&self) -> &ModelInfo {
        self.model.info()
    }

    fn language(&self) -> &Language {
        &self.language
    }

    fn take_self_draft(&mut self) -> Option<TransformerModel> {
        self.self_draft.take()
    }

    fn for_head(&mut self, precision: Precision) -> Result<HeadTarget<'_>> {
        let shared = match self.shared.take() {
            Some(shared) => shared,
            None => EmbeddingAndOutput::load(&self.path, precision)?,
        };
        Ok(HeadTarget::Other(self.model.as_mut(), self.shared.insert(shared)))
    }

    fn native(&mut self) -> Option<&mut TransformerModel> {
        None
    }

    fn into_parts(self: Box<Self>) -> (Box<dyn Model>, Language) {
        (self.model, self.language)
    }
}
