//! `polydraft certify`: does speculation keep the target's distribution, on these models?

use crate::usage::UsageError;
use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use polydraft::Sampling;
use polydraft::conformance::statistics::GTest;
use polydraft_engine::certify::{WrongResidual, compare, count_sequences};
use polydraft_engine::{Limits, Request};
use polydraft_runtime::{Description, Models, Run, Settings, Speculation, machine, seeded};
use polydraft_text::Language;
use rand::Rng;
use serde::Serialize;

use crate::args::{RunModelArgs, SamplingArgs, SpeculationArgs, probability};
use crate::commands::compare::divergence;
use crate::interrupts::InterruptGuard;
use crate::output::{self, Terminal};
use crate::prompts::PromptArgs;

/// Test that speculative decoding is lossless on your own models.
///
/// There are two tests. At temperature 0 the output must equal the output of plain decoding token
/// for token, except for ties within rounding. At the given temperature the first tokens after each
/// prompt are decoded thousands of times, and a G-test compares their joint distribution with the
/// target's, which is computed exactly from its logits. A lossless verifier fails this test with
/// probability --false-alarm; an incorrect one fails it if there are enough runs to detect the
/// difference. The exit code is 0 for a pass, 1 for a failure and 3 for too little data.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  polydraft certify
  polydraft certify --verifier spectr --paths 4 --depth 3 --runs 20000
  polydraft certify --target DIR --draft DIR --prompts prompts.jsonl --temperature 0.7
  polydraft certify --plant-fault        # must fail: shows that the test can")]
pub struct Args {
    #[command(flatten)]
    prompts: PromptArgs,
    /// Prompt. May be repeated.
    #[arg(
        long,
        short = 'p',
        value_name = "TEXT",
        allow_hyphen_values = true,
        conflicts_with = "prompts"
    )]
    prompt: Vec<String>,
    /// Maximum number of prompts to use.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4,
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    max_prompts: u32,
    /// Number of times the first tokens after each prompt are decoded.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2000,
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    runs: u32,
    /// Number of first tokens whose joint distribution is compared.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..=16),
    )]
    first: u32,
    /// Number of tokens compared at temperature 0, per prompt.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    greedy_tokens: u32,
    /// Probability that a lossless verifier fails the test.
    #[arg(long, value_name = "P", default_value_t = 1e-3, value_parser = probability)]
    false_alarm: f64,
    /// Seed of all runs.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Decode incorrectly on purpose; the test must then fail.
    ///
    /// After a rejection the token is drawn from the target's distribution instead of the residual,
    /// the most common mistake.
    #[arg(long)]
    plant_fault: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    models: RunModelArgs,
    #[command(flatten)]
    speculation: SpeculationArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    Pass,
    Fail,
    NotEnoughData,
}

#[derive(Serialize)]
struct Report {
    machine: String,
    version: &'static str,
    command: String,
    temperature: f64,
    verdict: Verdict,
    verifier: String,
    tree: String,
    prompts: usize,
    runs: u32,
    first_tokens: u32,
    /// Number of compared continuations.
    cells: usize,
    /// Statistic of the G-test, its degrees of freedom, and the probability of a larger one.
    statistic: f64,
    freedom: usize,
    p_value: f64,
    false_alarm: f64,
    /// Whether a fault was planted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    planted_fault: bool,
    /// Number of outputs at temperature 0 that were equal, that diverged at a tie within rounding,
    /// and that differed.
    greedy_equal: usize,
    greedy_ties: usize,
    greedy_different: usize,
}

/// Degrees of freedom below which the test can hardly fail.
const MIN_DEGREES_OF_FREEDOM: usize = 20;

/// Runs the tests.
///
/// # Errors
/// Fails if options contradict each other, if a model cannot be loaded, or on a verdict other than
/// a pass.
pub fn run(args: Args) -> Result<()> {
    let description = Description {
        models: args.models.options(),
        speculation: args.speculation.options(),
        sampling: args.sampling.options(),
        published_sampling: false,
    };
    if description.speculation.verifier.is_none() {
        return Err(UsageError::error("--verifier none drafts nothing that could be certified"));
    }
    let mut prompts =
        if args.prompt.is_empty() { args.prompts.read()? } else { args.prompt.clone() };
    prompts.truncate(args.max_prompts as usize);
    let mut run = Run::open(description, &Terminal)?;
    run.draft_always(&Terminal)?;
    let rounding = run.models.logit_tolerance();
    let Run { mut models, settings, .. } = run;
    let Some(speculation) = &settings.speculation else {
        return Err(UsageError::error("without a draft there is nothing to certify"));
    };
    let sampling = settings.sampling;
    let bar = ProgressBar::new(prompts.len() as u64 * (u64::from(args.runs) + 2))
        .with_style(ProgressStyle::with_template("{msg} [{bar:30}] {percent} %, {eta} left")?);
    let (mut equal, mut ties, mut different) = (0, 0, 0);
    let mut test = GTest::default();
    let (guard, mut decoded) = (InterruptGuard::install(), 0);
    for (number, prompt) in prompts.iter().enumerate() {
        if guard.is_interrupted() {
            break;
        }
        decoded += 1;
        let context = models.engine.info().context;
        let tokens = models.language.tokenizer.encode_within(prompt, context)?;
        bar.set_message(format!("prompt {} of {}, temperature 0", number + 1, prompts.len()));
        match greedy(&args, &mut models, speculation, &tokens)? {
            None => equal += 1,
            Some(gap) if gap <= rounding => ties += 1,
            Some(_) => different += 1,
        }
        bar.inc(2);
        if sampling.temperature == 0.0 {
            // Sampling is deterministic: only the outputs can be compared.
            bar.inc(args.runs.into());
            continue;
        }
        bar.set_message(format!("prompt {} of {}, distribution", number + 1, prompts.len()));
        let length = args.first as usize;
        let remaining = models.engine.info().context.saturating_sub(tokens.len());
        if remaining < length {
            bail!(
                "prompt {}: the context has room for {remaining} tokens, --first asks for {length}",
                number + 1
            );
        }
        let runs = args.runs as usize;
        let mut seeds = seeded(args.seed ^ (number as u64) << 32);
        let Models { engine, language, .. } = &mut models;
        // The token limit lies beyond the compared tokens, as in normal use.
        let mut next =
            |_| request(&args, language, &tokens, &settings, Limits::default(), seeds.next_u64());
        let counts = count_sequences(engine, length, runs, &mut next, &mut || {
            bar.inc(1);
            !guard.is_interrupted()
        })?;
        test = test.combined(compare(models.engine.target(), &sampling, &tokens, length, &counts)?);
    }
    bar.finish_and_clear();
    let greedy_only = sampling.temperature == 0.0;
    let p_value = test.p_value();
    let verdict = if p_value < args.false_alarm || different > 0 {
        Verdict::Fail
    } else if !greedy_only && test.degrees_of_freedom < MIN_DEGREES_OF_FREEDOM {
        Verdict::NotEnoughData
    } else {
        Verdict::Pass
    };
    let report = Report {
        machine: machine(),
        version: env!("CARGO_PKG_VERSION"),
        command: output::command(),
        temperature: sampling.temperature,
        verdict,
        verifier: speculation.verifier.to_string(),
        tree: speculation.tree.describe(),
        prompts: decoded,
        runs: if greedy_only { 0 } else { args.runs },
        first_tokens: args.first,
        cells: test.cells,
        statistic: test.statistic,
        freedom: test.degrees_of_freedom,
        p_value,
        false_alarm: args.false_alarm,
        planted_fault: args.plant_fault,
        greedy_equal: equal,
        greedy_ties: ties,
        greedy_different: different,
    };
    if args.json {
        output::json(&report)?;
    } else {
        print(&report)?;
    }
    match verdict {
        _ if guard.is_interrupted() => output::finish(true),
        Verdict::Pass => Ok(()),
        Verdict::Fail => Err(output::ExitCode::error(1)),
        Verdict::NotEnoughData => Err(output::ExitCode::error(3)),
    }
}

/// Builds the engine's request, with a planted fault if requested.
fn request(
    args: &Args,
    language: &Language,
    prompt: &[polydraft::Token],
    settings: &Settings,
    limits: Limits,
    seed: u64,
) -> Result<Request<'static>> {
    let request = settings.request(language, prompt, &limits, seeded(seed))?;
    if !args.plant_fault {
        return Ok(request);
    }
    let faulty = |speculation: polydraft_engine::Speculation| {
        speculation.map_verifier(|verifier| Box::new(WrongResidual(verifier)))
    };
    Ok(request.map_speculation(faulty)?)
}

/// Compares with plain decoding at temperature 0. Returns the difference of the two tokens' logits
/// where the outputs diverge.
fn greedy(
    args: &Args,
    models: &mut Models,
    speculation: &Speculation,
    prompt: &[polydraft::Token],
) -> Result<Option<f32>> {
    let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
    let mut outputs = Vec::new();
    for speculation in [None, Some(speculation)] {
        let settings = Settings { sampling, speculation: speculation.cloned() };
        let limits = Limits { max_tokens: Some(args.greedy_tokens as usize), ..Limits::default() };
        let request = request(args, &models.language, prompt, &settings, limits, args.seed)?;
        outputs.push(models.engine.generate(request, &mut |_| true)?.tokens);
    }
    divergence(models.engine.target(), prompt, &outputs[0], &outputs[1])
}

/// Formats a p-value, however small.
fn format_p_value(p: f64) -> String {
    if p < 1e-3 { format!("{p:.1e}") } else { format!("{p:.3}") }
}

fn print(report: &Report) -> Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}, {}", report.verifier, report.tree)?;
    let compared = report.greedy_equal + report.greedy_ties + report.greedy_different;
    writeln!(
        out,
        "temperature 0: {} of {compared} outputs equal plain decoding, {} diverge at a tie within \
         rounding, {} differ",
        report.greedy_equal, report.greedy_ties, report.greedy_different
    )?;
    if report.runs == 0 {
        writeln!(
            out,
            "distribution: not tested, because sampling at --temperature 0 is deterministic"
        )?;
    } else {
        writeln!(
            out,
            "distribution: first {} tokens, {} runs after each of {} prompts: G = {:.1} with {} \
             degrees of freedom, p = {}",
            report.first_tokens,
            report.runs,
            report.prompts,
            report.statistic,
            report.freedom,
            format_p_value(report.p_value)
        )?;
    }
    let verdict = match report.verdict {
        Verdict::Pass if report.runs == 0 => {
            "pass: the outputs equal those of plain decoding".to_owned()
        }
        Verdict::Pass if report.planted_fault => {
            "pass, although a fault was planted: too few runs to find it; raise --runs or \
             --max-prompts"
                .to_owned()
        }
        Verdict::Pass => format!(
            "pass: no deviation at a false-alarm rate of \
            {}",
            report.false_alarm
        ),
        Verdict::Fail => format!(
            "FAIL: samples of the target itself would deviate as much with probability {}{}",
            format_p_value(report.p_value),
            if report.greedy_different > 0 { ", or outputs at temperature 0 differ" } else { "" }
        ),
        Verdict::NotEnoughData => {
            format!(
                "not enough data: fewer than {MIN_DEGREES_OF_FREEDOM} degrees of freedom; raise \
                --runs or --max-prompts"
            )
        }
    };
    writeln!(out, "{verdict}")?;
    Ok(())
}
