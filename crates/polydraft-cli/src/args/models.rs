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
    /// Target model: a directory, a .gguf file, or a Hugging Face id.
    ///
    /// A directory contains config.json, tokenizer.json and model.safetensors (or shards with an
    /// index). An id is downloaded: org/name, org/name@revision, or org/name:Q4_K_M for one of
    /// several GGUF files. [default: the target of the demo pair]
    #[arg(long, value_name = "MODEL")]
    target: Option<String>,
    /// Draft: a model, a draft head, self, mtp, ngram or none.
    ///
    /// The tokens of a model with another tokenizer are translated. A draft head is one trained for
    /// the target (EAGLE, DFlash, DSpark). A table of n-grams is a file written by 'polydraft
    /// learn'. 'self' quantises the target's own weights to the first of q5_1, q4_1 and q4_0 that
    /// is much smaller than the target; 'self:TYPE' names the type. 'mtp' uses the multi-token
    /// prediction layer that some models have. 'ngram' uses the n-grams of the sequence and needs
    /// no model. 'none' decodes without a draft. May be repeated: each draft then draws its own
    /// path, which needs a verifier for distinct drafts, such as specinfer. [default: the draft of
    /// the demo pair if no target is given; otherwise a draft head that lies beside the target,
    /// 'mtp' if it has such a layer, 'self' for f32 and bf16 weights if the output is long enough
    /// to repay making the copy, or 'ngram']
    #[arg(long, value_name = "MODEL")]
    draft: Vec<String>,
    /// Draft with the model of a server: http://HOST:PORT of 'polydraft serve' or llama-server.
    ///
    /// As --draft URL. The server's model must have the target's tokenizer. It returns
    /// probabilities from which the tokens are drawn here, so the output keeps the target's
    /// distribution whatever it answers. A server that does not answer within a second costs one
    /// plain step; then it is left alone for a while. An output with a seed waits for every answer,
    /// at most a minute; 'serve' decodes it without the draft. The server's API key is read from
    /// the environment variable POLYDRAFT_DRAFT_KEY.
    #[arg(hide_short_help = true, long, value_name = "URL", value_parser = url)]
    draft_url: Vec<String>,
    /// Also use the n-grams of this file with --draft ngram.
    ///
    /// Use text of the same kind as the expected output, or a table written by 'polydraft learn'.
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    corpus: Option<PathBuf>,
    /// Draft from the n-gram table in FILE and keep training it.
    ///
    /// The table is created if it is missing. For every token of the target's output, the most
    /// likely tokens at its position are added with their probabilities, so acceptance grows with
    /// use. The table is saved every five minutes and at the end, and reveals something about the
    /// output. A seeded output can change after more has been learned.
    #[arg(long, value_name = "FILE")]
    learn: Option<PathBuf>,
    /// Mix n-grams of the sequence into the draft's distribution: on or off.
    ///
    /// Each source is weighted by how often it was right. [default: on for draft heads and 'mtp',
    /// which cannot copy; otherwise off]
    #[arg(hide_short_help = true, long, value_name = "WHETHER", value_parser = on_or_off)]
    mix_ngrams: Option<bool>,
    /// Tokens that the draft may propose: the first N, or a list in a file.
    ///
    /// A smaller vocabulary saves computation. Tokenizers number frequent tokens first. The file is
    /// a JSON list of token ids, or a list saved by PyTorch (FR-Spec).
    #[arg(hide_short_help = true, long, value_name = "N|FILE")]
    draft_vocabulary: Option<String>,
    /// Target layers whose inputs a draft head reads, such as 2,15,27.
    ///
    /// Needed only if low acceptance shows that the head's files name the wrong layers.
    #[arg(hide_short_help = true, long, value_name = "LAYERS", value_delimiter = ',')]
    draft_layers: Option<Vec<usize>>,
    /// Weight type: f32, f16, bf16, q8_0, q4_0, q4_1, q5_1, q4_k or file.
    ///
    /// f16 and bf16 take half the memory of f32, and are exact if the model was published so (on a
    /// CPU all arithmetic is in f32). q8_0, q4_0, q4_1, q5_1 and q4_k are quantised on loading: the
    /// quantised model is then sampled exactly, with the inputs of products rounded to 8 bits.
    /// q8_0-f32 has the weights of q8_0 and does not round inputs. file keeps the type of each
    /// matrix in the file; types without a kernel of their own are multiplied as f32. [default:
    /// file for a .gguf file, otherwise f32]
    #[arg(long, value_name = "TYPE")]
    dtype: Option<Precision>,
    /// Weight type of the draft.
    ///
    /// Changes the speed, never the distribution of the output. [default: the type of --dtype;
    /// q8_0 for draft heads]
    #[arg(hide_short_help = true, long, value_name = "TYPE")]
    draft_dtype: Option<Precision>,
    /// Folder in which the quantised weights of --draft self are cached, or none.
    ///
    /// The least recently used copies are deleted beyond 20 GB. [default: the user's cache folder]
    #[arg(hide_short_help = true, long, value_name = "FOLDER|none")]
    copies: Option<PathBuf>,
    /// Type of the KV cache: f32 or f16; with llama.cpp also bf16, q8_0 and q4_0.
    ///
    /// f16 takes half the memory and makes long sequences faster. The model with its cache rounded
    /// in this way is sampled exactly. The cache of a draft head stays in f32. [default: f32; f16
    /// with llama.cpp]
    #[arg(hide_short_help = true, long, value_name = "TYPE")]
    cache_type: Option<CacheType>,
    /// Never use the network: use models that are downloaded already.
    #[arg(hide_short_help = true, long)]
    offline: bool,
    /// Number of threads to compute with.
    ///
    /// At most the number of hardware threads. [default: one for a target of less than 64 MB, which
    /// is faster on a single thread; otherwise one per core]
    // Read in threads.rs before the command runs.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    #[command(flatten)]
    backend: BackendArgs,
}

/// Models of a command that also accepts its target as a positional argument, like other programs
/// that run models.
#[derive(Args, Debug, Clone)]
pub struct RunModelArgs {
    /// Target model: a directory, a .gguf file, or a Hugging Face id, as --target.
    // threads.rs and serve.rs refer to this id.
    #[arg(
        id = "unnamed",
        value_name = "MODEL",
        help_heading = "Arguments",
        value_parser = model,
        conflicts_with = "target",
    )]
    model: Option<String>,
    #[command(flatten)]
    named: ModelArgs,
}

impl RunModelArgs {
    /// Returns the options as a description.
    pub fn options(&self) -> ModelOptions {
        let options = self.named.options();
        ModelOptions { target: self.model.clone().or(options.target), ..options }
    }
}

/// Parses a model; rejects text that was probably meant as a prompt.
fn model(text: &str) -> Result<String, String> {
    match text.contains(char::is_whitespace) && !std::path::Path::new(text).exists() {
        true => Err("expected a model, a directory, .gguf file or hub id; its text follows \
                     --prompt where a command has that"
            .to_owned()),
        false => Ok(text.to_owned()),
    }
}

impl ModelArgs {
    /// Returns the options as a description.
    pub fn options(&self) -> ModelOptions {
        ModelOptions {
            target: self.target.clone(),
            drafts: [&self.draft[..], &self.draft_url].concat(),
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

    /// Loads the target and, if `with_draft`, its draft.
    ///
    /// # Errors
    /// Fails if options contradict each other, or a model cannot be loaded.
    pub fn load(&self, with_draft: bool) -> Result<Models> {
        self.options().load(with_draft, &Terminal)
    }
}

/// Parses the address of a server.
fn url(text: &str) -> Result<String, String> {
    match text.starts_with("http://") || text.starts_with("https://") {
        true => Ok(text.to_owned()),
        false => Err("expected an address such as http://192.168.0.2:8000".to_owned()),
    }
}

/// Parses `on` or `off`.
fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("expected on or off, got {text:?}")),
    }
}
