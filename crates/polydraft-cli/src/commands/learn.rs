//! `polydraft learn`: an n-gram table of a model's own output, to draft for it.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::builder::RangedU64ValueParser;
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};
use polydraft_lessons::{NgramPlan, NgramProgress, learn_ngrams};
use polydraft_models::Precision;
use polydraft_runtime::{PROGRESS_INTERVAL, model_files};
use serde::Serialize;

use crate::interrupts::InterruptGuard;
use crate::output;
use crate::provenance::MadeBy;

/// Learn an n-gram table from a model: a draft that costs almost nothing.
///
/// The model generates text (conversations with itself if it has a chat template), and its most
/// likely tokens at each position are stored with their probabilities. Nothing is trained. More
/// tokens give a higher acceptance, which is measured on each part of the text before it is
/// learned. With --text the model reads your text instead, which should be of the kind that it will
/// write.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  polydraft learn model.gguf --out model.ngrams
  polydraft learn model.gguf --out model.ngrams --tokens 3000000   # goes on with it
  polydraft learn model.gguf --out code.ngrams --text src/main.rs --text src/lib.rs
  polydraft generate model.gguf --draft model.ngrams --prompt 'Once upon a time'")]
pub struct Args {
    /// Target model: a directory, a .gguf file or a Hugging Face id [default: the demo pair's].
    #[arg(id = "unnamed", value_name = "MODEL")]
    model: Option<String>,
    /// File of the table; an existing table is continued.
    #[arg(long, short, value_name = "FILE")]
    out: PathBuf,
    /// Total number of tokens to learn from, including those of an existing table.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1_000_000,
        value_parser = clap::value_parser!(u64).range(1..),
    )]
    tokens: u64,
    /// Text file to read once instead of generated text. May be repeated.
    #[arg(long, value_name = "FILE", conflicts_with = "tokens")]
    text: Vec<PathBuf>,
    /// Weight type in which the model will run.
    ///
    /// [default: file for a .gguf file, otherwise f32]
    #[arg(long, value_name = "TYPE")]
    dtype: Option<Precision>,
    /// Number of samples generated at once.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024),
    )]
    parallel: usize,
    /// Maximum number of tokens of a sample.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 512,
        value_parser = RangedU64ValueParser::<usize>::new().range(16..=65536),
    )]
    sample_tokens: usize,
    /// Temperatures; each sample uses one of them.
    #[arg(long, value_name = "T,..", default_value = "0.7,1", value_delimiter = ',')]
    temperatures: Vec<f64>,
    /// Never use the network: use models that are downloaded already.
    #[arg(long)]
    offline: bool,
    /// Number of threads to compute with [default: one per core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Formats the progress.
fn progress(at: NgramProgress, all: Option<u64>, accepted: Option<f64>) -> String {
    let total = all.map_or(String::new(), |all| format!(" of {}", HumanCount(all)));
    let share = accepted.map_or(String::new(), |share| format!("; {share:.2} of drafts accepted"));
    format!("{}{total} tokens{share}", HumanCount(at.learned + at.open_tokens as u64))
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    made_by: MadeBy,
    /// Learned tokens, contexts of all lengths, and size of the file in bytes.
    tokens: u64,
    contexts: usize,
    bytes: u64,
    /// Throughput of this run.
    tokens_per_second: f64,
    /// Sections of the text: number of tokens before each, and acceptance rate of drafted tokens in
    /// it.
    accepted: Vec<(u64, f64)>,
}

/// Learns a table.
///
/// # Errors
/// Fails if the model cannot be loaded, or the file is not a table of this model.
pub fn run(args: Args) -> Result<()> {
    let target = match &args.model {
        Some(model) => model_files::locate(model, args.offline, &output::Terminal)?,
        None => model_files::demo_folder()?.join("target"),
    };
    let plan = NgramPlan {
        target,
        dtype: args.dtype,
        out: args.out.clone(),
        tokens: args.tokens,
        batch_size: args.parallel,
        max_sample_tokens: args.sample_tokens,
        temperatures: args.temperatures.clone(),
        text_files: args.text.clone(),
    };
    let bar = match args.text.is_empty() {
        true => ProgressBar::new(args.tokens).with_style(ProgressStyle::with_template(
            "{human_pos} of {human_len} tokens [{bar:30}] {eta} left{msg}",
        )?),
        false => ProgressBar::no_length()
            .with_style(ProgressStyle::with_template("{human_pos} tokens, {elapsed}{msg}")?),
    };
    let (guard, start) = (InterruptGuard::install(), Instant::now());
    let (mut initial, mut accepted, mut last_note) = (None, Vec::new(), start);
    let mut watch = |at: NgramProgress| {
        initial.get_or_insert(at.learned);
        bar.set_position(at.learned + at.open_tokens as u64);
        // The bar is hidden if standard error is not a terminal.
        if bar.is_hidden() && last_note.elapsed() >= PROGRESS_INTERVAL {
            last_note = Instant::now();
            output::note(progress(at, bar.length(), accepted.last().map(|(_, share)| *share)));
        }
        if let Some(share) = at.accepted.filter(|_| at.open_tokens == 0) {
            accepted.push((at.learned, share));
            bar.set_message(format!("; {share:.2} of drafts accepted"));
        }
        !guard.is_interrupted()
    };
    let table = learn_ngrams(&plan, &mut watch)?;
    bar.finish_and_clear();
    let (tokens, seconds) = (table.learned(), start.elapsed().as_secs_f64());
    let initial = initial.unwrap_or(tokens);
    ensure!(tokens > 0, "nothing was learned: samples need 16 tokens or more");
    let report = Report {
        made_by: MadeBy::current(),
        tokens,
        contexts: table.contexts(),
        bytes: std::fs::metadata(&args.out)?.len(),
        tokens_per_second: (tokens - initial) as f64 / seconds,
        accepted,
    };
    if args.json {
        output::json(&report)?;
    } else {
        print_summary(&args, &report);
    }
    output::finish(guard.is_interrupted())
}

fn print_summary(args: &Args, report: &Report) {
    let (tokens, bytes) = (HumanCount(report.tokens), HumanBytes(report.bytes));
    let out = args.out.display();
    output::note(format_args!(
        "{out}: {tokens} tokens, {} contexts, {bytes}; {:.0} tokens/s",
        HumanCount(report.contexts as u64),
        report.tokens_per_second
    ));
    if let Some((_, share)) = report.accepted.last() {
        output::note(format_args!(
            "in the last section of the text, before it was learned, {:.0} % of the drafted tokens \
             would have been accepted",
            100.0 * share
        ));
    }
    let model = args.model.as_ref().map_or(String::new(), |model| format!(" {model}"));
    output::note(format_args!("polydraft generate{model} --draft {out} uses it"));
}
