//! `polydraft-lab bench decode`: decoding methods, side by side.

pub mod chart;
mod report;
mod speeds;
mod ways;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use polydraft::VerifierKind;
use polydraft::policy::Costs;
use polydraft::{Sampling, Token};
use polydraft_cli::args::ModelArgs;
use polydraft_cli::commands::compare::divergence;
use polydraft_cli::interrupts::{self, InterruptGuard};
use polydraft_cli::output::{self, Terminal, note};
use polydraft_cli::prompts::{self, PromptArgs};
use polydraft_engine::{Generation, Limits};
use polydraft_runtime::{Models, Settings, Speculation, costs, seeded};

use crate::args::{GridArgs, RecordArgs, finish};
use crate::cut::CutArgs;
use crate::plot;
use report::print;
pub use report::{Report, Row, row};
use ways::ways;
pub use ways::{Way, way};

/// Compare plain decoding with verifiers, numbers of paths, depths and temperatures, in one run.
///
/// First, the output of every method must equal plain decoding's at temperature 0 on every prompt
/// (except for ties within rounding, which are counted). Then all methods are timed in turn, prompt
/// by prompt, so that drift of the machine affects all alike. Speeds and ratios are medians over
/// the rounds; block efficiencies are means with standard errors over the rounds.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  polydraft-lab bench decode --verifiers token,block --depths 1,2,3,4,8
  polydraft-lab bench decode --verifiers nested-priority --tree auto --paths 1,2,4 --depths \
  1,2,3,4,6
  polydraft-lab bench decode --paths 2,4 --depths 4,8 --plot efficiency.svg --json > record.json
  polydraft-lab bench decode --target DIR --draft DIR --prompts questions.jsonl --rounds 3")]
pub struct Args {
    #[command(flatten)]
    models: ModelArgs,
    #[command(flatten)]
    prompts: PromptArgs,
    /// Verifiers to compare; single-path verifiers run with one path.
    #[arg(
        long,
        value_name = "NAME,..",
        value_delimiter = ',',
        default_value = "token,block,specinfer,spectr,walk:priority,traversal,greedy-block,\
            nested-priority",
        value_parser = polydraft_reference::verifier,
    )]
    verifiers: Vec<VerifierKind>,
    #[command(flatten)]
    grid: GridArgs,
    /// Costs of forward passes, for --tree auto: as for 'generate'.
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
    #[command(flatten)]
    cut: CutArgs,
    /// Tokens to generate per prompt.
    #[arg(
        long,
        short = 'n',
        default_value_t = 128,
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    max_tokens: u32,
    /// Rounds over all prompts.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Draw the block efficiencies to this .svg file. May be repeated.
    #[arg(long, value_name = "FILE")]
    plot: Vec<PathBuf>,
    /// Draw tokens per second by number of nodes of the tree to this .svg file, with plain decoding
    /// and with the speed that the costs of forward passes predict. May be repeated.
    #[arg(long, value_name = "FILE")]
    plot_speed: Vec<PathBuf>,
    /// Show or draw a record that --save or --json has written, instead of measuring.
    #[arg(long, value_name = "FILE", conflicts_with = "save")]
    from: Option<PathBuf>,
    #[command(flatten)]
    record: RecordArgs,
}

pub fn run(args: Args) -> Result<()> {
    for &temperature in &args.grid.temperatures {
        args.cut.at(temperature)?;
    }
    plot::check(&args.plot)?;
    plot::check(&args.plot_speed)?;
    if let Some(file) = &args.from {
        return show(&args, &super::read_record(file, "bench decode")?);
    }
    let mut ways = ways(&args)?;
    let save = args.record.begin()?;
    let prompts = args.prompts.read()?;
    let mut models = args.models.load(true)?;
    let costs = settle_costs(&args, &mut models, &mut ways)?;
    let prompts = prompts::encode(&prompts, &models)?;

    let total = prompts.len() * ways.len() * (1 + args.rounds as usize);
    let bar = ProgressBar::new(total as u64).with_style(ProgressStyle::with_template(
        "{msg} [{bar:30}] {pos}/{len} sequences, {eta} left",
    )?);
    bar.set_message("checking answers");
    let orderly = InterruptGuard::install();
    let mut ties = 0;
    for (number, prompt) in prompts.iter().enumerate() {
        let mut expected = None;
        for way in &ways {
            let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
            // The draft keeps its sampling settings, so that several paths differ.
            let settings = Settings { sampling: greedy, speculation: way.speculation.clone() };
            let got = generate(&mut models, &settings, prompt, args.max_tokens, 0)?.tokens;
            let expected = expected.get_or_insert_with(|| got.clone());
            let rounding = models.logit_tolerance();
            if let Some(gap) = divergence(models.engine.target(), prompt, expected, &got)? {
                ensure!(
                    gap <= rounding,
                    "{} differs from plain decoding at temperature 0 on prompt {}, where their \
                     logits are {gap:e} apart",
                    way.name(),
                    number + 1
                );
                ties += 1;
            }
            bar.inc(1);
            if orderly.is_interrupted() {
                bar.finish_and_clear();
                note("interrupted: answers were still being checked, nothing was timed");
                return Err(output::ExitCode::error(interrupts::EXIT_CODE));
            }
        }
    }
    bar.set_message("timing");
    let mut goes_on = || {
        bar.inc(1);
        !orderly.is_interrupted()
    };
    let done =
        time(&mut models, &prompts, &mut ways, (args.rounds, args.max_tokens), &mut goes_on)?;
    drop(orderly);
    bar.finish_and_clear();
    let interrupted = done < prompts.len() * args.rounds as usize;
    if done == 0 {
        note("interrupted: no prompt was decoded by all methods");
        return Err(output::ExitCode::error(interrupts::EXIT_CODE));
    }
    let report = Report::new(&args, done.min(prompts.len()), ties, &ways, costs);
    finish(save, &report)?;
    show(&args, &report)?;
    output::finish(interrupted)
}

/// Passes the costs of forward passes to adaptive trees. Returns the costs if they are needed.
fn settle_costs(args: &Args, models: &mut Models, ways: &mut [Way]) -> Result<Option<Costs>> {
    let file = args.costs.as_deref();
    for way in ways.iter_mut() {
        if let Some(speculation) = &mut way.speculation {
            crate::costs::settle(file, models, &way.sampling, speculation)?;
        }
    }
    let speculates = ways.iter().find_map(|way| way.speculation.clone());
    let (Some(speculation), true) = (speculates, file.is_some() || !args.plot_speed.is_empty())
    else {
        return Ok(None);
    };
    let Speculation { sampling, verifier, .. } = &speculation;
    costs::read_or_measure(file, models, [sampling; 2], verifier, &Terminal).map(Some)
}

/// Times all methods, prompt by prompt, for `rounds` rounds of sequences with `max_tokens` tokens.
/// Stops early when `goes_on`, called before each sequence, returns false. Returns the number of
/// prompts that all methods have decoded.
///
/// Compared rounds have the same prompts, so an incomplete round counts only if it is the first.
///
/// # Errors
/// Failures of the models and the verifiers.
pub fn time(
    models: &mut Models,
    prompts: &[Vec<Token>],
    ways: &mut [Way],
    (rounds, max_tokens): (u32, u32),
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<usize> {
    for round in 0..rounds {
        ways.iter_mut().for_each(Way::begin_round);
        for (number, prompt) in prompts.iter().enumerate() {
            let seed = u64::from(round) << 32 | number as u64;
            let mut statistics = Vec::new();
            for way in ways.iter() {
                if !goes_on() {
                    if round > 0 {
                        ways.iter_mut().for_each(Way::drop_round);
                        return Ok(round as usize * prompts.len());
                    }
                    return Ok(number);
                }
                let generation = generate(models, &way.settings(), prompt, max_tokens, seed)?;
                statistics.push(generation.statistics);
            }
            ways.iter_mut().zip(&statistics).for_each(|(way, statistics)| way.add(statistics));
        }
    }
    Ok(rounds as usize * prompts.len())
}

fn show(args: &Args, report: &Report) -> Result<()> {
    plot::write(&args.plot, || chart::chart(report))?;
    plot::write(&args.plot_speed, || speeds::chart(report))?;
    args.record.print(report, print)
}

fn generate(
    models: &mut Models,
    settings: &Settings,
    prompt: &[Token],
    max_tokens: u32,
    seed: u64,
) -> Result<Generation> {
    // Without stop tokens, all sequences have the same length: otherwise different amounts of work
    // would be compared.
    let limits = Limits { max_tokens: Some(max_tokens as usize), ..Limits::default() };
    models.decode(prompt, settings, &limits, &mut seeded(seed), &mut |_| true)
}
