//! Options for which models to load.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use polydraft_llama::CacheType;
use polydraft_models::Precision;
use polydraft_runtime::{ModelOptions, Models};

use super::backend::BackendArgs;
use crate::output::Terminal;

/// The models of a run.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Models")]
pub struct ModelArgs {
    /// The target model: a directory with config.json, tokenizer.json and model.safetensors (or
    /// shards with an index), a file that ends in .gguf, or a hub id such as org/name or
    /// org/name@revision [default: the demo pair's].
    #[arg(long, value_name = "MODEL")]
    target: Option<String>,
    /// What drafts [default: the demo pair's where no target is named; else 'self' where that
    /// helps, or 'ngram']: a model of the same vocabulary; a draft head that was trained for the
    /// target (EAGLE); 'self': the target's own weights once more, in q5_1 or q4_1, the first that
    /// is much less than the target takes, or as self:TYPE says; or 'ngram':
    /// what the text itself has said before, and no model.
    #[arg(long, value_name = "MODEL")]
    draft: Option<String>,
    /// A text that --draft ngram may quote besides: a file of the same kind as what is to be
    /// written.
    #[arg(long, value_name = "FILE")]
    corpus: Option<PathBuf>,
    /// Tokens that the draft may propose, which leaves it less to compute: a number, for so many of
    /// the first (tokenizers number what is frequent first), or a file with a JSON list of ids or
    /// one that PyTorch saved (FR-Spec).
    #[arg(long, value_name = "N|FILE")]
    draft_vocabulary: Option<String>,
    /// The layers of the target whose inputs a draft head reads, such as 2,15,27, where acceptance
    /// shows that its files say it wrongly.
    #[arg(long, value_name = "LAYERS", value_delimiter = ',')]
    draft_layers: Option<Vec<usize>>,
    /// How weights are held: f32; f16 or bf16 (half the memory, and exact if the model was
    /// published so; on a CPU all arithmetic is in f32 all the same); q8_0, q4_0, q4_1, q5_1 or
    /// q4_k (quantised on loading; then the quantised model, with inputs of products rounded to 8
    /// bits too, is what is sampled exactly); q8_0-f32 (the same weights as q8_0, inputs not
    /// rounded); file (each as its file has it, nothing rounded; blocks of other types are
    /// multiplied as f32 would be) [default: file for a .gguf file, else f32].
    #[arg(long, value_name = "TYPE")]
    dtype: Option<Precision>,
    /// How the weights of the draft are held [default: as --dtype says; those of a draft head in
    /// q8_0]. The text has the target's distribution whatever the draft is stored as.
    #[arg(long, value_name = "TYPE")]
    draft_dtype: Option<Precision>,
    /// Where copies that --draft self made are kept, so that the next start need not make them
    /// again, or none: the ones used last, of 20 GB together [default: the user's cache folder].
    #[arg(long, value_name = "FOLDER|none")]
    copies: Option<PathBuf>,
    /// How keys and values are held, the target's and a drafting model's: f32, or f16, which takes
    /// half the memory and makes long texts faster; llama.cpp has bf16, q8_0 and q4_0 too [default:
    /// f32, on llama.cpp f16]. The model with keys and values so rounded is what is sampled
    /// exactly. A draft head's stay in f32.
    #[arg(long, value_name = "TYPE")]
    cache_type: Option<CacheType>,
    /// The native backend computes on the CPU; llama.cpp is the way to a GPU.
    #[arg(long, value_name = "DEVICE", hide = true, value_parser = device)]
    device: Option<String>,
    /// Never ask the network: use what was downloaded before.
    #[arg(long)]
    offline: bool,
    /// Threads to compute with, at most as many as the machine runs at once [default: one for a
    /// target of less than 64 MB, which is done before a second thread has started; else one per
    /// core].
    // Read in threads.rs, before all else.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    #[command(flatten)]
    backend: BackendArgs,
}

impl ModelArgs {
    /// What they say.
    pub fn options(&self) -> ModelOptions {
        ModelOptions {
            target: self.target.clone(),
            draft: self.draft.clone(),
            corpus: self.corpus.clone(),
            draft_vocabulary: self.draft_vocabulary.clone(),
            draft_layers: self.draft_layers.clone(),
            dtype: self.dtype,
            draft_dtype: self.draft_dtype,
            copies: self.copies.clone(),
            cache_type: self.cache_type,
            offline: self.offline,
            backend: self.backend.options(),
        }
    }

    /// Loads the target and, if one is needed, what drafts for it.
    ///
    /// # Errors
    /// Options that contradict each other; models that cannot be loaded.
    pub fn load(&self, with_draft: bool) -> Result<Models> {
        self.options().load(with_draft, &Terminal)
    }
}

/// Where the native backend computes.
fn device(name: &str) -> Result<String, String> {
    match name {
        "cpu" => Ok(name.to_owned()),
        _ => Err("the native backend computes on the CPU; for a GPU build the program with \
                  --features llama-cuda (or -metal, -rocm, -vulkan) and give a .gguf file"
            .to_owned()),
    }
}
