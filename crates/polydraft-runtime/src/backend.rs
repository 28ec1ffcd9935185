//! Backends: polydraft's own forward pass, or llama.cpp.

pub(crate) mod llama;
pub(crate) mod native;

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use anyhow::Result;
use polydraft::Token;
use polydraft_engine::{Model, ModelInfo};
use polydraft_llama::BUILT;
pub use polydraft_llama::{CacheType, FlashAttention, Split};
use polydraft_models::{HeadTarget, Opened, Precision, TransformerModel, is_gguf};
use polydraft_text::Language;
use serde::{Deserialize, Serialize};

use crate::message::{Message, OptionName, Part, message};
use crate::serde_display;
use crate::usage::Usage;

/// Loads the models of one backend.
pub(crate) trait Backend {
    /// Loads a target and, if requested, its quantised self-draft. `opened` is the already parsed
    /// model, if the native backend needs it.
    fn load_target(
        &self,
        path: &Path,
        opened: Option<Opened>,
        self_draft: Option<Precision>,
    ) -> Result<Box<dyn LoadedTarget>>;

    /// Loads a draft model; with `tokens`, it can only propose these.
    fn load_draft(
        &self,
        path: &Path,
        tokens: Option<&[Token]>,
    ) -> Result<(Box<dyn Model>, Language)>;
}

/// A loaded target, before a drafter is attached.
pub(crate) trait LoadedTarget {
    /// Returns the properties of the model.
    fn info(&self) -> &ModelInfo;

    /// Returns the tokenizer, chat template and end tokens.
    fn language(&self) -> &Language;

    /// Takes the quantised self-draft, if one was loaded and not taken yet.
    fn take_self_draft(&mut self) -> Option<TransformerModel>;

    /// Returns the target's interface for draft heads; tensors that are loaded for a head are
    /// stored in `precision`.
    fn for_head(&mut self, precision: Precision) -> Result<HeadTarget<'_>>;

    /// Returns the target's interface for its own MTP layer; `None` on another backend.
    fn native(&mut self) -> Option<&mut TransformerModel>;

    /// Returns the model and its language.
    fn into_parts(self: Box<Self>) -> (Box<dyn Model>, Language);
}

/// Backend of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendKind {
    /// polydraft's own forward pass, on the CPU.
    Native,
    /// llama.cpp: GGUF files of any architecture that it supports.
    Llama,
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(match self {
            Self::Native => "native",
            Self::Llama => "llama",
        })
    }
}

impl FromStr for BackendKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "native" => Ok(Self::Native),
            "llama" => Ok(Self::Llama),
            _ => Err(format!("expected native or llama, got {name:?}")),
        }
    }
}

/// Backends of target and draft, and the settings of llama.cpp.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BackendOptions {
    /// Backend of the target; `None` chooses by the file.
    pub backend: Option<BackendKind>,
    /// Backend of the draft; `None` is the native one if the target is on it, otherwise chosen by
    /// the draft's file.
    pub draft_backend: Option<BackendKind>,
    /// Context length of one sequence, in tokens.
    pub context: Option<u32>,
    /// Total tokens in the KV cache, for all sequences and their drafts.
    pub cache_tokens: Option<u32>,
    /// Flash attention: attention that does not store its scores in memory.
    #[serde(with = "serde_display")]
    pub flash_attention: Option<FlashAttention>,
    /// RPC servers that compute layers of the target, as `HOST:PORT`.
    pub rpc: Vec<String>,
    /// Number of layers on GPUs and RPC servers; `None` is all.
    pub gpu_layers: Option<u32>,
    /// GPU that holds the tensors that are not split.
    pub main_gpu: Option<u32>,
    /// Split of a model among GPUs and RPC servers.
    #[serde(with = "serde_display")]
    pub split: Option<Split>,
    /// Number of threads for passes over several tokens.
    pub batch_threads: Option<u32>,
}

impl BackendOptions {
    /// Chooses the backend of the target in `path`. `native` are the given options that only the
    /// native backend supports. `prefers_native` makes it the default, for a draft that needs it.
    pub(crate) fn target_backend(
        &self,
        path: &Path,
        native: &[OptionName],
        prefers_native: bool,
    ) -> Result<BackendKind> {
        match self.backend {
            None if prefers_native => Ok(BackendKind::Native),
            given => choose_backend(OptionName::Backend, given, path, native),
        }
    }

    /// Chooses the backend of the draft model in `path`.
    pub(crate) fn draft_backend(&self, path: &Path, native: &[OptionName]) -> Result<BackendKind> {
        match self.draft_backend {
            None if self.backend == Some(BackendKind::Native) => Ok(BackendKind::Native),
            given => choose_backend(OptionName::DraftBackend, given, path, native),
        }
    }

    /// Rejects options of llama.cpp if it computes neither target nor draft.
    pub(crate) fn check_unused(&self) -> Result<()> {
        let given = [
            (OptionName::Rpc, !self.rpc.is_empty()),
            (OptionName::Context, self.context.is_some()),
            (OptionName::CacheTokens, self.cache_tokens.is_some()),
            (OptionName::FlashAttention, self.flash_attention.is_some()),
            (OptionName::GpuLayers, self.gpu_layers.is_some()),
            (OptionName::MainGpu, self.main_gpu.is_some()),
            (OptionName::Split, self.split.is_some()),
            (OptionName::BatchThreads, self.batch_threads.is_some()),
        ];
        let Some((option, _)) = given.into_iter().find(|(_, given)| *given) else { return Ok(()) };
        let message = match BUILT {
            _ if option == OptionName::Context => message![
                option,
                " is for models on llama.cpp, which reserves memory for it: this model's own \
                 engine takes memory as the text grows, up to the context that it was trained \
                 with; leave the option out"
            ],
            false => message![
                option,
                " is for models on llama.cpp, and this one is computed without it",
                not_built()
            ],
            true => message![
                option,
                " is for models on llama.cpp: expected ",
                OptionName::Backend.with("llama"),
                " or a .gguf file, got models on the native backend",
            ],
        };
        Err(Usage::unused(option, message))
    }
}

fn not_built() -> String {
    format!(": {}", polydraft_llama::Error::NotBuilt)
}

fn choose_backend(
    option: OptionName,
    given: Option<BackendKind>,
    path: &Path,
    native: &[OptionName],
) -> Result<BackendKind> {
    let conflict = |more: Vec<Part>| {
        let message = message![option.with("llama")].and(more);
        let options: Vec<_> = [option].into_iter().chain(native.iter().copied()).collect();
        Err(Usage::conflict(&options, message))
    };
    match given {
        None if BUILT && is_gguf(path) && native.is_empty() => Ok(BackendKind::Llama),
        None | Some(BackendKind::Native) => Ok(BackendKind::Native),
        Some(BackendKind::Llama) if !BUILT => conflict(vec![not_built().into()]),
        Some(BackendKind::Llama) if !is_gguf(path) => {
            let path = path.display();
            conflict(vec![
                format!(
                    ": expected a .gguf file, got {path}; the native backend computes directories"
                )
                .into(),
            ])
        }
        Some(BackendKind::Llama) if native.is_empty() => Ok(BackendKind::Llama),
        Some(BackendKind::Llama) => {
            let mut parts = vec![Part::from(": ")];
            for (number, native) in native.iter().enumerate() {
                if number > 0 {
                    parts.push(" or ".into());
                }
                parts.push((*native).into());
            }
            parts.push(
                " is for the native backend; llama.cpp uses the weight types of the file".into(),
            );
            conflict(parts)
        }
    }
}

/// Makes a message about a loaded model.
pub(crate) fn load_message(role: &str, text: String) -> Message {
    format!("{role}: {text}").into()
}
