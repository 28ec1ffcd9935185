//! `polydraft-lab bench quality`: answers of plain and of speculative decoding, scored.

mod answers;
mod interval;
mod items;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use polydraft::Token;
use polydraft_cli::args::{ChatArgs, ModelArgs, SpeculationArgs};
use polydraft_cli::commands::compare::divergence;
use polydraft_cli::interrupts::{self, InterruptGuard};
use polydraft_cli::output::{self, ExitCode, note};
use polydraft_cli::usage::UsageError;
use polydraft_engine::Limits;
use polydraft_runtime::{Models, SamplingOptions, Settings, Speculation, seeded};

use answers::Runner;
use items::Item;

use crate::args::{RecordArgs, finish};
use crate::cut::CutArgs;
pub use report::{KindScore, Outputs, Report, Score};

/// Score outputs of plain and of speculative decoding, which must have the same quality.
///
/// Each prompt has an answer that can be checked. At temperature 0 the output must equal plain
/// decoding's token for token (except for ties within rounding). Above it, both methods answer
/// every prompt several times with different seeds, and the difference of the scores is printed
/// with a 95 % bootstrap interval over prompts. Programs in the output only run if --run is given.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Files have a JSON object a line:
  {\"prompt\": \"2 + 2 =\", \"answer\": \"4\", \"check\": \"number\"}       check: exact (the \
  default), prefix, number or regex
  {\"question\": \"..\", \"answer\": \".. #### 72\"}                    GSM8K: the last number of \
  the output counts
  {\"turns\": [\"..\"], \"category\": \"math\", \"reference\": [\"..\"]}    Spec-Bench: those \
  whose reference is a number
  {\"prompt\": \"def f(..\", \"test\": \"..\", \"entry_point\": \"f\"}      HumanEval: with --run
Examples:
  polydraft-lab bench quality
  polydraft-lab bench quality --target model.gguf --draft self --samples 16
  polydraft-lab bench quality --target DIR --draft DIR --prompts gsm8k.jsonl --chat -n 256
  polydraft-lab bench quality --target DIR --draft DIR --prompts humaneval.jsonl --run 'timeout 5 \
  podman run -i --rm python python -'")]
pub struct Args {
    #[command(flatten)]
    models: ModelArgs,
    #[command(flatten)]
    speculation: SpeculationArgs,
    #[command(flatten)]
    chat: ChatArgs,
    /// Prompts with answers [default: the project's own, 78 short ones].
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Number of prompts to use from the file [default: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    max_prompts: Option<u32>,
    /// Temperatures, for target and draft.
    #[arg(long, short = 't', value_name = "T,..", default_value = "0,1", value_delimiter = ',')]
    temperatures: Vec<f64>,
    #[command(flatten)]
    cut: CutArgs,
    /// Number of outputs per prompt and method, above temperature 0.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 8,
        value_parser = clap::value_parser!(u32).range(1..=10_000),
    )]
    samples: u32,
    /// Maximum number of tokens of an output [default: 24 for short answers, else 256].
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    /// Run programs in the output: this command gets each program on standard input, and exit code
    /// 0 means that its tests passed. The programs are untrusted: the command should run them in a
    /// sandbox.
    #[arg(long, value_name = "COMMAND")]
    run: Option<String>,
    /// Time limit of the command in seconds.
    #[arg(
        long,
        value_name = "S",
        default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(1..=3600),
        requires = "run",
    )]
    run_seconds: u64,
    /// Seed of all outputs.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    record: RecordArgs,
}

/// A prompt with the scores of its outputs.
pub struct Tried {
    pub item: Item,
    prompt: Vec<Token>,
    /// By temperature: numbers of correct outputs of plain and of speculative decoding.
    pub right: Vec<[u32; 2]>,
}

pub fn run(args: Args) -> Result<()> {
    for &temperature in &args.temperatures {
        args.cut.at(temperature)?;
    }
    let (options, requested) = (args.models.options(), args.speculation.options());
    let demo = options.demo_acceptance();
    let Some(speculation) =
        requested.resolve(&SamplingOptions::default(), options.draft_count(), demo.as_deref())?
    else {
        return Err(UsageError::error("there is nothing to compare with --verifier none"));
    };
    let (mut items, skipped) = items::read(args.prompts.as_deref(), args.run.is_some())?;
    items.truncate(args.max_prompts.map_or(usize::MAX, |most| most as usize));
    let save = args.record.begin()?;
    let mut models = args.models.load(true)?;
    let runner = args
        .run
        .clone()
        .map(|command| Runner { command, time: Duration::from_secs(args.run_seconds) });
    let context = models.engine.info().context;
    let mut tried = Vec::new();
    for item in items {
        let prompt = args.chat.encode(&models.language, &item.prompt, context)?;
        tried.push(Tried { item, prompt, right: Vec::new() });
    }
    ensure!(tried.len() > 1, "expected at least two prompts with answers that can be checked");
    let plan = Plan { args: &args, runner, end_tokens: args.chat.end_tokens(&models.language) };
    let per = |temperature: &f64| if *temperature == 0.0 { 2 } else { 2 * u64::from(args.samples) };
    let outputs: u64 = args.temperatures.iter().map(per).sum();
    let bar = ProgressBar::new(outputs * tried.len() as u64).with_style(
        ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} outputs, {eta} left")?,
    );
    let orderly = InterruptGuard::install();
    let mut scores = Vec::new();
    for &temperature in &args.temperatures {
        bar.set_message(format!("T = {temperature}"));
        let sampling = args.cut.at(temperature)?;
        let mut speculation = Speculation { sampling, ..speculation.clone() };
        let costs = requested.costs.as_deref();
        crate::costs::settle(costs, &mut models, &sampling, &mut speculation)?;
        let mut outputs = Outputs::default();
        for tried in &mut tried {
            let right = plan.outputs(&mut models, tried, &speculation, &mut outputs, &bar)?;
            tried.right.push(right);
            if orderly.is_interrupted() {
                break;
            }
        }
        // Only temperatures at which all prompts were decoded.
        if orderly.is_interrupted() {
            break;
        }
        scores.push((temperature, outputs));
    }
    drop(orderly);
    bar.finish_and_clear();
    if scores.is_empty() {
        note("interrupted: not all prompts were tried at any temperature");
        return Err(ExitCode::error(interrupts::EXIT_CODE));
    }
    let report = Report::new(&args, &models, &speculation, &tried, &scores, skipped);
    finish(save, &report)?;
    args.record.print(&report, report::print)?;
    if report
        .scores
        .iter()
        .any(|score| score.outputs.as_ref().is_some_and(|outputs| outputs.different > 0))
    {
        return Err(ExitCode::error(1));
    }
    output::finish(scores.len() < args.temperatures.len())
}

/// Settings of generation and scoring.
struct Plan<'a> {
    args: &'a Args,
    runner: Option<Runner>,
    end_tokens: Vec<Token>,
}

impl Plan<'_> {
    /// Returns the numbers of correct outputs of plain and of speculative decoding.
    fn outputs(
        &self,
        models: &mut Models,
        tried: &Tried,
        speculation: &Speculation,
        compared: &mut Outputs,
        bar: &ProgressBar,
    ) -> Result<[u32; 2]> {
        let (item, sampling) = (&tried.item, speculation.sampling);
        let greedy = sampling.temperature == 0.0;
        let mut right = [0, 0];
        let mut first: Vec<Vec<Token>> = Vec::new();
        for number in 0..if greedy { 1 } else { self.args.samples } {
            for (way, right) in right.iter_mut().enumerate() {
                let settings =
                    Settings { sampling, speculation: (way == 1).then(|| speculation.clone()) };
                let limits = Limits {
                    max_tokens: Some(
                        self.args.max_tokens.map_or(item.max_tokens, |most| most as usize),
                    ),
                    end_tokens: self.end_tokens.clone(),
                    stop: if self.args.chat.is_conversation() {
                        Vec::new()
                    } else {
                        item.stop.clone()
                    },
                    stop_outside: None,
                };
                let seed = (u64::from(number) << 1 | way as u64) << 32 ^ item.number as u64;
                let mut random = seeded(self.args.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed);
                let mut text = String::new();
                let generation = models.decode(
                    &tried.prompt,
                    &settings,
                    &limits,
                    &mut random,
                    &mut |chunk| {
                        text.push_str(&chunk.text);
                        true
                    },
                )?;
                *right += u32::from(item.check.accepts(&text, self.runner.as_ref())?);
                if greedy {
                    first.push(generation.tokens);
                }
                bar.inc(1);
            }
        }
        if let [plain, speculative] = &first[..] {
            // A stop string may lie in the middle of the tokens that one call accepted: the outputs
            // are equal as far as both go.
            let common = plain.len().min(speculative.len());
            match divergence(
                models.engine.target(),
                &tried.prompt,
                &plain[..common],
                &speculative[..common],
            )? {
                None => compared.equal += 1,
                Some(gap) if gap <= models.logit_tolerance() => compared.ties += 1,
                Some(_) => compared.different += 1,
            }
        }
        Ok(right)
    }
}
