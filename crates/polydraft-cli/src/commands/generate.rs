//! `polydraft generate`: text from a prompt.

pub mod printer;
mod report;

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::builder::RangedU64ValueParser;
use polydraft::Token;
use polydraft_engine::{Limits, score};
use polydraft_files::Kind;

use super::score::TokenScore;
use crate::conversation::ChatArgs;
use crate::costs;
use crate::ends::EndArgs;
use crate::interrupts::Orderly;
use crate::models::{ModelArgs, Models};
use crate::output::{self, Usage};
use crate::sampling::SamplingArgs;
use crate::speculation::{Speculation, SpeculationArgs};
use crate::texts::{self, Settings};
use printer::Printer;
use report::{Report, summary};

/// Generate text from a prompt.
///
/// The text goes to standard output as it is decided, a summary to standard error. Without options
/// the demo pair writes Rust code.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  polydraft generate --prompt 'impl Iterator for'
  polydraft generate --prompt 'fn main() {' --show-drafts --seed 1
  polydraft generate --prompt 'pub struct' --verifier spectr --paths 4 --depth 4
  polydraft generate --prompt 'pub struct' --verifier specinfer --tree 3,2,1
  polydraft generate --prompt 'pub struct' --verifier invariant --seed 1      # the same text with every --tree and --draft
  polydraft generate --prompt 'pub struct' --verifier none --invariant --seed 1      # and without any
  printf '/// Returns the' | polydraft generate --max-tokens 50 --stop '\\n\\n'
  polydraft generate --target models/qwen3-8b --draft models/qwen3-0.6b --chat --prompt 'Why is the sky blue?'
  polydraft generate --target models/llama-8b --draft models/llama-1b --prompt-file question.txt")]
pub struct Args {
    /// The text to continue.
    #[arg(
        long,
        short,
        value_name = "TEXT",
        allow_hyphen_values = true,
        conflicts_with = "prompt_file"
    )]
    prompt: Option<String>,
    /// A file with the text to continue; '-' is standard input, which is also read if no prompt is
    /// given.
    #[arg(long, short = 'f', value_name = "FILE")]
    prompt_file: Option<PathBuf>,
    /// Print the prompt before its continuation.
    #[arg(long)]
    echo: bool,
    #[command(flatten)]
    models: ModelArgs,
    #[command(flatten)]
    speculation: SpeculationArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    chat: ChatArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Limits")]
struct LimitArgs {
    /// Tokens to generate at most; 0 is up to the context's end.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 128)]
    max_tokens: usize,
    #[command(flatten)]
    ends: EndArgs,
}

#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Output")]
struct OutputArgs {
    /// Seed of all random decisions; the same seed gives the same text [default: another one each
    /// time, printed].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Decide by clocks that follow from the seed: with --verifier none, the text that --verifier
    /// invariant has with every draft and tree.
    #[arg(long)]
    invariant: bool,
    /// Show where each token came from: accepted draft, correction after a rejection, or bonus.
    #[arg(long, conflicts_with = "json")]
    show_drafts: bool,
    /// Print one JSON object instead of text and summary.
    #[arg(long)]
    json: bool,
    /// With --json: the log-probability of every token, of the model's own distribution, and the N
    /// likeliest in its place.
    #[arg(long, value_name = "N", requires = "json", value_parser = RangedU64ValueParser::<usize>::new().range(0..=1000))]
    logprobs: Option<usize>,
}

pub fn run(args: Args) -> Result<()> {
    let prompt = read_prompt(&args)?;
    let acceptance = args.models.demo_acceptance();
    let mut speculation = args.speculation.speculation(&args.sampling, acceptance.as_deref())?;
    if let Some(Speculation { verifier, .. }) = &speculation
        && args.output.invariant
        && !verifier.build()?.races()
    {
        return Err(Usage::error(format_args!(
            "--invariant goes with --verifier invariant and none: the text of {verifier} depends on the draft"
        )));
    }
    let mut models = args.models.load(speculation.is_some())?;
    // The makers' sampling, if it is used, comes with the model.
    let sampling = args.chat.sampling(args.sampling.clone(), &models.language);
    if let Some(speculation) = &mut speculation {
        speculation.sampling = sampling.draft();
    }
    let tokens = args.chat.encode(&models.language, &prompt, models.engine.facts().context)?;
    models.engine.admits(&tokens)?;
    let target = sampling.target();
    costs::settle(
        args.speculation.costs(),
        &args.models,
        &mut models,
        &target,
        speculation.as_mut(),
    )?;
    let mut settings = Settings { sampling: target, speculation };
    settings.tell();
    let limits = Limits {
        max_tokens: (args.limits.max_tokens > 0).then_some(args.limits.max_tokens),
        end_tokens: args.limits.ends.tokens(args.chat.end_tokens(&models.language)),
        stop: args.limits.ends.stop(),
    };
    let seed = args.output.seed.unwrap_or_else(rand::random);
    let mut printer = Printer::new(args.output.show_drafts, args.output.json);
    match (args.echo, args.chat.is_conversation()) {
        (true, _) => printer.before(&prompt),
        (false, false) => printer.remind(&prompt),
        (false, true) => {}
    }
    let chance = Box::new(texts::random(seed));
    let request = texts::request(&models.language, &tokens, &settings, &limits, chance)?;
    let mut session = models.engine.open(request)?;
    if args.output.invariant {
        session.race();
    }
    let orderly = Orderly::begin();
    let generation =
        models.engine.complete(session, &mut |piece| printer.show(piece) && !orderly.asked())?;
    let interrupted = orderly.asked();
    drop(orderly);
    costs::learn(
        args.speculation.costs(),
        &args.models,
        &models,
        &mut settings,
        generation.statistics.choices.as_ref(),
    );
    printer.finish()?;
    if args.output.json {
        let text = if args.echo {
            format!("{prompt}{}", generation.text)
        } else {
            generation.text.clone()
        };
        let logprobs = match args.output.logprobs {
            Some(top) => Some(logprobs(&mut models, &tokens, &generation.tokens, top)?),
            None => None,
        };
        let mut report = Report::new(text, &generation, &tokens, seed);
        report.draft = models.draft;
        report.logprobs = logprobs;
        output::json(&report)?;
    } else {
        summary(&generation, seed, args.output.show_drafts, models.draft.as_deref());
    }
    output::done(interrupted)
}

/// Scores what was decided. A token's logits do not depend on the pass that computes them, so they
/// are those it was drawn from.
fn logprobs(
    models: &mut Models,
    prompt: &[Token],
    tokens: &[Token],
    top: usize,
) -> Result<Vec<TokenScore>> {
    let text = [prompt, tokens].concat();
    let scored = score(models.engine.target(), &text, prompt.len(), top, &mut |_| true)?;
    TokenScore::all(&scored, &models.language)
}

fn read_prompt(args: &Args) -> Result<String> {
    if let Some(prompt) = &args.prompt {
        return Ok(prompt.clone());
    }
    let file = args.prompt_file.as_ref().filter(|path| path.as_os_str() != "-");
    let (name, bytes) = match file {
        Some(path) => {
            let name = path.display().to_string();
            let bytes = polydraft_files::read(path, Kind::PROMPT)
                .with_context(|| format!("cannot read the prompt file {name}"))?;
            (name, bytes)
        }
        None => {
            let mut input = io::stdin().lock();
            if args.prompt_file.is_none() && input.is_terminal() {
                return Err(Usage::error(
                    "no prompt: give --prompt TEXT, --prompt-file FILE, or text on standard input",
                ));
            }
            let bytes = polydraft_files::read_stream(&mut input, Kind::PROMPT)
                .context("cannot read the prompt from standard input")?;
            ("standard input".to_owned(), bytes)
        }
    };
    String::from_utf8(bytes).map_err(|error| {
        anyhow::anyhow!(
            "the prompt in {name} is not UTF-8: byte {} is invalid",
            error.utf8_error().valid_up_to()
        )
    })
}
