//! `polydraft generate`: text generation from a prompt.

pub mod printer;
pub mod report;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use crate::usage::UsageError;
use anyhow::{Context, Result};
use clap::builder::RangedU64ValueParser;
use polydraft_engine::Limits;
use polydraft_files::FileKind;
use polydraft_runtime::{Description, ModelOptions, Models, OutputOptions, Run};

use super::score::TokenScore;
use crate::args::{
    ChatArgs, EndArgs, RunModelArgs, SamplingArgs, SpeculationArgs, TokenLimit, token_limit,
};
use crate::interrupts::InterruptGuard;
use crate::output::{self, Terminal, note};
use printer::Printer;
use report::{Report, summary};

/// Generate text from a prompt.
///
/// Prints the output to standard output while it is generated, and a summary to standard error.
/// Without --target the demo pair writes Rust code.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "\
Examples:
  polydraft generate --prompt 'impl Iterator for'
  polydraft generate --target model.gguf --chat --prompt 'Why is the sky blue?'",
    after_long_help = "\
Examples:
  polydraft generate --prompt 'impl Iterator for'
  polydraft generate --prompt 'fn main() {' --show-drafts --seed 1
  polydraft generate --prompt 'pub struct' --verifier spectr --paths 4 --depth 4
  polydraft generate --prompt 'pub struct' --verifier specinfer --tree 3,2,1
  printf '/// Returns the' | polydraft generate --max-tokens 50 --stop '\\n\\n'
  polydraft generate --target model.gguf --chat --prompt 'Why is the sky blue?'
  polydraft generate --target models/llama-8b --draft models/llama-1b --prompt-file question.txt

The same output for a seed with every draft, and without a draft:
  polydraft generate --prompt 'pub struct' --verifier invariant --seed 1
  polydraft generate --prompt 'pub struct' --verifier none --invariant --seed 1"
)]
pub struct Args {
    /// Prompt.
    #[arg(
        long,
        short,
        value_name = "TEXT",
        allow_hyphen_values = true,
        conflicts_with = "prompt_file"
    )]
    prompt: Option<String>,
    /// File with the prompt; '-' reads standard input.
    ///
    /// Standard input is also read if no prompt is given.
    #[arg(long, short = 'f', value_name = "FILE")]
    prompt_file: Option<PathBuf>,
    /// Print the prompt before its continuation.
    #[arg(hide_short_help = true, long)]
    echo: bool,
    #[command(flatten)]
    models: RunModelArgs,
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
    /// Maximum number of tokens to generate; 0 or -1 is only limited by the context.
    #[arg(
        long,
        short = 'n',
        value_name = "N",
        default_value = "128",
        allow_negative_numbers = true,
        value_parser = token_limit,
    )]
    max_tokens: TokenLimit,
    #[command(flatten)]
    ends: EndArgs,
}

#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Output")]
struct OutputArgs {
    /// Seed: the same seed gives the same output [default: random, printed].
    ///
    /// In the first run, in later ones and beside other work: with a seed, draft and draft lengths
    /// are chosen by estimated costs, by those that 'polydraft bench model' stored, or by --costs
    /// FILE, never by times that runs measure. With --learn FILE the output also depends on what
    /// the table has learned.
    #[arg(long, value_name = "N", value_parser = crate::args::seed)]
    seed: Option<u64>,
    /// With --verifier none: give the output of --verifier invariant.
    ///
    /// Draws by Gumbel coupling, with the randomness that draft and target share under --verifier
    /// invariant, so that both give the same output for a seed with every draft and tree.
    #[arg(hide_short_help = true, long)]
    invariant: bool,
    /// Show where each token comes from: draft, correction or bonus.
    ///
    /// A correction is the token after a rejection; a bonus is the token after all drafts of a path
    /// were accepted.
    #[arg(long, conflicts_with = "json")]
    show_drafts: bool,
    /// Print one JSON object instead of text and summary.
    #[arg(long)]
    json: bool,
    /// With --json: log-probability of every token, and the N most likely alternatives.
    ///
    /// Natural logarithms of the model's own distribution, without temperature and filters.
    #[arg(
        hide_short_help = true,
        long,
        value_name = "N",
        requires = "json",
        value_parser = RangedU64ValueParser::<usize>::new().range(0..=1000),
    )]
    logprobs: Option<usize>,
}

/// Generates one output.
///
/// # Errors
/// Fails if options contradict each other, if a model cannot be loaded, or if the prompt fills the
/// context.
pub fn run(args: Args) -> Result<()> {
    let prompt = read_prompt(args.prompt.as_deref(), args.prompt_file.as_deref())?;
    let description = args.description();
    if let Some(verifier) = &description.speculation.verifier
        && args.output.invariant
        && !verifier.build()?.uses_shared_randomness()
    {
        return Err(UsageError::error(format_args!(
            "--invariant requires --verifier invariant or none: the output of {verifier} depends \
             on the draft"
        )));
    }
    let mut run = Run::open(description, &Terminal)?;
    let Models { engine, language, .. } = &mut run.models;
    let tokens = args.chat.encode(language, &prompt, engine.info().context)?;
    engine.check_prompt(&tokens)?;
    let options = OutputOptions {
        limits: Limits {
            max_tokens: args.limits.max_tokens.0,
            end_tokens: args.limits.ends.tokens(args.chat.end_tokens(language)),
            stop: args.limits.ends.stop(),
            stop_outside: None,
        },
        shared_randomness: args.output.invariant,
        scores: args.output.logprobs,
    };
    let mut session = run.session(args.output.seed, &Terminal)?;
    session.run().settings.report(&Terminal);
    let seed = session.seed();
    let mut printer = Printer::new(args.output.show_drafts, args.output.json);
    match (args.echo, args.chat.is_conversation()) {
        (true, _) => printer.set_prefix(&prompt),
        (false, false) => printer.set_reminder(&prompt),
        (false, true) => {}
    }
    let guard = InterruptGuard::install();
    let show = &mut |chunk| printer.show(chunk) && !guard.is_interrupted();
    let generation = session.generate(&tokens, &options, show)?;
    let interrupted = guard.is_interrupted();
    drop(guard);
    printer.finish()?;
    session.close()?;
    let models = &run.models;
    let drafts = run.settings.speculation.is_some();
    let total = tokens.len() + generation.tokens.len();
    if let Some(context) =
        models.engine.draft_context().filter(|context| drafts && *context < total)
    {
        note(format_args!(
            "note: the draft's context holds {context} of {total} tokens: after them nothing \
             was drafted"
        ));
    }
    if args.output.json {
        let text = if args.echo {
            format!("{prompt}{}", generation.text)
        } else {
            generation.text.clone()
        };
        let mut report = Report::new(text, &generation, &tokens, seed);
        report.draft = models.draft.clone();
        if args.output.logprobs.is_some() {
            report.logprobs = Some(TokenScore::all(&generation.scores, &models.language)?);
        }
        output::json(&report)?;
    } else {
        summary(&generation, seed, args.output.show_drafts, models.draft.as_deref());
    }
    output::finish(interrupted)
}

impl Args {
    fn description(&self) -> Description {
        Description {
            models: ModelOptions {
                template: self.chat.template(),
                expected_tokens: self.limits.max_tokens.0,
                is_seeded: self.output.seed.is_some(),
                ..self.models.options()
            },
            speculation: self.speculation.options(),
            sampling: self.sampling.options(),
            published_sampling: self.chat.uses_published(),
        }
    }
}

fn missing_prompt() -> anyhow::Error {
    UsageError::error(
        "no prompt: give --prompt TEXT, --prompt-file FILE, or text on standard input",
    )
}

fn read_prompt(prompt: Option<&str>, file: Option<&Path>) -> Result<String> {
    if let Some(prompt) = prompt {
        return Ok(prompt.to_owned());
    }
    let named = file.filter(|path| path.as_os_str() != "-");
    let (name, bytes) = match named {
        Some(path) => {
            let name = path.display().to_string();
            let bytes = polydraft_files::read(path, FileKind::PROMPT)
                .with_context(|| format!("cannot read the prompt file {name}"))?;
            (name, bytes)
        }
        None => {
            let mut input = io::stdin().lock();
            if file.is_none() && input.is_terminal() {
                return Err(missing_prompt());
            }
            let bytes = polydraft_files::read_stream(&mut input, FileKind::PROMPT)
                .context("cannot read the prompt from standard input")?;
            // Standard input is empty wherever no terminal is: in cron, in CI and in containers.
            if file.is_none() && bytes.is_empty() {
                return Err(missing_prompt());
            }
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
