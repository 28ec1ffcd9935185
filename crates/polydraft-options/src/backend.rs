//! What computes a model: candle, or llama.cpp; and how llama.cpp is to.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use polydraft_llama::{BUILT, CacheType, Description, FlashAttention, LlamaOptions, Split};
use polydraft_models::is_gguf;
use polydraft_text::LanguageModel;

use crate::output::{Usage, detail};
use crate::threads;

/// What computes a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// The program's own forward pass, on candle.
    Candle,
    /// llama.cpp: GGUF files of any architecture that it has.
    Llama,
}

/// Which backend, and how llama.cpp computes.
#[derive(Args, Debug, Clone)]
#[command(
    next_help_heading = "llama.cpp, for GGUF files (in programs built with the feature llama)"
)]
pub struct BackendArgs {
    /// What computes the target: candle, or llama for llama.cpp, which takes GGUF files of any
    /// architecture that it has and needs a program built with --features llama [default: llama for
    /// a .gguf file in a program that was built so, unless --dtype, --device, --draft self or a
    /// draft head ask for candle].
    #[arg(long, value_name = "NAME")]
    backend: Option<Backend>,
    /// What computes the draft [default: as --backend says, or by the draft's file].
    #[arg(long, value_name = "NAME")]
    draft_backend: Option<Backend>,
    /// Tokens that one text may have [default: what the model was trained for, at most 8192; memory
    /// for all of them is taken at once].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    context: Option<u32>,
    /// Tokens that all texts and their drafts may have together [default: those of one text and
    /// 512].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cache_tokens: Option<u32>,
    /// Attention that does not write its scores to memory: auto, on or off [default: auto].
    #[arg(long, value_name = "WHEN")]
    flash_attention: Option<FlashAttention>,
    /// Other machines to compute layers of the target, each running llama.cpp's rpc-server:
    /// HOST:PORT,.. Read docs/distributed.md first: whoever reaches that port commands that
    /// machine.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', value_parser = server)]
    rpc: Vec<String>,
    /// Layers of the model to compute on graphics cards and other machines, where there are any
    /// [default: all].
    #[arg(long, value_name = "N")]
    gpu_layers: Option<u32>,
    /// The card that has what is not divided [default: 0].
    #[arg(long, value_name = "N")]
    main_gpu: Option<u32>,
    /// How a model is divided between cards and other machines, which come first: none, layer (as
    /// memory allows), row, or a share of the layers for each, such as 3,1 [default: layer].
    #[arg(long, value_name = "HOW")]
    split: Option<Split>,
    /// Threads for passes over several tokens, which have more work in them [default: as
    /// --threads].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    batch_threads: Option<u32>,
}

impl BackendArgs {
    /// What computes the target in `path`. `candle` names what was asked for that only candle has;
    /// beside a draft of candle's own, a copy of the target or a head, it is the choice where
    /// nothing is said.
    pub(crate) fn of_target(
        &self,
        path: &Path,
        candle: Option<&str>,
        with_candle: bool,
    ) -> Result<Backend> {
        match self.backend {
            None if with_candle => Ok(Backend::Candle),
            given => choose("--backend", given, path, candle),
        }
    }

    /// The same for the draft.
    pub(crate) fn of_draft(&self, path: &Path, candle: Option<&str>) -> Result<Backend> {
        match self.draft_backend {
            None if self.backend == Some(Backend::Candle) => Ok(Backend::Candle),
            given => choose("--draft-backend", given, path, candle),
        }
    }

    /// Checks that nothing was asked of llama.cpp where it computes neither target nor draft.
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
                "{option} is for models on llama.cpp: expected --backend llama or a .gguf file, got models on candle"
            ))),
        }
    }

    /// Loads the target on llama.cpp, on other machines too if they are named.
    pub(crate) fn load_target(
        &self,
        path: &Path,
        cache: Option<CacheType>,
    ) -> Result<LanguageModel> {
        self.load(path, "target", cache)
    }

    /// Loads the draft on llama.cpp: here, as each of its passes would be a journey, and with as
    /// much of the context as it has.
    pub(crate) fn load_draft(
        &self,
        path: &Path,
        cache: Option<CacheType>,
    ) -> Result<LanguageModel> {
        let trained = Description::read(path).context("loading the draft model")?.context;
        let mut own = self.clone();
        own.context =
            self.context.map(|tokens| tokens.min(u32::try_from(trained).unwrap_or(u32::MAX)));
        if !self.rpc.is_empty() {
            // Shares and numbers of devices of which other machines' are the first.
            (own.rpc, own.split, own.main_gpu) = (Vec::new(), None, None);
        }
        own.load(path, "draft", cache)
    }

    fn load(&self, path: &Path, role: &str, cache: Option<CacheType>) -> Result<LanguageModel> {
        let threads = threads::settled() as u32;
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
        detail(format_args!(
            "{role}: {} on llama.cpp, {threads} threads; room for {} tokens; loaded in {:.2} s",
            path.display(),
            loaded.model.facts().context,
            clock.elapsed().as_secs_f64()
        ));
        Ok(loaded)
    }

    /// All of it that changes what a pass costs.
    pub(crate) fn identity(&self) -> String {
        format!(
            "llama.cpp, {}, {:?} layers on cards, {}, {:?} threads, machines {:?}",
            self.flash_attention.unwrap_or_default(),
            self.gpu_layers,
            self.split.clone().unwrap_or_default(),
            self.batch_threads,
            self.rpc
        )
    }
}

/// Another machine, as it was written.
fn server(text: &str) -> Result<String, String> {
    let wrong = || format!("expected HOST:PORT such as 10.0.0.2:50052, got {text:?}");
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let plain = !host.is_empty() && !host.contains([':', '/', ' ']);
    match port.parse::<u16>() {
        Ok(1..) if plain => Ok(text.to_owned()),
        _ => Err(wrong()),
    }
}

fn choose(
    option: &str,
    given: Option<Backend>,
    path: &Path,
    candle: Option<&str>,
) -> Result<Backend> {
    match given {
        None if BUILT && is_gguf(path) && candle.is_none() => Ok(Backend::Llama),
        None | Some(Backend::Candle) => Ok(Backend::Candle),
        Some(Backend::Llama) if !BUILT => {
            Err(Usage::error(format_args!("{option} llama: {}", polydraft_llama::Error::NotBuilt)))
        }
        Some(Backend::Llama) if !is_gguf(path) => Err(Usage::error(format_args!(
            "{option} llama: expected a .gguf file, got {}; candle computes directories",
            path.display()
        ))),
        Some(Backend::Llama) => match candle {
            None => Ok(Backend::Llama),
            Some(what) => Err(Usage::error(format_args!(
                "{option} llama: {what} is for candle; llama.cpp computes weights as their file has them"
            ))),
        },
    }
}
