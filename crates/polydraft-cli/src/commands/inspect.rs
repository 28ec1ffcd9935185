//! `polydraft inspect`: properties and memory of a model.

mod foreign;
mod positions;

use std::borrow::Cow;
use std::io::{IsTerminal, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use polydraft_engine::HiddenState;
use polydraft_models::{
    Bytes, CacheType, Description, HeadDescription, LoadOptions, Mixer, Precision,
    available_memory, is_gguf, is_head,
};
use polydraft_runtime::message::command_line;
use polydraft_runtime::{
    Corpus, Draft, Ngrams, Translated, check_self_draft, default_precision, describe_gguf,
    model_files, tables, translate,
};
use serde::Serialize;

use crate::output;
use crate::usage::UsageError;
use positions::positions;

/// Show a model's architecture and memory use, without reading its weights.
///
/// With a second model, also report whether it can draft for the first.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  polydraft inspect models/llama-8b
  polydraft inspect models/llama-8b models/llama-1b
  polydraft inspect model.gguf self --dtype f32     # does a quantised self-draft fit?")]
pub struct Args {
    /// Model: a directory, a .gguf file, or a Hugging Face id.
    ///
    /// An id is org/name, or org/name:Q4_K_M for one of several GGUF files.
    #[arg(value_name = "MODEL")]
    model: String,
    /// Possible draft: a model, a draft head, an n-gram table, self[:TYPE], mtp or ngram.
    #[arg(value_name = "DRAFT")]
    draft: Option<String>,
    /// Weight type of the model, for a self-draft [default: as for 'generate'].
    #[arg(long, value_name = "TYPE", requires = "draft")]
    dtype: Option<Precision>,
    /// Never use the network: use models that are downloaded already.
    #[arg(long)]
    offline: bool,
    /// Print one JSON object instead of lines.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    directory: String,
    architecture: &'static str,
    /// Whether only the text part of a multimodal model is described.
    text_part: bool,
    parameters: u64,
    /// Parameters used per token: fewer in mixtures of experts.
    active_parameters: u64,
    experts: Option<Experts>,
    /// Layers with a recurrent state instead of a KV cache.
    recurrent: Option<Recurrent>,
    /// Number of multi-token prediction (MTP) layers, for `--draft mtp`.
    extra_layers: usize,
    stored: String,
    layers: usize,
    hidden: usize,
    heads: usize,
    key_value_heads: usize,
    /// Key-value heads of layers with full attention, if different.
    full_key_value_heads: Option<usize>,
    /// Layers that use the KV caches of other layers.
    borrowing_layers: usize,
    context: usize,
    window: Option<usize>,
    positions: String,
    embedding_rows: usize,
    tokens: usize,
    tokenizer: &'static str,
    end_tokens: Vec<String>,
    chat_template: Option<String>,
    published_sampling: Option<String>,
    weights: Vec<Weights>,
    cache_bytes_per_1000_tokens: u64,
    memory_available: Option<u64>,
    draft: Option<DraftReport>,
}

#[derive(Serialize)]
struct Recurrent {
    layers: usize,
    kind: &'static str,
    /// Size of the state per sequence.
    state_bytes: u64,
}

#[derive(Serialize)]
struct Experts {
    count: usize,
    /// Experts used per token.
    used: usize,
    /// Whether a shared expert computes every token.
    shared: bool,
    layers: usize,
}

#[derive(Serialize)]
struct Weights {
    dtype: &'static str,
    bytes: u64,
    fits: Option<bool>,
}

#[derive(Serialize)]
struct DraftReport {
    directory: String,
    parameters: u64,
    fits: bool,
    problem: Option<String>,
    /// Size of a quantised self-draft in bytes.
    copy_bytes: Option<u64>,
    /// Share of common tokens, if the draft has another tokenizer.
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_tokens: Option<f64>,
    /// Kind and hidden states of a draft head.
    head: Option<String>,
    /// Training data of an n-gram table.
    table: Option<String>,
}

/// Prints a model's properties.
///
/// # Errors
/// Fails if the file is not a model.
pub fn run(args: Args) -> Result<()> {
    let locate = |name: &str| model_files::locate(name, args.offline, &output::Terminal);
    let path = locate(&args.model)?;
    let model = match Description::read(&path) {
        Ok(model) => model,
        Err(_) if is_head(&path) || tables::is_table(&path) => {
            let description = if is_head(&path) { "a draft head" } else { "a table of n-grams" };
            let draft = path.display();
            return Err(UsageError::error(format_args!(
                "{draft} is {description}, which is inspected together with its target: polydraft \
                 inspect TARGET {draft}"
            )));
        }
        // The architecture may be one of llama.cpp only.
        Err(error) => match describe_gguf(&path) {
            Ok(other) if is_gguf(&path) && args.draft.is_none() => {
                return foreign::report(&path, &other, &error.to_string(), args.json);
            }
            _ => return Err(error).context("reading the model"),
        },
    };
    let draft = match args.draft.as_deref() {
        None => None,
        Some(name) => {
            let draft = Draft::resolve(name, args.offline, &output::Terminal)?;
            Some(DraftReport::new(&model, &draft, args.dtype)?)
        }
    };
    let report = Report::new(&model, draft);
    if args.json {
        return output::json(&report);
    }
    report.print()
}

impl Report {
    fn new(model: &Description, draft: Option<DraftReport>) -> Self {
        let config = &model.config;
        let options = |precision| LoadOptions { precision, ..LoadOptions::default() };
        let available = available_memory();
        let weights = Precision::ALL.map(|precision| Weights {
            dtype: precision.name(),
            bytes: model.weight_bytes(precision),
            fits: available.map(|free| model.needed_bytes(options(precision)) <= free),
        });
        let end_tokens =
            model.language.end_tokens.iter().map(|&id| match model.language.vocabulary.token(id) {
                Some(text) => text.to_owned(),
                None => id.to_string(),
            });
        Self {
            directory: model.directory.display().to_string(),
            architecture: config.architecture,
            text_part: config.is_multimodal,
            parameters: model.parameters,
            active_parameters: model.active_parameters,
            experts: config.experts.as_ref().map(|experts| Experts {
                count: experts.count,
                used: experts.used,
                shared: experts.shared.is_some(),
                layers: experts.layers.iter().filter(|has| **has).count(),
            }),
            recurrent: config.recurrent.as_ref().map(|recurrent| Recurrent {
                layers: recurrent.layers.iter().filter(|is| **is).count(),
                kind: match recurrent.mixer {
                    Mixer::Delta(_) => "the gated delta rule",
                    Mixer::Convolution { .. } => "short convolutions",
                    Mixer::StateSpace { .. } => "Mamba-2's state space",
                },
                state_bytes: config.state_bytes(),
            }),
            extra_layers: config.mtp_modules,
            stored: model.stored.clone(),
            layers: config.layers,
            hidden: config.hidden,
            heads: config.heads,
            key_value_heads: config.key_value_heads,
            full_key_value_heads: Some(config.head_shape_for(false).key_value_heads)
                .filter(|heads| *heads != config.key_value_heads),
            borrowing_layers: config.attention.shared_kv_layers,
            context: config.context,
            window: config.attention.window,
            positions: positions(&config.positions, &config.attention.unrotated),
            embedding_rows: config.vocabulary,
            tokens: model.language.vocabulary.size(),
            tokenizer: model.language.tokenizer.kind(),
            end_tokens: end_tokens.collect(),
            chat_template: chat_template(model),
            published_sampling: sampling(model),
            weights: weights.into(),
            cache_bytes_per_1000_tokens: model.cache_bytes(1_000, CacheType::default()),
            memory_available: available,
            draft,
        }
    }

    fn print(&self) -> Result<()> {
        let mut out = std::io::stdout().lock();
        let terminal = out.is_terminal();
        let mut line = |name: &str, value: String| {
            // Names of folders and tokens are untrusted.
            let value = if terminal { output::visible(&value) } else { Cow::Borrowed(&value[..]) };
            writeln!(out, "{name:<16} {value}")
        };
        line("model", self.directory.clone())?;
        let part = if self.text_part { ", its text part" } else { "" };
        line("family", format!("{}{part}", self.architecture))?;
        let active = match self.active_parameters < self.parameters {
            false => String::new(),
            true => format!(", {} active for a token", count(self.active_parameters)),
        };
        line("parameters", format!("{} in {}{active}", count(self.parameters), self.stored))?;
        if let Some(Experts { count, used, shared, layers }) = &self.experts {
            let shared = if *shared { ", and a shared one" } else { "" };
            line(
                "experts",
                format!("{count} in each of {layers} layers, {used} of them for a token{shared}"),
            )?;
        }
        if let Some(Recurrent { layers, kind, state_bytes }) = &self.recurrent {
            let state = Bytes(*state_bytes);
            line(
                "state",
                format!(
                    "{layers} of {} layers have one, of {kind}: {state} per sequence of any length",
                    self.layers
                ),
            )?;
        }
        if self.extra_layers > 0 {
            line("MTP", "a multi-token prediction layer: --draft mtp".to_owned())?;
        }
        let full = self
            .full_key_value_heads
            .map_or(String::new(), |heads| format!(", {heads} in layers with full attention"));
        line(
            "shape",
            format!(
                "{} layers, width {}, {} heads ({} key-value heads{full})",
                self.layers, self.hidden, self.heads, self.key_value_heads
            ),
        )?;
        if self.borrowing_layers > 0 {
            let layers = match self.borrowing_layers {
                1 => "the last layer uses".to_owned(),
                several => format!("the last {several} layers use"),
            };
            line("", format!("{layers} the KV cache of lower ones"))?;
        }
        let window = self
            .window
            .map_or(String::new(), |w| format!("; a window of {w} in some or all layers"));
        line("context", format!("{} tokens{window}", self.context))?;
        line("positions", self.positions.clone())?;
        let padding = match self.embedding_rows - self.tokens {
            0 => String::new(),
            rows => format!("; {rows} padding rows, which are not used"),
        };
        line("tokenizer", format!("{}, {} tokens{padding}", self.tokenizer, self.tokens))?;
        line(
            "end tokens",
            if self.end_tokens.is_empty() { "none".into() } else { self.end_tokens.join(" ") },
        )?;
        line(
            "chat template",
            self.chat_template.as_ref().map_or("none".to_owned(), |s| format!("yes, in {s}")),
        )?;
        if let Some(sampling) = &self.published_sampling {
            line("sampling", format!("{sampling} (published; used by chat)"))?;
        }
        for (i, weights) in self.weights.iter().enumerate() {
            let name = if i == 0 { "memory" } else { "" };
            let fits = match weights.fits {
                Some(false) => "  does not fit",
                _ => "",
            };
            line(name, format!("{:<8} {:>9}{fits}", weights.dtype, Bytes(weights.bytes)))?;
        }
        let cache = Bytes(self.cache_bytes_per_1000_tokens);
        line(
            "",
            format!("and {cache} of KV cache per 1,000 tokens, half of it with --cache-type f16"),
        )?;
        if let Some(free) = self.memory_available {
            line("", format!("of {} that are free", Bytes(free)))?;
        }
        if let Some(draft) = &self.draft {
            let description =
                match (&draft.copy_bytes, draft.head.as_ref().or(draft.table.as_ref())) {
                    (Some(bytes), _) => {
                        format!("a quantised copy of the weights, {} more", Bytes(*bytes))
                    }
                    (_, Some(words)) if draft.parameters == 0 => words.clone(),
                    (_, Some(head)) => {
                        format!("a head of {} parameters: {head}", count(draft.parameters))
                    }
                    _ if draft.parameters == 0 => {
                        "needs no model, and drafts for every target".to_owned()
                    }
                    _ if draft.parameters < self.parameters => {
                        let share = self.parameters as f64 / draft.parameters as f64;
                        format!("{} parameters, {share:.1} times fewer", count(draft.parameters))
                    }
                    _ => format!(
                        "{} parameters, no fewer: it will not be faster",
                        count(draft.parameters)
                    ),
                };
            let shared =
                draft.shared_tokens.map(|n| format!("; {:.0} % of tokens in both", 100.0 * n));
            let description = description + shared.as_deref().unwrap_or_default();
            line("draft", draft.directory.clone())?;
            line(
                "",
                match &draft.problem {
                    None => format!("yes, it can draft: {description}"),
                    Some(problem) => format!("no: {problem}"),
                },
            )?;
        }
        Ok(())
    }
}

impl DraftReport {
    /// Describes a draft of a target of this weight type, or of the default one.
    fn new(target: &Description, draft: &Draft, dtype: Option<Precision>) -> Result<Self> {
        Ok(match draft {
            Draft::SelfDraft(kind) => Self::self_draft(target, *kind, dtype),
            Draft::Ngrams(Ngrams { corpus: Some(Corpus::Table(file)), .. }) => {
                Self::table(target, file)?
            }
            Draft::Head(files) | Draft::BlockHead(files) | Draft::Assistant(files) => {
                Self::head(target, &files.path).context("reading the draft head")?
            }
            Draft::Model(files) => {
                Self::model(target, &Description::read(&files.path).context("reading the draft")?)
            }
            Draft::Mtp => {
                let problem = "the model has no multi-token prediction layer";
                let problem = (!target.has_mtp()).then(|| problem.to_owned());
                let head = Some("the model's own multi-token prediction layer".to_owned());
                Self { head, ..Self::usable(draft.to_string(), 0, problem) }
            }
            Draft::None => {
                Self::usable(draft.to_string(), 0, Some("none means plain decoding".to_owned()))
            }
            Draft::Remote(url) => bail!("{url}: a server is checked when it drafts, not here"),
            Draft::Ngrams(_) | Draft::Several(_) => Self::usable(draft.to_string(), 0, None),
        })
    }

    /// Creates the report of a usable draft, or of one with a problem.
    fn usable(directory: String, parameters: u64, problem: Option<String>) -> Self {
        Self {
            directory,
            parameters,
            fits: problem.is_none(),
            problem,
            copy_bytes: None,
            shared_tokens: None,
            head: None,
            table: None,
        }
    }

    fn model(target: &Description, draft: &Description) -> Self {
        let size = |model: &Description| model.language.vocabulary.size();
        let checked = target.language.vocabulary.check_draft(&draft.language.vocabulary);
        let translated =
            || translate((&target.language, size(target)), (&draft.language, size(draft)));
        let (problem, shared) = match checked.map_err(|error| (error, translated())) {
            Ok(()) => (None, None),
            Err((_, Translated::Yes(translation))) => (None, Some(translation.shared())),
            Err((error, _)) => (Some(error.to_string()), None),
        };
        let path = draft.directory.display().to_string();
        Self { shared_tokens: shared, ..Self::usable(path, draft.parameters, problem) }
    }

    fn table(target: &Description, file: &Path) -> Result<Self> {
        let table = tables::read(file)?;
        let problem = table.check(&target.language.vocabulary).err().map(|e| e.to_string());
        let (learned, contexts) = (count(table.learned()), count(table.contexts() as u64));
        let description = format!("n-grams of {learned} generated tokens, {contexts} contexts");
        Ok(Self {
            table: Some(description),
            ..Self::usable(file.display().to_string(), 0, problem)
        })
    }

    fn head(target: &Description, directory: &Path) -> Result<Self> {
        let read =
            HeadDescription::read(directory, &target.config, target.language.vocabulary.size());
        let path = directory.display().to_string();
        let HeadDescription { kind, parameters, layers, tokens, hidden_states } = match read {
            Ok(head) => head,
            // Probably a head of another target; a file that is not a head is an error.
            Err(error @ polydraft_models::Error::File { .. }) => {
                return Ok(Self::usable(path, 0, Some(error.to_string())));
            }
            Err(error) => return Err(error.into()),
        };
        let reads = hidden_states.into_iter().map(|feature| match feature {
            HiddenState::After(layers) => layers.to_string(),
            HiddenState::Output => "the last norm".to_owned(),
        });
        let reads: Vec<String> = reads.collect();
        let layers = if layers == 1 { "one layer".to_owned() } else { format!("{layers} layers") };
        let head = format!(
            "{kind}, {layers}, {tokens} tokens; reads the hidden states after {}",
            reads.join(", ")
        );
        Ok(Self { head: Some(head), ..Self::usable(path, parameters, None) })
    }

    fn self_draft(target: &Description, kind: Option<Precision>, dtype: Option<Precision>) -> Self {
        let precision = dtype.unwrap_or_else(|| default_precision(&target.directory));
        let (kind, checked) = check_self_draft(target, kind, precision);
        let problem = checked.as_ref().err().map(|problem| {
            let hint = if dtype.is_none() { "; another --dtype may help" } else { "" };
            format!("{}{hint}", problem.render(command_line))
        });
        let copy_bytes = checked.ok().map(|bytes| bytes.0);
        let name = match copy_bytes {
            Some(_) => format!("self:{kind}"),
            None => "self".to_owned(),
        };
        Self { copy_bytes, ..Self::usable(name, target.parameters, problem) }
    }
}

/// Returns the name of the template's file.
fn chat_template(model: &Description) -> Option<String> {
    let file = model.language.chat.as_ref()?.path().file_name()?;
    Some(file.to_string_lossy().into_owned())
}

/// Formats the published settings in terms of the options; `None` if there are none.
fn sampling(model: &Description) -> Option<String> {
    let s = &model.language.sampling;
    let settings = [
        s.temperature.map(|t| format!("temperature {t}")),
        s.top_k.map(|k| format!("top-k {k}")),
        s.top_p.map(|p| format!("top-p {p}")),
        s.min_p.map(|p| format!("min-p {p}")),
    ];
    let missing = s.unsupported.iter().map(|s| format!("{s} (not supported)"));
    let all: Vec<String> = settings.into_iter().flatten().chain(missing).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// Formats a number, for example 1,235,814,400 as 1.24 billion.
fn count(number: u64) -> String {
    let n = number as f64;
    match number {
        0..1_000_000 => number.to_string(),
        1_000_000..1_000_000_000 => format!("{:.1} million", n / 1e6),
        _ => format!("{:.2} billion", n / 1e9),
    }
}
