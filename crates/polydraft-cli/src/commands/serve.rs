//! `polydraft serve`: serves models over HTTP.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use crate::usage::UsageError;
use anyhow::{Context, Result};
use clap::builder::NonEmptyStringValueParser;
use polydraft_models::Precision;
use polydraft_runtime::{Description, ModelOptions};
use polydraft_server::{
    Capacity, LogFormat, LogLevel, OfferedModel, ServerOptions, is_valid_key, parse_origin,
};
use serde_json::{Map, Value};

use crate::args::{
    EndArgs, RunModelArgs, SamplingArgs, SpeculationArgs, TemplateArgs, TokenLimit, object,
    token_limit,
};
use crate::interrupts;
use crate::output::{Terminal, Verbosity, prints};

/// Serve models over HTTP, for clients of OpenAI, Anthropic, Ollama and llama.cpp.
///
/// Requests are decoded in batches, and each output has exactly the distribution, and for a seed
/// exactly the text, that it has alone; with --learn the text also depends on what was learned.
/// Options of speculation and sampling are the defaults of requests. After Ctrl-C or SIGTERM the
/// server lets running requests finish; a second signal stops it at once.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "\
Examples:
  polydraft serve model.gguf
  polydraft serve --model small=smollm2.gguf --model large=models/qwen3-8b,draft=models/qwen3-0.6b",
    after_long_help = "\
Examples:
  polydraft serve                      # the demo pair, on http://127.0.0.1:8000/
  polydraft serve --target models/qwen3-8b --draft models/qwen3-0.6b --parallel 8
  polydraft serve --model small=smollm2.gguf --model large=models/qwen3-8b,draft=models/qwen3-0.6b
  polydraft serve --host 0.0.0.0 --api-key-file key.txt
  curl http://127.0.0.1:8000/v1/completions -d '{\"prompt\": \"fn main() {\", \"max_tokens\": 32}'"
)]
pub struct Args {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    models: RunModelArgs,
    #[command(flatten)]
    speculation: SpeculationArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    template: TemplateArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

/// Reads an address, or the name of one; of several the first in IPv4, as clients try it.
fn parse_host(text: &str) -> Result<IpAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let problem = "expected an address or a name of this machine, such as 127.0.0.1, 0.0.0.0 or \
                   localhost";
    let found: Vec<SocketAddr> =
        (text, 0).to_socket_addrs().map_err(|error| format!("{problem}: {error}"))?.collect();
    let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
    first.map(SocketAddr::ip).ok_or_else(|| problem.to_owned())
}

#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Server")]
struct ServerArgs {
    /// Address to listen on.
    ///
    /// 0.0.0.0 listens on all addresses of the machine, which makes the server reachable for
    /// others. May be repeated or separated by commas: 127.0.0.1,::1. A name of this machine, such
    /// as localhost, stands for its first address.
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "127.0.0.1",
        value_delimiter = ',',
        value_parser = parse_host,
    )]
    host: Vec<IpAddr>,
    /// Port to listen on; 0 chooses a free one and prints it.
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    port: u16,
    /// Model name for clients.
    ///
    /// May be repeated; the first name is the one that answers report. [default: the name of the
    /// directory or file]
    #[arg(
        hide_short_help = true,
        long,
        value_name = "NAME",
        value_parser = NonEmptyStringValueParser::new(),
    )]
    name: Vec<String>,
    /// Model and its name for clients. May be repeated.
    ///
    /// The first model is loaded at the start, the others when a request names them; least recently
    /// used models are unloaded to free memory. Draft, weight types and n-gram table of a model
    /// follow its path: NAME=MODEL,draft=MODEL,dtype=TYPE,draft-dtype=TYPE or
    /// NAME=MODEL,learn=FILE. All other options apply to every model.
    #[arg(
        long = "model",
        value_name = "NAME=MODEL[,draft=MODEL]",
        value_parser = named_model,
        conflicts_with_all = ["target", "unnamed", "draft", "learn", "name"],
    )]
    models: Vec<NamedModel>,
    /// Unload a model after this many idle minutes; 0 disables it.
    ///
    /// [default: 5 with several models, otherwise 0]
    #[arg(hide_short_help = true, long, value_name = "MINUTES")]
    unload_after: Option<u64>,
    /// Key that clients must send as 'Authorization: Bearer KEY'.
    ///
    /// [default: the environment variable POLYDRAFT_API_KEY unless it is empty; other users of the
    /// machine cannot see it]
    #[arg(long, value_name = "KEY", conflicts_with = "api_key_file")]
    api_key: Option<String>,
    /// File whose first line is the key.
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Origin whose pages may send requests, such as https://example.org.
    ///
    /// 'localhost' allows every port of the browser's own machine, '*' every origin. May be
    /// repeated.
    #[arg(hide_short_help = true, long, value_name = "ORIGIN", value_parser = parse_origin)]
    cors: Vec<String>,
    /// Maximum number of sequences in a batch.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 32,
        value_parser = clap::value_parser!(u32).range(1..=4096),
    )]
    parallel: u32,
    /// Take any model name in requests.
    ///
    /// For clients that were configured with another model. Only with a single model.
    #[arg(long, conflicts_with = "models")]
    any_model_name: bool,
    /// Reject unknown parameters and those that have no effect.
    ///
    /// Otherwise they are ignored, and listed in the log and in the response header
    /// x-polydraft-ignored.
    #[arg(hide_short_help = true, long)]
    strict: bool,
    /// Default request parameters, as a JSON object.
    ///
    /// For example '{"seed": 1, "return_progress": true}': used as if clients had sent them.
    #[arg(hide_short_help = true, long, value_name = "JSON", value_parser = request_defaults)]
    request_defaults: Option<Parameters>,
    /// Also serve under this path prefix, such as /llm, for proxies that keep it.
    #[arg(
        hide_short_help = true,
        long,
        value_name = "PATH",
        value_parser = root_path,
        default_value = "",
        hide_default_value = true,
    )]
    root_path: String,
    /// Disable /metrics, which then answers with status 501.
    #[arg(hide_short_help = true, long)]
    no_metrics: bool,
    /// Continue a final assistant message, as llama-server does.
    ///
    /// Otherwise it is continued only if the request sets continue_final_message.
    #[arg(hide_short_help = true, long)]
    prefill_assistant: bool,
    /// Maximum of top_logprobs; -1 allows the whole vocabulary.
    #[arg(
        hide_short_help = true,
        long,
        value_name = "N",
        default_value_t = 20,
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(i64).range(-1..),
    )]
    max_logprobs: i64,
    /// Maximum number of waiting requests; more are rejected with status 429.
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 1024)]
    queue: usize,
    /// Memory for the KV cache of running sequences, in MiB.
    ///
    /// A request waits until the memory that it may need is free. The prefix cache of finished
    /// sequences takes up to 1 GiB more for the target and for the draft. [default: half of the
    /// free memory at the start]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..))]
    cache_memory: Option<u64>,
    /// Maximum number of tokens of a prompt and its output.
    ///
    /// [default: the model's context]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    context: Option<u32>,
    /// Maximum size of a request body, in bytes.
    #[arg(
        hide_short_help = true,
        long,
        value_name = "BYTES",
        default_value_t = 2 << 20,
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    max_body: u32,
    /// Form of the log on standard error: text, or one JSON object per line.
    ///
    /// The log has a line for every request that decodes, is refused or is cancelled: id, method,
    /// route, status, model, prompt_tokens, output_tokens, drafted_tokens, accepted_tokens,
    /// acceptance (accepted per drafted token), first_token_seconds, seconds, and the reason of a
    /// refusal. -v adds the other requests; -q prints errors only.
    #[arg(long, value_name = "FORMAT", default_value = "text", hide_short_help = true)]
    log_format: LogFormatArg,
    /// Seconds that running requests have to finish when the server stops.
    #[arg(hide_short_help = true, long, value_name = "SECONDS", default_value_t = 30)]
    grace: u64,
}

/// Form of the log.
#[derive(clap::ValueEnum, Debug, Clone, Copy)]
enum LogFormatArg {
    Text,
    Json,
}

#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Limits")]
struct LimitArgs {
    /// Default maximum number of tokens of a request; 0 or -1 is only limited by the context.
    ///
    /// [default: 128 for completions, 0 for conversations]
    #[arg(
        long,
        short = 'n',
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = token_limit,
    )]
    max_tokens: Option<TokenLimit>,
    #[command(flatten)]
    ends: EndArgs,
    /// Ignore generation_config.json, whose sampling settings are the defaults of conversations.
    #[arg(hide_short_help = true, long)]
    ignore_published: bool,
}

/// Serves until stopped.
///
/// # Errors
/// Fails if options contradict each other, if a model cannot be loaded, or if the address is not
/// available.
pub fn run(args: Args) -> Result<()> {
    let key = args.server.key()?;
    let description = Description {
        models: ModelOptions {
            template: args.template.options(),
            // Any request may have a seed.
            is_seeded: true,
            ..args.models.options()
        },
        speculation: args.speculation.options(),
        sampling: args.sampling.options(),
        // The server applies published settings only to conversations.
        published_sampling: false,
    };
    let models = args.served_models(description)?;
    polydraft_server::serve(args.into_options(key, models), &Terminal)
}

fn root_path(text: &str) -> Result<String, String> {
    let is_part = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~".contains(&b))
    };
    match text.strip_prefix('/') {
        Some(rest) if rest.split('/').all(is_part) => Ok(text.to_owned()),
        None if text.is_empty() => Ok(String::new()),
        _ => Err("expected a path of letters, digits and -._~, such as /llm".to_owned()),
    }
}

/// Default parameters of requests.
#[derive(Debug, Clone)]
struct Parameters(Map<String, Value>);

fn request_defaults(text: &str) -> Result<Parameters, String> {
    object(text, r#"{"seed": 1}"#).map(Parameters)
}

/// One of several models.
#[derive(Debug, Clone)]
struct NamedModel {
    name: String,
    target: String,
    draft: Option<String>,
    learn: Option<PathBuf>,
    dtype: Option<Precision>,
    draft_dtype: Option<Precision>,
}

fn named_model(text: &str) -> Result<NamedModel, String> {
    let expected = "expected NAME=MODEL, optionally followed by ,draft=MODEL ,learn=FILE \
                    ,dtype=TYPE or ,draft-dtype=TYPE";
    let (name, rest) = text.split_once('=').ok_or(expected)?;
    let mut parts = rest.split(',');
    let target = parts.next().unwrap_or_default();
    if name.is_empty() || target.is_empty() {
        return Err(expected.to_owned());
    }
    let mut model = NamedModel {
        name: name.to_owned(),
        target: target.to_owned(),
        draft: None,
        learn: None,
        dtype: None,
        draft_dtype: None,
    };
    for part in parts {
        let kind = |value: &str| value.parse::<Precision>().map_err(|error| error.to_string());
        match part.split_once('=') {
            Some(("draft", draft)) => model.draft = Some(draft.to_owned()),
            Some(("learn", file)) => model.learn = Some(file.into()),
            Some(("dtype", value)) => model.dtype = Some(kind(value)?),
            Some(("draft-dtype", value)) => model.draft_dtype = Some(kind(value)?),
            _ => return Err(format!("{expected}, got {part:?}")),
        }
    }
    Ok(model)
}

/// Returns the first value that occurred before.
fn first_duplicate<T: PartialEq>(all: &[T]) -> Option<&T> {
    all.iter().enumerate().find(|(number, one)| all[..*number].contains(one)).map(|(_, one)| one)
}

impl ServerArgs {
    fn key(&self) -> Result<Option<String>> {
        let from_file = |file: &PathBuf| {
            let text = polydraft_files::read_text(file, polydraft_files::FileKind::CONFIG)
                .with_context(|| format!("cannot read the API key {}", file.display()))?;
            anyhow::Ok(text.lines().next().unwrap_or_default().trim().to_owned())
        };
        let key = match (&self.api_key, &self.api_key_file) {
            (Some(key), _) => Some(key.clone()),
            (None, Some(file)) => Some(from_file(file)?),
            // An empty variable counts as none: container files cannot unset one.
            (None, None) => std::env::var("POLYDRAFT_API_KEY").ok().filter(|key| !key.is_empty()),
        };
        if key.as_ref().is_some_and(String::is_empty) {
            return Err(UsageError::error("the API key is empty"));
        }
        if key.as_ref().is_some_and(|key| !is_valid_key(key)) {
            return Err(UsageError::error(
                "the API key starts or ends with a space, or contains control characters",
            ));
        }
        Ok(key)
    }
}

impl Args {
    /// Returns the models: the common description with each model's own options.
    fn served_models(&self, common: Description) -> Result<Vec<OfferedModel>> {
        let named = &self.server.models;
        if named.is_empty() {
            return Ok(vec![OfferedModel { names: self.server.name.clone(), description: common }]);
        }
        let names: Vec<&String> = named.iter().map(|model| &model.name).collect();
        if let Some(duplicate) = first_duplicate(&names) {
            return Err(UsageError::error(format!("--model: {duplicate:?} is given twice")));
        }
        let files: Vec<&PathBuf> = named.iter().filter_map(|model| model.learn.as_ref()).collect();
        if let Some(duplicate) = first_duplicate(&files) {
            let file = duplicate.display();
            return Err(UsageError::error(format!(
                "--model: expected one model per table, got two models that learn {file}"
            )));
        }
        let served = |model: &NamedModel| {
            let mut description = common.clone();
            let models = &mut description.models;
            models.target = Some(model.target.clone());
            models.drafts = model.draft.iter().cloned().collect();
            models.learn.clone_from(&model.learn);
            models.dtype = model.dtype.or(models.dtype);
            models.draft_dtype = model.draft_dtype.or(models.draft_dtype);
            OfferedModel { names: vec![model.name.clone()], description }
        };
        Ok(named.iter().map(served).collect())
    }

    fn into_options(self, key: Option<String>, models: Vec<OfferedModel>) -> ServerOptions {
        let Self { server, limits, .. } = self;
        let idle = server.unload_after.unwrap_or(if models.len() > 1 { 5 } else { 0 });
        ServerOptions {
            addresses: server.host.iter().map(|host| SocketAddr::new(*host, server.port)).collect(),
            models,
            capacity: Capacity {
                sequences: server.parallel as usize,
                tokens: usize::MAX,
                queue: server.queue,
            },
            cache_memory: server.cache_memory.map(|mib| mib << 20),
            api_key: key,
            allowed_origins: server.cors,
            context: server.context.map(|context| context as usize),
            max_body_bytes: server.max_body as usize,
            grace_period: Duration::from_secs(server.grace),
            any_model_name: server.any_model_name,
            strict: server.strict,
            defaults: server.request_defaults.map(|given| given.0).unwrap_or_default(),
            path_prefix: server.root_path,
            continue_final_answer: server.prefill_assistant,
            serve_metrics: !server.no_metrics,
            max_logprobs: usize::try_from(server.max_logprobs).unwrap_or(usize::MAX),
            unload_after: (idle > 0).then(|| Duration::from_secs(60 * idle)),
            max_tokens: limits.max_tokens.map(|limit| limit.0.unwrap_or(0)),
            stop: limits.ends.stop(),
            ignore_end_tokens: limits.ends.ignores_end(),
            ignore_published_sampling: limits.ignore_published,
            log_level: match (prints(Verbosity::Verbose), prints(Verbosity::Normal)) {
                (true, _) => LogLevel::Debug,
                (false, true) => LogLevel::Info,
                (false, false) => LogLevel::Error,
            },
            log_format: match server.log_format {
                LogFormatArg::Text => LogFormat::Text,
                LogFormatArg::Json => LogFormat::Json,
            },
            interrupted_exit_code: interrupts::EXIT_CODE,
        }
    }
}
