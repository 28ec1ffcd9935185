//! `polydraft chat`: a conversation of several turns.

use std::io::{self, BufRead, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use polydraft_engine::{Finish, Limits};
use polydraft_text::Message;

use super::generate::printer::Printer;
use crate::conversation;
use crate::costs;
use crate::models::{ModelArgs, Models};
use crate::output::note;
use crate::sampling::SamplingArgs;
use crate::speculation::SpeculationArgs;
use crate::texts::{self, Random, Settings};

/// Talk with a model, turn by turn.
///
/// Each line is a message; answers go to standard output as they are decided. What the model has read of the
/// conversation is not computed again. Sampling options that are not given are those of the model's
/// generation_config.json.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
In the conversation:
  /help     this list
  /reset    begin anew
  /exit     leave; so does the end of input (Ctrl-D), or Ctrl-C while you are asked
  Ctrl-C    ends an answer

Examples:
  polydraft chat --target models/qwen3-8b --draft models/qwen3-0.6b
  polydraft chat --target models/llama-8b --draft models/llama-1b --system 'Answer in verse.'")]
pub struct Args {
    /// What the model is told before the first message.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,
    /// Leave the sampling settings of generation_config.json alone.
    #[arg(long)]
    ignore_published: bool,
    /// Tokens of an answer at most; 0 is up to the context's end.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 0)]
    max_tokens: usize,
    /// Seed of all random decisions [default: another one each time].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// No speed behind each answer.
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    models: ModelArgs,
    #[command(flatten)]
    speculation: SpeculationArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
}

const HELP: &str = "/help this list · /reset begin anew · /exit leave (or Ctrl-D) · Ctrl-C ends an answer";

pub fn run(args: Args) -> Result<()> {
    let acceptance = args.models.demo_acceptance();
    let mut speculation = args.speculation.speculation(args.sampling.draft(), acceptance.as_deref())?;
    let mut models = args.models.load(speculation.is_some())?;
    let sampling = match args.ignore_published {
        true => args.sampling.clone(),
        false => conversation::published(args.sampling.clone(), &models.language.sampling),
    };
    if let Some(speculation) = &mut speculation {
        speculation.sampling = sampling.draft();
    }
    let target = sampling.target();
    costs::settle(args.speculation.costs(), &args.models, &mut models, &target, speculation.as_mut())?;
    // Before the first question: a model without a template, or one whose template has no system message.
    models.language.encode_chat(&conversation::opening(args.system.as_deref(), "?"))?;
    let answering = Arc::new(AtomicBool::new(false));
    handle_interrupts(answering.clone())?;
    let mut talk = Talk {
        settings: Settings { sampling: target, speculation },
        limits: Limits {
            max_tokens: (args.max_tokens > 0).then_some(args.max_tokens),
            end_tokens: models.language.answer_end_tokens(),
            stop: Vec::new(),
        },
        random: texts::random(args.seed.unwrap_or_else(rand::random)),
        messages: args.system.iter().map(Message::system).collect(),
        quiet: args.quiet,
        answering,
    };
    let asked = io::stdin().is_terminal();
    if asked {
        note(HELP);
    }
    let mut line = String::new();
    loop {
        if asked {
            eprint!("> ");
            io::stderr().flush().ok();
        }
        line.clear();
        let read =
            io::stdin().lock().read_line(&mut line).context("cannot read a message from standard input")?;
        if read == 0 {
            return Ok(());
        }
        match line.trim() {
            "" => {}
            "/help" => note(HELP),
            "/exit" | "/quit" => return Ok(()),
            "/reset" => talk.messages.retain(|m| m.role == "system"),
            command if command.starts_with('/') && !command.contains(' ') => {
                note(format_args!("{command} is no command: {HELP}"));
            }
            message => {
                ensure!(!message.contains('\0'), "a message contains a zero byte");
                talk.answer(message, &mut models)?;
            }
        }
    }
}

/// The conversation so far, and how it goes on.
struct Talk {
    settings: Settings,
    limits: Limits,
    random: Random,
    messages: Vec<Message>,
    quiet: bool,
    answering: Arc<AtomicBool>,
}

impl Talk {
    fn answer(&mut self, message: &str, models: &mut Models) -> Result<()> {
        self.messages.push(Message::user(message));
        let tokens = match models.language.encode_chat(&self.messages) {
            Ok(tokens) => tokens,
            Err(error) => return self.refuse(error),
        };
        let room = models.engine.facts().context;
        if tokens.len() >= room {
            return self.refuse(format_args!(
                "with this message the conversation has {} tokens, but the model's context holds {room}; /reset begins anew",
                tokens.len()
            ));
        }
        self.answering.store(true, Ordering::SeqCst);
        let mut printer = Printer::new(false, false);
        let Self { settings, limits, random, .. } = self;
        let made = texts::decode(models, &tokens, settings, limits, random, &mut |piece| {
            printer.show(piece) && self.answering.load(Ordering::SeqCst)
        })?;
        printer.finish()?;
        let interrupted = !self.answering.swap(false, Ordering::SeqCst);
        self.messages.push(Message::assistant(made.text));
        if made.finish == Finish::Context {
            note("the context is full: /reset begins anew");
        }
        if !self.quiet {
            let s = &made.statistics;
            let end = if interrupted { "; interrupted" } else { "" };
            note(format_args!(
                "[{} tokens, {:.1} tokens/s, block efficiency {:.2}; {:.0} ms for the question{end}]",
                s.tokens,
                s.tokens_per_second(),
                s.block_efficiency(),
                s.prompt_time.as_secs_f64() * 1e3
            ));
        }
        Ok(())
    }

    /// Takes the last message back, and says why.
    fn refuse(&mut self, why: impl std::fmt::Display) -> Result<()> {
        self.messages.pop();
        note(format_args!("error: {why}"));
        Ok(())
    }
}

/// Ctrl-C ends an answer if there is one, else the program.
fn handle_interrupts(answering: Arc<AtomicBool>) -> Result<()> {
    let handle = move || {
        if !answering.swap(false, Ordering::SeqCst) {
            eprintln!();
            std::process::exit(0);
        }
    };
    ctrlc::set_handler(handle).context("cannot listen to Ctrl-C")
}
