//! `polydraft-lab bench acceptance`: how often the first, second, .. draft at a node is accepted.

use anyhow::{Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use polydraft::VerifierKind;
use polydraft::{Drafting, PolicyKind};
use polydraft_cli::args::{ModelArgs, SamplingArgs};
use polydraft_cli::interrupts::InterruptGuard;
use polydraft_cli::output;
use polydraft_cli::prompts::PromptArgs;
use polydraft_cli::provenance::MadeBy;
use polydraft_cli::usage::UsageError;
use polydraft_engine::Limits;
use polydraft_runtime::{AcceptanceFile, Settings, Speculation, seeded};
use serde::Serialize;

use crate::args::RecordArgs;
use crate::cut::one_draft;

/// Measure how often the first, second, .. draft at a node is accepted, for sequoia trees.
///
/// Decodes with trees of one level whose tokens are drawn without replacement (or with --drafting),
/// and verifies them with a walk with recursive rejection. The result depends on models, prompts
/// and sampling.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example:
  polydraft-lab bench acceptance --save acceptance.json
  polydraft generate --prompt 'fn main' --verifier traversal --tree sequoia:8 --acceptance \
  acceptance.json")]
pub struct Args {
    #[command(flatten)]
    models: ModelArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    prompts: PromptArgs,
    /// Number of drafts at each node.
    #[arg(
        long,
        value_name = "J",
        default_value_t = 8,
        value_parser = clap::value_parser!(u32).range(1..=256),
    )]
    children: u32,
    /// Verifier to measure.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "specinfer",
        value_parser = polydraft_reference::verifier,
    )]
    verifier: VerifierKind,
    /// Drafting scheme: without-replacement, top-k (with walk:naive) or iid.
    #[arg(long, value_name = "SCHEME", default_value = "without-replacement")]
    drafting: Drafting,
    /// Tokens to generate per prompt; nothing is drafted before the last one.
    #[arg(
        long,
        short = 'n',
        default_value_t = 128,
        value_parser = clap::value_parser!(u32).range(2..),
    )]
    max_tokens: u32,
    /// Rounds over all prompts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[command(flatten)]
    record: RecordArgs,
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    made_by: MadeBy,
    verifier: String,
    drafting: Drafting,
    prompts: usize,
    max_tokens: u32,
    rounds: u32,
    acceptance: Vec<f64>,
    /// Standard error of each.
    error: Vec<f64>,
    /// Number of verified positions.
    positions: usize,
    /// Whether it was interrupted before all rounds were done.
    interrupted: bool,
}

pub fn run(args: Args) -> Result<()> {
    one_draft(&args.sampling.options())?;
    let tree = PolicyKind::levels(&[args.children as usize], args.drafting);
    let draft = args.sampling.options().draft();
    let speculation = Speculation::new(args.verifier.clone(), tree, draft);
    speculation.build().map_err(UsageError::error)?;
    let settings =
        Settings { sampling: args.sampling.options().target(), speculation: Some(speculation) };
    let save = args.record.begin()?;
    let prompts = args.prompts.read()?;
    let mut models = args.models.load(true)?;
    let bar = ProgressBar::new(prompts.len() as u64 * u64::from(args.rounds))
        .with_style(ProgressStyle::with_template("[{bar:30}] {pos}/{len} sequences, {eta} left")?);
    let mut counts = vec![0_usize; args.children as usize];
    let mut positions = 0;
    let orderly = InterruptGuard::install();
    'measuring: for round in 0..args.rounds {
        for (number, prompt) in prompts.iter().enumerate() {
            let context = models.engine.info().context;
            let tokens = models.language.tokenizer.encode_within(prompt, context)?;
            let limits = Limits { max_tokens: Some(args.max_tokens as usize), ..Limits::default() };
            let mut random = seeded(u64::from(round) << 32 | number as u64);
            let run = models.decode(&tokens, &settings, &limits, &mut random, &mut |_| true)?;
            // Trees have one level: each call verifies one position, except a last call without
            // drafts.
            positions += run.statistics.drafted.first().copied().unwrap_or(0);
            for (total, count) in counts.iter_mut().zip(&run.statistics.accepted_by_rank) {
                *total += count;
            }
            bar.inc(1);
            if orderly.is_interrupted() {
                break 'measuring;
            }
        }
    }
    drop(orderly);
    let interrupted = bar.position() < bar.length().unwrap_or(0);
    bar.finish_and_clear();
    ensure!(positions > 0, "nothing was verified: expected prompts with room for two more tokens");
    let acceptance: Vec<f64> =
        counts.iter().map(|&count| count as f64 / positions as f64).collect();
    let error = acceptance.iter().map(|a| (a * (1.0 - a) / positions as f64).sqrt()).collect();
    let report = Report {
        made_by: MadeBy::current(),
        verifier: args.verifier.to_string(),
        drafting: args.drafting,
        prompts: prompts.len(),
        max_tokens: args.max_tokens,
        rounds: args.rounds,
        acceptance,
        error,
        positions,
        interrupted,
    };
    if let Some(save) = save {
        let acceptance = AcceptanceFile { acceptance: report.acceptance.clone() };
        let text = serde_json::to_string(&acceptance)?;
        save.finish((text + "\n").as_bytes())?;
    }
    args.record.print(&report, print)?;
    output::finish(interrupted)
}

fn print(report: &Report) -> Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{:>5} {:>18}", "draft", "accepted")?;
    for (index, (rate, error)) in report.acceptance.iter().zip(&report.error).enumerate() {
        writeln!(out, "{:>5} {:>9.4} ± {:.4}", index + 1, rate, error)?;
    }
    let sum: f64 = report.acceptance.iter().sum();
    writeln!(out, "{:>5} {:>9.4}   at {} positions", "all", sum, report.positions)?;
    Ok(())
}
