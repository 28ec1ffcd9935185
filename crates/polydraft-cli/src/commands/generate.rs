//! `polydraft generate`: text from a prompt.

use std::io::{self, IsTerminal, Read, Write};
use std::path::PathBuf;

use anstyle::{AnsiColor, Style};
use anyhow::{Context, Result};
use polydraft::VerifierKind;
use polydraft_engine::{
    Decoder, Finish, Generation, Limits, Origin, Piece, Settings, Speculation, Statistics,
};
use rand::SeedableRng;
use rand_chacha::ChaCha12Rng;
use serde::Serialize;

use crate::models::ModelArgs;
use crate::output::{self, Usage, note};
use crate::sampling::SamplingArgs;

/// Generate text from a prompt.
///
/// The text goes to standard output as it is decided, a summary to standard error. Without options the demo pair
/// writes Rust code.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  polydraft generate --prompt 'impl Iterator for'
  polydraft generate --prompt 'fn main() {' --show-drafts --seed 1
  echo '/// Returns the' | polydraft generate --max-tokens 50 --stop '\\n\\n'
  polydraft generate --target models/llama-8b --draft models/llama-1b --prompt-file question.txt")]
pub struct Args {
    /// The text to continue.
    #[arg(long, short, value_name = "TEXT", conflicts_with = "prompt_file")]
    prompt: Option<String>,
    /// A file with the text to continue; '-' is standard input, which is also read if no prompt is given.
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
    output: OutputArgs,
}

#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Speculation")]
struct SpeculationArgs {
    /// What decides on the drafts: 'token' (one path, token by token), or 'none' for plain decoding.
    #[arg(long, value_name = "NAME", default_value = "token", value_parser = verifier)]
    verifier: Verifier,
    /// Tokens drafted per pass of the target; 2 is the fastest on the demo pair, better drafts deserve more.
    #[arg(long, short = 'd', value_name = "L", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=256))]
    depth: u32,
}

#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Limits")]
struct LimitArgs {
    /// Tokens to generate at most; 0 is up to the context's end.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 128)]
    max_tokens: usize,
    /// End the text before this string. May be repeated; \n and \t stand for newline and tab, \\ for a backslash.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Go on where the model would end the text.
    #[arg(long)]
    ignore_end: bool,
}

#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Output")]
struct OutputArgs {
    /// Seed of all random decisions; the same seed gives the same text [default: another one each time, printed].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Show where each token came from: accepted draft, correction after a rejection, or bonus.
    #[arg(long, conflicts_with = "json")]
    show_drafts: bool,
    /// Print one JSON object instead of text and summary.
    #[arg(long)]
    json: bool,
    /// No summary.
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Debug, Clone, Copy)]
enum Verifier {
    None,
    Some(VerifierKind),
}

fn verifier(name: &str) -> Result<Verifier, String> {
    match name {
        "none" => Ok(Verifier::None),
        _ => name.parse().map(Verifier::Some).map_err(|e: polydraft::Error| format!("{e}; or none")),
    }
}

pub fn run(args: Args) -> Result<()> {
    let prompt = read_prompt(&args)?;
    let sampling = args.sampling.target();
    let speculation = match args.speculation.verifier {
        Verifier::None => None,
        Verifier::Some(verifier) => {
            let depth = args.speculation.depth as usize;
            Some(Speculation { verifier, depth, sampling: args.sampling.draft() })
        }
    };
    let (mut target, mut draft) = args.models.load(speculation.is_some())?;
    let limits = Limits {
        max_tokens: (args.limits.max_tokens > 0).then_some(args.limits.max_tokens),
        end_tokens: if args.limits.ignore_end { Vec::new() } else { target.end_tokens.clone() },
        stop: args.limits.stop.iter().map(|text| unescape(text)).collect(),
    };
    let tokens = target.text.encode(&prompt)?;
    let seed = args.output.seed.unwrap_or_else(rand::random);
    let mut rng = ChaCha12Rng::seed_from_u64(seed);
    let mut decoder = Decoder::new(
        &mut target.model,
        draft.as_mut().map(|d| &mut d.model as &mut dyn polydraft_engine::Model),
        Settings { sampling, speculation },
    )?;
    let mut text = target.text.stream(&tokens);
    let mut printer = Printer::new(&args.output);
    if args.echo {
        printer.plain(&prompt);
    }
    let generation = Generation::run(&mut decoder, &tokens, &limits, &mut text, &mut rng, &mut |piece| {
        printer.show(piece)
    })?;
    printer.finish()?;
    if args.output.json {
        let text = if args.echo { format!("{prompt}{}", generation.text) } else { generation.text.clone() };
        return output::json(&Report::new(text, &generation, tokens.len(), seed));
    }
    if !args.output.quiet {
        summary(&generation, seed, args.output.show_drafts);
    }
    Ok(())
}

fn read_prompt(args: &Args) -> Result<String> {
    if let Some(prompt) = &args.prompt {
        return Ok(prompt.clone());
    }
    let file = args.prompt_file.as_ref().filter(|path| path.as_os_str() != "-");
    let (name, bytes) = match file {
        Some(path) => {
            let name = path.display().to_string();
            (
                name.clone(),
                std::fs::read(path).with_context(|| format!("cannot read the prompt file {name}"))?,
            )
        }
        None => {
            let mut input = io::stdin().lock();
            if args.prompt_file.is_none() && input.is_terminal() {
                return Err(Usage::error(
                    "no prompt: give --prompt TEXT, --prompt-file FILE, or text on standard input",
                ));
            }
            let mut bytes = Vec::new();
            input.read_to_end(&mut bytes).context("cannot read the prompt from standard input")?;
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

/// `\n`, `\t` and `\\`, as shells pass them; anything else stays.
fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match (c, rest.clone().next()) {
            ('\\', Some(next @ ('n' | 't' | '\\'))) => {
                out.push(match next {
                    'n' => '\n',
                    't' => '\t',
                    _ => '\\',
                });
                rest.next();
            }
            _ => out.push(c),
        }
    }
    out
}

/// Writes pieces as they come.
struct Printer {
    out: anstream::AutoStream<io::StdoutLock<'static>>,
    drafts: bool,
    colors: bool,
    silent: bool,
    result: io::Result<()>,
}

/// How a token of this origin is shown: in colour, or between marks where there is none.
fn mark(origin: Origin) -> (Style, [&'static str; 2], &'static str) {
    let color = |c: AnsiColor| Style::new().fg_color(Some(c.into()));
    match origin {
        Origin::Accepted => (color(AnsiColor::Green), ["", ""], "accepted draft"),
        Origin::Correction => (color(AnsiColor::Red).bold(), ["[", "]"], "correction"),
        Origin::Bonus => (color(AnsiColor::Cyan), ["{", "}"], "bonus"),
    }
}

fn has_colors(stream: &impl anstream::stream::RawStream) -> bool {
    anstream::AutoStream::choice(stream) != anstream::ColorChoice::Never
}

impl Printer {
    fn new(args: &OutputArgs) -> Self {
        Self {
            colors: has_colors(&io::stdout()),
            out: anstream::AutoStream::auto(io::stdout().lock()),
            drafts: args.show_drafts,
            silent: args.json,
            result: Ok(()),
        }
    }

    fn plain(&mut self, text: &str) {
        if !self.silent && self.result.is_ok() {
            self.result = write!(self.out, "{text}").and_then(|()| self.out.flush());
        }
    }

    /// Whether to go on.
    fn show(&mut self, piece: Piece) -> bool {
        let (style, [open, close], _) = mark(piece.origin);
        match (self.drafts, self.colors) {
            (false, _) => self.plain(&piece.text),
            (true, true) => self.plain(&format!("{style}{}{style:#}", piece.text)),
            (true, false) => self.plain(&format!("{open}{}{close}", piece.text)),
        }
        self.result.is_ok()
    }

    fn finish(mut self) -> io::Result<()> {
        self.plain("\n");
        self.result
    }
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    text: String,
    tokens: &'a [polydraft::Token],
    finish_reason: Finish,
    seed: u64,
    prompt_tokens: usize,
    stats: Stats,
}

#[derive(Serialize)]
struct Stats {
    target_calls: usize,
    block_efficiency: f64,
    accepted_by_position: Vec<f64>,
    time_ms: Times,
    tokens_per_second: f64,
}

/// Milliseconds. `total` runs from the end of the prompt; reading the prompt is apart.
#[derive(Serialize)]
struct Times {
    prompt: f64,
    draft: f64,
    target: f64,
    verify: f64,
    total: f64,
}

impl<'a> Report<'a> {
    fn new(text: String, generation: &'a Generation, prompt_tokens: usize, seed: u64) -> Self {
        let s = &generation.statistics;
        let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        let time_ms = Times {
            prompt: ms(s.prompt_time),
            draft: ms(s.draft_time),
            target: ms(s.target_time),
            verify: ms(s.verify_time),
            total: ms(s.total_time),
        };
        let stats = Stats {
            target_calls: s.target_calls,
            block_efficiency: s.block_efficiency(),
            accepted_by_position: s.accepted_by_position(),
            time_ms,
            tokens_per_second: s.tokens_per_second(),
        };
        Self {
            text,
            tokens: &generation.tokens,
            finish_reason: generation.finish,
            seed,
            prompt_tokens,
            stats,
        }
    }
}

/// The end of a run, for people.
fn summary(generation: &Generation, seed: u64, show_drafts: bool) {
    let s: &Statistics = &generation.statistics;
    let reason = match generation.finish {
        Finish::EndToken => "the model ended the text",
        Finish::StopString => "at a stop string",
        Finish::MaxTokens => "at --max-tokens",
        Finish::Context => "at the context's end",
    };
    note("");
    if show_drafts {
        let colors = has_colors(&io::stdout());
        let entry = |origin| match mark(origin) {
            (style, _, name) if colors => format!("{style}{name}{style:#}"),
            (_, [open, close], name) => format!("{open}{name}{close}"),
        };
        note([Origin::Accepted, Origin::Correction, Origin::Bonus].map(entry).join(" · "));
    }
    let seconds = s.total_time.as_secs_f64();
    note(format_args!(
        "{} tokens in {seconds:.2} s, {:.0} tokens/s; ended {reason}; seed {seed}",
        s.tokens,
        s.tokens_per_second()
    ));
    note(format_args!("{} target calls, block efficiency {:.2}", s.target_calls, s.block_efficiency()));
    if !s.drafted.is_empty() {
        let rates: Vec<String> =
            s.accepted_by_position().iter().map(|r| format!("{:.0} %", 100.0 * r)).collect();
        note(format_args!("drafts accepted by position: {}", rates.join(", ")));
    }
    let share = |time: std::time::Duration| 100.0 * time.as_secs_f64() / seconds.max(1e-9);
    note(format_args!(
        "time: draft {:.0} %, target {:.0} %, verifier {:.0} %; before that {:.1} ms for the prompt",
        share(s.draft_time),
        share(s.target_time),
        share(s.verify_time),
        s.prompt_time.as_secs_f64() * 1e3
    ));
}

#[cfg(test)]
mod tests {
    use super::unescape;

    #[test]
    fn escapes() {
        assert_eq!(unescape(r"a\n\tb\\n\x\"), "a\n\tb\\n\\x\\");
    }
}
