//! `polydraft chat`: a conversation of several turns.

mod input;

use std::io::Write;

use anyhow::Result;
use polydraft_engine::{Finish, Limits};
use polydraft_runtime::{Description, ModelOptions, Run, RunSession};
use polydraft_text::{Message, Rendering};

use super::generate::printer::Printer;
use super::generate::report::{measured_speedup, note_draft_problem};
use crate::args::{
    self, RunModelArgs, SamplingArgs, SpeculationArgs, TemplateArgs, TokenLimit, token_limit,
};
use crate::interrupts::InterruptGuard;
use crate::output::{ExitCode, Terminal, note, print_error};
use input::{Input, Line};

/// Chat with a model in the terminal.
///
/// Each line, or each pasted block, is a message; answers are printed to standard output while they
/// are generated. The conversation stays in the KV cache. Sampling options default to the model's
/// generation_config.json, or to temperature 0.7 and top-p 0.95 if it has none. Lines are edited as
/// in a shell, and their history is stored in polydraft/history in $XDG_STATE_HOME
/// (~/.local/state). In a pipe the exit code is 1 if a message was rejected.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
In the conversation:
  /help     show this list
  /reset    start a new conversation
  /exit     exit, as Ctrl-D does
  Ctrl-C    stop the answer, or clear the line

Examples:
  polydraft chat -n 80        # the demo pair, which answers what a function does with Rust code
  polydraft chat --target models/qwen3-8b --draft models/qwen3-0.6b
  polydraft chat --target models/llama-8b --draft models/llama-1b --system 'Answer in verse.'")]
pub struct Args {
    /// System message.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,
    /// Ignore generation_config.json and the chat defaults of sampling.
    #[arg(hide_short_help = true, long)]
    ignore_published: bool,
    /// Maximum number of tokens per answer; 0 or -1 is only limited by the context.
    #[arg(
        long,
        short = 'n',
        value_name = "N",
        default_value = "0",
        allow_negative_numbers = true,
        value_parser = token_limit,
    )]
    max_tokens: TokenLimit,
    /// Seed of all random decisions [default: random].
    ///
    /// With --learn FILE answers also depend on what the table has learned.
    #[arg(long, value_name = "N", value_parser = crate::args::seed)]
    seed: Option<u64>,
    #[command(flatten)]
    template: TemplateArgs,
    #[command(flatten)]
    models: RunModelArgs,
    #[command(flatten)]
    speculation: SpeculationArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
}

const HELP: &str =
    "/help this list · /reset new conversation · /exit (or Ctrl-D) · Ctrl-C stops an answer";

/// Converses until the end of input.
///
/// # Errors
/// Fails if options contradict each other, if a model cannot be loaded, or has no chat template.
pub fn run(args: Args) -> Result<()> {
    let description = Description {
        models: ModelOptions {
            template: args.template.options(),
            is_seeded: args.seed.is_some(),
            ..args.models.options()
        },
        speculation: args.speculation.options(),
        sampling: args.sampling.options(),
        published_sampling: !args.ignore_published,
    };
    let mut run = Run::open(description, &Terminal)?;
    // Detects a missing template, or one without system messages, before the first message.
    let (opening, context) =
        (args::opening_messages(args.system.as_deref(), "?"), run.models.engine.info().context);
    run.models.language.encode_chat_with(&opening, &Rendering::default(), context)?;
    let mut session = run.session(args.seed, &Terminal)?;
    let mut conversation = Conversation {
        limits: Limits {
            max_tokens: args.max_tokens.0,
            end_tokens: session.run().models.language.answer_end_tokens(),
            stop: Vec::new(),
            stop_outside: None,
        },
        messages: args.system.iter().map(Message::system).collect(),
        rejected: 0,
    };
    session.run().settings.report(&Terminal);
    let mut input = Input::open()?;
    if input.is_terminal() {
        note(HELP);
    }
    let seed = session.seed();
    loop {
        let line = match input.next()? {
            Line::Message(line) => line,
            Line::Rejected(why) => {
                conversation.reject(why);
                continue;
            }
            Line::Interrupted => {
                note("/exit or Ctrl-D leaves");
                continue;
            }
            Line::End => break,
        };
        match line.trim() {
            "" => {}
            // Help is printed also with --quiet.
            "/help" => drop(writeln!(anstream::stderr(), "{HELP}")),
            "/exit" | "/quit" => break,
            "/reset" => conversation.messages.retain(|m| m.role == "system"),
            command if command.starts_with('/') && !command.contains(char::is_whitespace) => {
                conversation.reject(format_args!("{command} is not a command: {HELP}"));
            }
            message => conversation.answer(message, &mut session)?,
        }
    }
    session.close()?;
    note(format_args!("the same conversation again: --seed {seed}"));
    // On a terminal the user has seen the errors.
    if conversation.rejected > 0 && !input.is_terminal() { Err(ExitCode::error(1)) } else { Ok(()) }
}

/// State of the conversation.
struct Conversation {
    limits: Limits,
    messages: Vec<Message>,
    /// Number of rejected messages.
    rejected: usize,
}

impl Conversation {
    /// Generates and prints an answer, or rejects the message.
    fn answer(&mut self, message: &str, session: &mut RunSession) -> Result<()> {
        if message.contains('\0') {
            self.reject("a message contains a zero byte");
            return Ok(());
        }
        self.messages.push(Message::user(message));
        let models = &session.run().models;
        let context = models.engine.info().context;
        let rendering = Rendering::default();
        let encoded = models.language.encode_chat_with(&self.messages, &rendering, context);
        let tokens = match encoded.map(|prompt| prompt.tokens) {
            Ok(tokens) if tokens.len() < context => tokens,
            Ok(tokens) => {
                self.retract(format_args!(
                    "with this message the conversation has {} tokens, but the model's context \
                     holds {context}; \
                     /reset starts a new conversation",
                    tokens.len()
                ));
                return Ok(());
            }
            Err(error) => {
                self.retract(error);
                return Ok(());
            }
        };
        let guard = InterruptGuard::install();
        let mut printer = Printer::new(false, false);
        let show = &mut |chunk| printer.show(chunk) && !guard.is_interrupted();
        let generation = session.generate(&tokens, &self.limits.clone().into(), show)?;
        printer.finish()?;
        let end = if guard.is_interrupted() { "; interrupted" } else { "" };
        drop(guard);
        self.messages.push(Message::assistant(generation.text));
        if generation.finish == Finish::Context {
            note("context full: /reset starts a new conversation");
        }
        let s = &generation.statistics;
        note_draft_problem(s);
        note(format_args!(
            "[{} tokens, {:.0} tokens/s{}; prefill {:.0} ms{end}]",
            s.tokens,
            s.tokens_per_second(),
            measured_speedup(s).map_or(String::new(), |times| format!(", {times:.2}× plain")),
            s.prompt_time.as_secs_f64() * 1e3
        ));
        Ok(())
    }

    /// Removes the last message, and reports why.
    fn retract(&mut self, why: impl std::fmt::Display) {
        self.messages.pop();
        self.reject(why);
    }

    fn reject(&mut self, why: impl std::fmt::Display) {
        self.rejected += 1;
        print_error(why);
    }
}
