//! Backends: the project's own forward pass, or llama.cpp.

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

use crate::as_text;
use crate::message::{Message, OptionName, Part, message};
use crate::usage::Usage;

/// Loads models of one kind of computation.
pub(crate) trait Backend {
    /// Loads a target, and its quantised self-draft if there is to be one. `opened` is what was
    /// read of its files, where a model on the native backend is made of them.
    fn load_target(
        &self,
        path: &Path,
        opened: Option<Opened>,
        self_draft: Option<Precision>,
    ) -> Result<Box<dyn LoadedTarget>>;

    /// Loads a model that drafts, which proposes no other than these tokens.
    fn load_draft(
        &self,
        path: &Path,
        tokens: Option<&[Token]>,
    ) -> Result<(Box<dyn Model>, Language)>;
}

/// A loaded target, before a drafter is attached.
pub(crate) trait LoadedTarget {
    /// The facts of the model.
    fn info(&self) -> &ModelInfo;

    /// Its text side.
    fn language(&self) -> &Language;

    /// Its quantised self-draft, once.
    fn take_self_draft(&mut self) -> Option<TransformerModel>;

    /// The target as a draft head sees it; tensors that are read for the head are stored in
    /// `precision`.
    fn for_head(&mut self, precision: Precision) -> Result<HeadTarget<'_>>;

    /// The target as its own layers see it; none on another backend.
    fn native(&mut self) -> Option<&mut TransformerModel>;

    /// The model and its text side.
    fn into_parts(self: Box<Self>) -> (Box<dyn Model>, Language);
}

/// The backend of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendKind {
    /// polydraft's own forward pass, on the CPU.
    Native,
    /// llama.cpp: GGUF files of any architecture that it has.
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

/// The backends of target and draft, and the settings of llama.cpp.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BackendOptions {
    /// The target's backend; none chooses by the file.
    pub backend: Option<BackendKind>,
    /// The draft's backend; none is as the target's, or by the draft's file.
    pub draft_backend: Option<BackendKind>,
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
    /// The GPU that has the parts that are not divided.
    pub main_gpu: Option<u32>,
    /// How a model is divided between GPUs and other machines.
    #[serde(with = "as_text")]
    pub split: Option<Split>,
    /// Threads for passes over several tokens.
    pub batch_threads: Option<u32>,
}

impl BackendOptions {
    /// The backend of the target in `path`. `native` are options that only the native backend has;
    /// beside a draft that needs that backend, it is the default.
    pub(crate) fn of_target(
        &self,
        path: &Path,
        native: &[OptionName],
        beside_native: bool,
    ) -> Result<BackendKind> {
        match self.backend {
            None if beside_native => Ok(BackendKind::Native),
            given => choose(OptionName::Backend, given, path, native),
        }
    }

    /// The backend of a draft model in `path`.
    pub(crate) fn of_draft(&self, path: &Path, native: &[OptionName]) -> Result<BackendKind> {
        match self.draft_backend {
            None if self.backend == Some(BackendKind::Native) => Ok(BackendKind::Native),
            given => choose(OptionName::DraftBackend, given, path, native),
        }
    }

    /// Checks that there are no options of llama.cpp where it computes neither target nor draft.
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
            false => message![option, not_built()],
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

fn choose(
    option: OptionName,
    given: Option<BackendKind>,
    path: &Path,
    native: &[OptionName],
) -> Result<BackendKind> {
    let refused = |more: Vec<Part>| {
        let message = message![option.with("llama")].and(more);
        let options: Vec<_> = [option].into_iter().chain(native.iter().copied()).collect();
        Err(Usage::conflict(&options, message))
    };
    match given {
        None if BUILT && is_gguf(path) && native.is_empty() => Ok(BackendKind::Llama),
        None | Some(BackendKind::Native) => Ok(BackendKind::Native),
        Some(BackendKind::Llama) if !BUILT => refused(vec![not_built().into()]),
        Some(BackendKind::Llama) if !is_gguf(path) => {
            let path = path.display();
            refused(vec![
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
                " is for the native backend; llama.cpp computes weights as their file has them"
                    .into(),
            );
            refused(parts)
        }
    }
}

/// A message about a loaded model.
pub(crate) fn loaded(role: &str, text: String) -> Message {
    format!("{role}: {text}").into()
}
