//! Options for which models to load.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use polydraft_models::Precision;
use polydraft_runtime::{CacheType, ModelOptions, Models};

use super::backend::BackendArgs;
use crate::output::Terminal;

/// The models of a run.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Models")]
pub struct ModelArgs {
    /// The target model: a directory with config.json, tokenizer.json and model.safetensors (or
    /// shards with an index), a file that ends in .gguf, or an id of the Hugging Face hub, which is
    /// downloaded: org/name, org/name@revision, or org/name:Q4_K_M for one GGUF file of several
    /// [default: the demo pair's].
    #[arg(long, value_name = "MODEL")]
    target: Option<String>,
    /// The draft [default: the demo pair's where no target is named; else 'self' where that helps,
    /// or 'ngram']: a model of the same vocabulary; a draft head that was trained for the target
    /// (EAGLE, DFlash, DSpark); a table of n-grams that 'polydraft learn' made; 'self': the
    /// target's own weights once more, in q5_1 or q4_1, the first that is much less than the target
    /// takes, or as self:TYPE says; 'mtp': the layer that some models bring to predict further
    /// tokens; 'ngram': n-grams of the sequence itself, and no model; or 'none', plain decoding.
    /// May be repeated: then each draws a path of its own, for a verifier that knows distinct
    /// drafts, such as specinfer.
    #[arg(long, value_name = "MODEL")]
    draft: Vec<String>,
    /// A file whose n-grams --draft ngram uses too: text of the same kind as the expected output.
    #[arg(long, value_name = "FILE")]
    corpus: Option<PathBuf>,
    /// Draft from the table of n-grams in FILE, a new one if there is none, and go on learning it:
    /// of every token that the target writes, its likeliest ones with their probabilities. So
    /// drafts get better by use. It is stored every five minutes and at the end, and says something
    /// of what was written. Text that has a seed may be another one when more is learned.
    #[arg(long, value_name = "FILE")]
    learn: Option<PathBuf>,
    /// Whether n-grams of the sequence itself are mixed into the draft's distribution, by how often
    /// they were right: on or off [default: on for a draft head and for 'mtp', which do not copy].
    #[arg(long, value_name = "WHETHER", value_parser = whether)]
    mix_ngrams: Option<bool>,
    /// Tokens that the draft may propose, which saves computation: a number, for so many of the
    /// first ids (tokenizers number frequent tokens first), or a file with a JSON list of ids or
    /// one that PyTorch saved (FR-Spec).
    #[arg(long, value_name = "N|FILE")]
    draft_vocabulary: Option<String>,
    /// The layers of the target whose inputs a draft head reads, such as 2,15,27, where low
    /// acceptance shows that its files name other ones.
    #[arg(long, value_name = "LAYERS", value_delimiter = ',')]
    draft_layers: Option<Vec<usize>>,
    /// Weight type: f32; f16 or bf16 (half the memory, and exact if the model was published so; on
    /// a CPU all arithmetic is in f32); q8_0, q4_0, q4_1, q5_1 or q4_k (quantised on loading; then
    /// the quantised model is sampled exactly, with inputs of products rounded to 8 bits too);
    /// q8_0-f32 (the same weights as q8_0, inputs not rounded); file (each as its file has it,
    /// nothing rounded; blocks of other types are multiplied as f32 would be) [default: file for a
    /// .gguf file, else f32].
    #[arg(long, value_name = "TYPE")]
    dtype: Option<Precision>,
    /// Weight type of the draft [default: as --dtype says; those of a draft head in q8_0]. The
    /// output has the target's distribution whatever the type.
    #[arg(long, value_name = "TYPE")]
    draft_dtype: Option<Precision>,
    /// Where the quantised copies that --draft self makes are cached for the next start, or none:
    /// the ones used last, of 20 GB together [default: the user's cache folder].
    #[arg(long, value_name = "FOLDER|none")]
    copies: Option<PathBuf>,
    /// Type of the KV cache, the target's and a draft model's: f32, or f16, which takes half the
    /// memory and makes long sequences faster; llama.cpp has bf16, q8_0 and q4_0 too [default: f32,
    /// on llama.cpp f16]. The model with the KV cache so rounded is sampled exactly. A draft head's
    /// cache stays in f32.
    #[arg(long, value_name = "TYPE")]
    cache_type: Option<CacheType>,
    /// Never use the network: take models that were downloaded before.
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

/// The models of a command that takes its target without the option's name too, as other programs
/// that run models do.
#[derive(Args, Debug, Clone)]
pub struct RunModelArgs {
    /// The target model, as --target takes it.
    // By this name threads.rs and serve.rs ask for it.
    #[arg(id = "unnamed", value_name = "MODEL", value_parser = model, conflicts_with = "target")]
    model: Option<String>,
    #[command(flatten)]
    named: ModelArgs,
}

impl RunModelArgs {
    /// What they say.
    pub fn options(&self) -> ModelOptions {
        let options = self.named.options();
        ModelOptions { target: self.model.clone().or(options.target), ..options }
    }
}

/// A model, and not what was meant to be a prompt.
fn model(text: &str) -> Result<String, String> {
    match text.contains(char::is_whitespace) && !std::path::Path::new(text).exists() {
        true => Err("expected a model, a directory, .gguf file or hub id; text for it follows \
                     --prompt where a command has that"
            .to_owned()),
        false => Ok(text.to_owned()),
    }
}

impl ModelArgs {
    /// What they say.
    pub fn options(&self) -> ModelOptions {
        ModelOptions {
            target: self.target.clone(),
            drafts: self.draft.clone(),
            corpus: self.corpus.clone(),
            learn: self.learn.clone(),
            mix_ngrams: self.mix_ngrams,
            draft_vocabulary: self.draft_vocabulary.clone(),
            draft_layers: self.draft_layers.clone(),
            dtype: self.dtype,
            draft_dtype: self.draft_dtype,
            copies: self.copies.clone(),
            cache_type: self.cache_type,
            offline: self.offline,
            backend: self.backend.options(),
            ..ModelOptions::default()
        }
    }

    /// Loads the target and, if one is needed, its draft.
    ///
    /// # Errors
    /// Options that contradict each other; models that cannot be loaded.
    pub fn load(&self, with_draft: bool) -> Result<Models> {
        self.options().load(with_draft, &Terminal)
    }
}

/// On or off.
fn whether(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("expected on or off, got {text:?}")),
    }
}
