//! Options of the backends: native, and llama.cpp with its settings.

use clap::Args;
use polydraft_runtime::{BackendKind, BackendOptions, FlashAttention, Split};

/// Whether this program was built without llama.cpp: help then hides these options.
const ABSENT: bool = !cfg!(feature = "llama");

/// The backend, and the settings of llama.cpp.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "llama.cpp, for GGUF files")]
pub struct BackendArgs {
    /// Backend of the target: native, or llama for llama.cpp.
    ///
    /// llama.cpp runs GGUF files of every architecture that it knows, and needs a program built
    /// with --features llama. [default: llama for a .gguf file if the program was built so, unless
    /// --dtype, --draft self or a draft head require native]
    #[arg(hide_short_help = true, long, hide = ABSENT, value_name = "NAME")]
    backend: Option<BackendKind>,
    /// Backend of the draft.
    ///
    /// [default: the one of --backend, or by the draft's file]
    #[arg(hide_short_help = true, long, hide = ABSENT, value_name = "NAME")]
    draft_backend: Option<BackendKind>,
    /// Context length of one sequence, in tokens.
    ///
    /// The memory for all sequences is allocated at the start. [default: the model's trained
    /// context, at most 8192]
    #[arg(
        hide_short_help = true,
        long,
        hide = ABSENT,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    context: Option<u32>,
    /// Size of the KV cache for all sequences and their drafts, in tokens.
    ///
    /// [default: the context of one sequence plus 512]
    #[arg(
        hide_short_help = true,
        long,
        hide = ABSENT,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    cache_tokens: Option<u32>,
    /// Flash attention, which does not store its scores: auto, on or off [default: auto].
    #[arg(hide_short_help = true, long, hide = ABSENT, value_name = "WHEN")]
    flash_attention: Option<FlashAttention>,
    /// Other machines that compute layers of the target, as HOST:PORT,...
    ///
    /// Each runs llama.cpp's rpc-server. Read docs/distributed.md first: every client that reaches
    /// that port controls that machine.
    #[arg(
        hide_short_help = true,
        long,
        hide = ABSENT,
        value_name = "HOST:PORT",
        value_delimiter = ',',
        value_parser = server,
    )]
    rpc: Vec<String>,
    /// Number of layers to compute on GPUs and other machines [default: all].
    #[arg(hide_short_help = true, long, hide = ABSENT, value_name = "N")]
    gpu_layers: Option<u32>,
    /// GPU for everything that is not split [default: 0].
    #[arg(hide_short_help = true, long, hide = ABSENT, value_name = "N")]
    main_gpu: Option<u32>,
    /// How the model is split between GPUs and machines: none, layer, row, or shares such as 3,1.
    ///
    /// Other machines come before GPUs. 'layer' splits as memory allows; shares divide the layers.
    /// [default: layer]
    #[arg(hide_short_help = true, long, hide = ABSENT, value_name = "HOW")]
    split: Option<Split>,
    /// Number of threads for passes over several tokens, which are bound by computation.
    ///
    /// [default: as --threads]
    #[arg(
        hide_short_help = true,
        long,
        hide = ABSENT,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=1024),
    )]
    batch_threads: Option<u32>,
}

impl BackendArgs {
    /// Returns the options as a description.
    pub fn options(&self) -> BackendOptions {
        BackendOptions {
            backend: self.backend,
            draft_backend: self.draft_backend,
            context: self.context,
            cache_tokens: self.cache_tokens,
            flash_attention: self.flash_attention,
            rpc: self.rpc.clone(),
            gpu_layers: self.gpu_layers,
            main_gpu: self.main_gpu,
            split: self.split.clone(),
            batch_threads: self.batch_threads,
        }
    }
}

/// Parses the address of another machine.
fn server(text: &str) -> Result<String, String> {
    let invalid = || format!("expected HOST:PORT such as 10.0.0.2:50052, got {text:?}");
    let (host, port) = text.rsplit_once(':').ok_or_else(invalid)?;
    let plain = !host.is_empty() && !host.contains([':', '/', ' ']);
    match port.parse::<u16>() {
        Ok(1..) if plain => Ok(text.to_owned()),
        _ => Err(invalid()),
    }
}
