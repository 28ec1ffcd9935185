//! Backends: the project's own forward pass, or llama.cpp and its settings.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Context, Result};
use polydraft_llama::{BUILT, Description, LlamaOptions};
pub use polydraft_llama::{CacheType, FlashAttention, Split};
use polydraft_models::is_gguf;
use polydraft_text::LanguageModel;
use serde::{Deserialize, Serialize};

use crate::{Listener, Usage, as_text, machine};

/// The backend of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// polydraft's own forward pass, on the CPU.
    Native,
    /// llama.cpp: GGUF files of any architecture that it has.
    Llama,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(match self {
            Self::Native => "native",
            Self::Llama => "llama",
        })
    }
}

impl FromStr for Backend {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "native" => Ok(Self::Native),
            "llama" => Ok(Self::Llama),
            _ => Err(format!("expected native or llama, got {name:?}")),
        }
    }
}

/// Which backend computes target and draft, and how llama.cpp computes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BackendOptions {
    /// The target's backend; none chooses by the file.
    pub backend: Option<Backend>,
    /// The draft's backend; none is as the target's, or by the draft's file.
    pub draft_backend: Option<Backend>,
    /// Context length of one sequence, in tokens.
    pub context: Option<u32>,
    /// Tokens in the KV cache for all sequences and their drafts together.
    pub cache_tokens: Option<u32>,
    /// Attention that does not write its scores to memory.
    #[serde(with = "as_text")]
    pub flash_attention: Option<FlashAttention>,
    /// Other machines to compute layers of the target, as `HOST:PORT`.
    pub rpc: Vec<String>,
    /// Layers to compute on GPUs and other machines; none is all.
    pub gpu_layers: Option<u32>,
    /// The GPU that has what is not divided.
    pub main_gpu: Option<u32>,
    /// How a model is divided between GPUs and other machines.
    #[serde(with = "as_text")]
    pub split: Option<Split>,
    /// Threads for passes over several tokens.
    pub batch_threads: Option<u32>,
}

impl BackendOptions {
    /// The backend of the target in `path`. `native` names an option that only the native backend
    /// has; beside a draft of that backend's own, a self-draft or a head, it is the default.
    pub(crate) fn of_target(
        &self,
        path: &Path,
        native: Option<&str>,
        beside_native: bool,
    ) -> Result<Backend> {
        match self.backend {
            None if beside_native => Ok(Backend::Native),
            given => choose("--backend", given, path, native),
        }
    }

    /// The same for the draft.
    pub(crate) fn of_draft(&self, path: &Path, native: Option<&str>) -> Result<Backend> {
        match self.draft_backend {
            None if self.backend == Some(Backend::Native) => Ok(Backend::Native),
            given => choose("--draft-backend", given, path, native),
        }
    }

    /// Checks that there are no options of llama.cpp where it computes neither target nor draft.
    pub(crate) fn check_unused(&self) -> Result<()> {
        let given = [
            ("--rpc", !self.rpc.is_empty()),
            ("--context", self.context.is_some()),
            ("--cache-tokens", self.cache_tokens.is_some()),
            ("--flash-attention", self.flash_attention.is_some()),
            ("--gpu-layers", self.gpu_layers.is_some()),
            ("--main-gpu", self.main_gpu.is_some()),
            ("--split", self.split.is_some()),
            ("--batch-threads", self.batch_threads.is_some()),
        ];
        match given.into_iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((option, _)) if !BUILT => {
                Err(Usage::error(format_args!("{option}: {}", polydraft_llama::Error::NotBuilt)))
            }
            Some((option, _)) => Err(Usage::error(format_args!(
                "{option} is for models on llama.cpp: expected --backend llama or a .gguf file, \
                 got models on the native backend"
            ))),
        }
    }

    /// Loads the target on llama.cpp, on other machines too if there are any.
    pub(crate) fn load_target(
        &self,
        path: &Path,
        cache: Option<CacheType>,
        listener: &dyn Listener,
    ) -> Result<LanguageModel> {
        self.load(path, "target", cache, listener)
    }

    /// Loads the draft on llama.cpp: on this machine, as the network would delay each of its
    /// passes, and with as much of the context as it has.
    pub(crate) fn load_draft(
        &self,
        path: &Path,
        cache: Option<CacheType>,
        listener: &dyn Listener,
    ) -> Result<LanguageModel> {
        let trained = Description::read(path).context("loading the draft model")?.context;
        let mut own = self.clone();
        own.context =
            self.context.map(|tokens| tokens.min(u32::try_from(trained).unwrap_or(u32::MAX)));
        if !self.rpc.is_empty() {
            // Shares and numbers of devices of which other machines' are the first.
            (own.rpc, own.split, own.main_gpu) = (Vec::new(), None, None);
        }
        own.load(path, "draft", cache, listener)
    }

    fn load(
        &self,
        path: &Path,
        role: &str,
        cache: Option<CacheType>,
        listener: &dyn Listener,
    ) -> Result<LanguageModel> {
        let threads = machine::threads() as u32;
        let options = LlamaOptions {
            context: self.context,
            cells: self.cache_tokens,
            rpc: self.rpc.clone(),
            gpu_layers: self.gpu_layers,
            main_gpu: self.main_gpu.unwrap_or(0),
            split: self.split.clone().unwrap_or_default(),
            cache_type: cache.unwrap_or_default(),
            flash_attention: self.flash_attention.unwrap_or_default(),
            threads,
            batch_threads: self.batch_threads.unwrap_or(threads),
        };
        let clock = Instant::now();
        let loaded = polydraft_llama::load(path, &options)
            .with_context(|| format!("loading the {role} model"))?;
        listener.detail(&format!(
            "{role}: {} on llama.cpp, {threads} threads; room for {} tokens; loaded in {:.2} s",
            path.display(),
            loaded.model.info().context,
            clock.elapsed().as_secs_f64()
        ));
        Ok(loaded)
    }

    /// All settings that change the cost of a pass.
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

fn choose(
    option: &str,
    given: Option<Backend>,
    path: &Path,
    native: Option<&str>,
) -> Result<Backend> {
    match given {
        None if BUILT && is_gguf(path) && native.is_none() => Ok(Backend::Llama),
        None | Some(Backend::Native) => Ok(Backend::Native),
        Some(Backend::Llama) if !BUILT => {
            Err(Usage::error(format_args!("{option} llama: {}", polydraft_llama::Error::NotBuilt)))
        }
        Some(Backend::Llama) if !is_gguf(path) => Err(Usage::error(format_args!(
            "{option} llama: expected a .gguf file, got {}; the native backend computes \
             directories",
            path.display()
        ))),
        Some(Backend::Llama) => match native {
            None => Ok(Backend::Llama),
            Some(what) => Err(Usage::error(format_args!(
                "{option} llama: {what} is for the native backend; llama.cpp computes weights as \
                 their file has them"
            ))),
        },
    }
}
