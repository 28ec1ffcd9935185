//! `polydraft-lab trace`: records the input of verification.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, ensure};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use polydraft::{PolicyKind, Token};
use polydraft_cli::args::{ModelArgs, SamplingArgs};
use polydraft_cli::interrupts::InterruptGuard;
use polydraft_cli::output::{self, note};
use polydraft_cli::prompts::{self, PromptArgs};
use polydraft_cli::provenance::MadeBy;
use polydraft_cli::usage::UsageError;
use polydraft_reference::trace::{FORMAT, Header, Recording, VERSION, Writer};
use polydraft_runtime::Models;
use serde::Serialize;

use crate::bench::verifiers::chooses;
use crate::cut::one_draft;
use crate::observe::{self, Plan, text_seed};

/// Record drafts and distributions at positions of the target's own output, for later comparison of
/// verifiers.
///
/// DIR receives a header with models, settings and program; one file per prompt with the drafted
/// trees, their drafting schemes, and the distributions of draft and target at every node; and an
/// index of these files (docs/traces.md). 'polydraft-lab replay' compares verifiers on a trace, on
/// any machine and without models. An interruption loses the current prompt; --append continues.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  polydraft-lab trace traces/demo
  polydraft-lab trace traces/demo --append --prompts more.jsonl
  polydraft-lab trace traces/exact --mass 1 --tree paths:4,4 --every 32
  polydraft-lab trace traces/big --target models/big --draft models/small --prompts \
  questions.jsonl --tree delayed:2,4,4 -t 0.8")]
pub struct Args {
    /// Folder for the trace: new or empty, or an existing trace with --append.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    #[command(flatten)]
    models: ModelArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    prompts: PromptArgs,
    /// Tree to draft, as for 'generate --tree'. Replay can use this tree and trees that are part of
    /// it: for K paths, fewer or shorter paths.
    #[arg(long, value_name = "TREE", default_value = "paths:8,4")]
    tree: PolicyKind,
    /// Probability mass P of the likeliest tokens to store of each distribution, rounded to 1 - P,
    /// in addition to the drafted tokens; 1 stores distributions exactly. The default changes an
    /// expected number of tokens by about 0.001, and 0.999 by up to 0.01.
    #[arg(long, value_name = "P", default_value_t = 0.9999, value_parser = mass)]
    mass: f64,
    /// Number of sequences after each prompt: standard errors need at least two.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2,
        value_parser = clap::value_parser!(u32).range(1..=1024),
    )]
    outputs: u32,
    /// Number of tokens of a sequence between recorded positions.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 8,
        value_parser = clap::value_parser!(u32).range(1..=4096),
    )]
    every: u32,
    /// Number of tokens of each sequence.
    #[arg(
        long,
        short = 'n',
        value_name = "N",
        default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=1 << 20),
    )]
    max_tokens: u32,
    /// Seed of the sequences and the drafts.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
    /// Append to the trace in DIR, skipping prompts that it already contains. Models and settings
    /// must be the same.
    #[arg(long)]
    append: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

fn mass(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(mass) if mass > 0.0 && mass <= 1.0 => Ok(mass),
        _ => Err("expected a probability above 0, at most 1".to_owned()),
    }
}

/// Result of recording.
#[derive(Serialize)]
struct Recorded {
    trace: PathBuf,
    /// Number of prompts in the trace, including those of earlier runs.
    prompts: usize,
    before: usize,
    positions: usize,
    bytes: u64,
    seconds: f64,
    /// Largest probability mass that was omitted from a distribution.
    left_out: f64,
    interrupted: bool,
}

pub fn run(args: Args) -> Result<()> {
    one_draft(&args.sampling.options())?;
    if args.tree.build().map_err(UsageError::error)?.form().distinct() > 0 {
        let tree = &args.tree;
        return Err(UsageError::error(format_args!(
            "--tree {tree} draws from several drafts: a trace has one"
        )));
    }
    if chooses(&args.tree) {
        let tree = &args.tree;
        return Err(UsageError::error(format_args!(
            "--tree {tree} depends on what one verifier accepted before: name the tree to record"
        )));
    }
    // Before models are loaded.
    let folder = args.folder.display();
    if args.folder.exists() && !args.folder.is_dir() {
        return Err(UsageError::error(format_args!(
            "{folder}: expected a folder to record into, got a file"
        )));
    }
    match (args.append, args.folder.join("trace.json").exists()) {
        (false, true) => {
            return Err(UsageError::error(format_args!(
                "{folder} holds a trace: --append adds to it"
            )));
        }
        (true, false) => {
            let message = "holds no trace to go on with: without --append one is begun there";
            return Err(UsageError::error(format_args!("{folder} {message}")));
        }
        _ => {}
    }
    let prompts = args.prompts.read()?;
    let mut models = args.models.load(true)?;
    let prompts = prompts::encode(&prompts, &models)?;
    let header = header(&args, &models);
    let mut writer = match args.append {
        true => Writer::append(&args.folder, &header)?,
        false => Writer::create(&args.folder, &header)?,
    };
    let clock = Instant::now();
    let before = writer.next();
    let mut recorded = Recorded {
        trace: args.folder.clone(),
        prompts: 0,
        before,
        positions: 0,
        bytes: 0,
        seconds: 0.0,
        left_out: 0.0,
        interrupted: false,
    };
    let bar = ProgressBar::new(prompts.len() as u64).with_style(ProgressStyle::with_template(
        "[{bar:30}] {pos}/{len} prompts, {msg}{eta} left",
    )?);
    let orderly = InterruptGuard::install();
    for prompt in &prompts {
        if !writer.has(prompt) {
            let Some(recording) = record(&mut models, &header, prompt, writer.next(), &orderly)?
            else {
                recorded.interrupted = true;
                break;
            };
            recorded.bytes += writer.add(&recording, &header.made)?;
            recorded.positions += recording.positions();
            recorded.left_out = recorded.left_out.max(recording.left_out());
            recorded.prompts += 1;
            bar.set_message(format!("{}, ", HumanBytes(recorded.bytes)));
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    recorded.seconds = clock.elapsed().as_secs_f64();
    show(&args, &recorded)
}

/// Returns the header of this run's trace.
fn header(args: &Args, models: &Models) -> Header {
    let [target, draft] = args.models.options().ids(models);
    let made = serde_json::to_value(MadeBy::current()).unwrap_or_default();
    Header {
        format: FORMAT.to_owned(),
        version: VERSION,
        target,
        draft,
        vocabulary: models.engine.info().vocabulary.size(),
        sampling: args.sampling.options().target(),
        draft_sampling: args.sampling.options().draft(),
        tree: args.tree.clone(),
        mass: args.mass,
        sequences: args.outputs,
        max_tokens: args.max_tokens,
        every: args.every,
        seed: args.seed,
        made,
    }
}

/// Records all sequences after prompt `number`. Returns `None` if the user interrupted.
fn record(
    models: &mut Models,
    header: &Header,
    prompt: &[Token],
    number: usize,
    orderly: &InterruptGuard,
) -> Result<Option<Recording>> {
    let plan = Plan {
        sampling: header.sampling,
        draft_sampling: header.draft_sampling,
        each: &[],
        tree: &header.tree,
        max_tokens: header.max_tokens as usize,
        every: header.every as usize,
        steps_of: None,
        paths: None,
    };
    let mut recording = Recording::new(header, prompt);
    for round in 0..header.sequences {
        let seed = text_seed(header.seed, round.into(), number);
        recording.begin(seed);
        let goes_on = || !orderly.is_interrupted();
        let (grown, tokens) = observe::text(
            &mut models.engine,
            prompt,
            &plan,
            (seed, seed),
            Vec::new(),
            recording,
            &goes_on,
        )?;
        recording = grown;
        recording.end(&tokens);
        if orderly.is_interrupted() {
            return Ok(None);
        }
    }
    ensure!(
        recording.positions() > 0,
        "prompt {} leaves no room for output and a tree",
        number + 1
    );
    Ok(Some(recording))
}

fn show(args: &Args, recorded: &Recorded) -> Result<()> {
    let Recorded { trace, prompts, before, positions, bytes, seconds, left_out, interrupted } =
        recorded;
    if args.json {
        output::json(recorded)?;
    } else {
        let had = match before {
            0 => String::new(),
            before => format!(" beside the {before} that it had"),
        };
        let missing = match left_out {
            0.0 => "distributions are exact".to_owned(),
            missing => format!("at most {missing:.1e} of a distribution is left out"),
        };
        note(format_args!(
            "{}: {prompts} prompts{had}, {positions} positions in {seconds:.1} s; {}, {:.1} kB a \
             position; {missing}",
            trace.display(),
            HumanBytes(*bytes),
            *bytes as f64 / 1e3 / (*positions).max(1) as f64,
        ));
    }
    if *interrupted {
        note("the current prompt was not recorded: --append goes on with it");
    }
    output::finish(*interrupted)
}
