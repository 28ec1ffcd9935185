//! `polydraft score`: perplexity and log-probabilities of a text.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::builder::RangedU64ValueParser;
use indicatif::{ProgressBar, ProgressStyle};
use polydraft_engine::{Scored, score};
use polydraft_files::FileKind;
use polydraft_text::Language;
use serde::Serialize;

use crate::args::RunModelArgs;
use crate::interrupts::InterruptGuard;
use crate::output::{self, Terminal};
use crate::usage::UsageError;
use polydraft_models::is_gguf;

/// Print the perplexity of a text, and the log-probability of every token.
///
/// Log-probabilities are natural logarithms of the model's own distribution, without temperature
/// and filters. A text longer than the context is scored in windows, in which every token follows
/// at least half a context.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  polydraft score src/main.rs
  echo 'impl Iterator for Foo' | polydraft score --tokens --top 3
  polydraft score --target DIR --dtype q8_0 text.txt --json")]
pub struct Args {
    /// Text file [default: standard input, also as '-'].
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Also print every token.
    #[arg(long)]
    tokens: bool,
    /// Number of most likely alternatives to print with every token.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        value_parser = RangedU64ValueParser::<usize>::new().range(0..=1000),
    )]
    top: usize,
    #[command(flatten)]
    models: RunModelArgs,
    /// Print one JSON object with all tokens.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    /// Tokens of the text, including the first one if the model cannot score it.
    tokens: usize,
    /// Number of scored tokens.
    scored: usize,
    /// Sum of the natural log-probabilities.
    logprob: f64,
    /// Perplexity: exp of the negated mean log-probability.
    perplexity: f64,
    /// Bits per byte; `None` unless the full text was scored, because the number of bytes of only
    /// some of the tokens is unknown.
    bits_per_byte: Option<f64>,
    results: Vec<TokenScore>,
}

/// A token, its text and its score, also in `generate --json --logprobs`.
#[derive(Serialize)]
pub struct TokenScore {
    token: polydraft::Token,
    text: String,
    logprob: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    top: Vec<Alternative>,
}

#[derive(Serialize)]
struct Alternative {
    token: polydraft::Token,
    text: String,
    logprob: f64,
}

impl TokenScore {
    /// Decodes the tokens of scores.
    pub fn all(scored: &[Scored], language: &Language) -> Result<Vec<Self>> {
        let text = |token| language.tokenizer.decode(&[token]);
        let token_score = |scored: &Scored| {
            let alternative =
                |&(token, logprob): &(_, _)| Ok(Alternative { token, text: text(token)?, logprob });
            Ok(Self {
                token: scored.token,
                text: text(scored.token)?,
                logprob: scored.logprob,
                top: scored.top.iter().map(alternative).collect::<Result<_>>()?,
            })
        };
        scored.iter().map(token_score).collect()
    }
}

/// Scores and prints.
///
/// # Errors
/// Fails if the model cannot be loaded, or the text has nothing to score.
pub fn run(args: Args) -> Result<()> {
    if let Some(file) = args.file.as_ref().filter(|file| is_gguf(file)) {
        let file = file.display();
        let problem =
            format!("{file} is a model: give it with --target {file}, and a text as FILE");
        return Err(UsageError::error(problem));
    }
    let text = read(&args)?;
    let mut models = args.models.options().load(false, &Terminal)?;
    let tokens = models.language.tokenizer.encode(&text)?;
    let from = usize::from(!models.engine.info().accepts_empty_context);
    ensure!(
        tokens.len() > from,
        "the text has nothing to score: it is empty, or a single first token"
    );
    let bar = ProgressBar::new((tokens.len() - from) as u64).with_style(
        ProgressStyle::with_template("scoring [{bar:30}] {pos}/{len} tokens, {eta} left")?,
    );
    let guard = InterruptGuard::install();
    let scored = score(models.engine.target(), &tokens, from, args.top, &mut |done| {
        bar.set_position(done as u64);
        !guard.is_interrupted()
    })?;
    bar.finish_and_clear();
    let interrupted = guard.is_interrupted();
    let logprob: f64 = scored.iter().map(|scored| scored.logprob).sum();
    let is_complete = from + scored.len() == tokens.len();
    let report = Report {
        tokens: tokens.len(),
        scored: scored.len(),
        logprob,
        perplexity: (-logprob / scored.len() as f64).exp(),
        bits_per_byte: is_complete.then(|| -logprob / std::f64::consts::LN_2 / text.len() as f64),
        results: TokenScore::all(&scored, &models.language)?,
    };
    if args.json {
        output::json(&report)?;
    } else {
        report.print(args.tokens || args.top > 0)?;
    }
    output::finish(interrupted)
}

impl Report {
    fn print(&self, tokens: bool) -> Result<()> {
        let mut out = io::stdout().lock();
        for token in self.results.iter().filter(|_| tokens) {
            write!(out, "{:>9.4}  {:<16}", token.logprob, format!("{:?}", token.text))?;
            for other in &token.top {
                write!(out, "  {:?} {:.3}", other.text, other.logprob)?;
            }
            writeln!(out)?;
        }
        let bits =
            self.bits_per_byte.map_or(String::new(), |bits| format!(", {bits:.4} bits per byte"));
        writeln!(
            out,
            "{} tokens, {} scored: log-probability {:.3}, perplexity {:.4}{bits}",
            self.tokens, self.scored, self.logprob, self.perplexity
        )?;
        Ok(())
    }
}

fn read(args: &Args) -> Result<String> {
    match args.file.as_ref().filter(|file| file.as_os_str() != "-") {
        Some(file) => polydraft_files::read_text(file, FileKind::PROMPT)
            .with_context(|| format!("cannot read the text {}", file.display())),
        None => polydraft_files::read_stream(io::stdin().lock(), FileKind::PROMPT)
            .and_then(polydraft_files::decode_utf8)
            .context("cannot read the text from standard input"),
    }
}
