//! `polydraft-lab bench verifiers`: verifiers compared on the same drafts.

pub mod chart;
mod report;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use polydraft::VerifierKind;
use polydraft::{PolicyKind, Sampling, Token};
use polydraft_cli::args::ModelArgs;
use polydraft_cli::interrupts::{self, InterruptGuard};
use polydraft_cli::output::{self, note};
use polydraft_cli::prompts::{self, PromptArgs};
use polydraft_cli::usage::UsageError;
use polydraft_engine::Engine;
use polydraft_reference::comparison::{Comparison, Part, Sample, exact_for};

use crate::args::{GridArgs, RecordArgs, finish};
use crate::cut::CutArgs;
use crate::observe::{self, Plan, text_seed};
use crate::plot;
pub use chart::show;
#[cfg(test)]
pub use report::compared;
pub use report::{Compared, Origin, Report, Row, Setting, Traced};

/// Verifiers compared by default: all except slow ones.
pub const ALL: &str = "nested-priority,priority-block,greedy-block,traversal,walk:priority,spectr,\
    specinfer,block,token";

/// Compare verifiers on the same drafts, which resolves small differences in a short time.
///
/// At positions of the target's own output, a draft is drawn, and each verifier's expected number
/// of tokens is computed by enumerating its decisions, not by sampling them. Only the sequences and
/// the drafts are random, and they are the same for all verifiers, so the standard error of a
/// difference is much smaller than with separate runs. For path trees, several drafts are
/// subsampled from one draft with more paths, which costs one forward pass of the target; a
/// single-path verifier runs on each path. Standard errors are over other sequences after the same
/// prompts.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  polydraft-lab bench verifiers
  polydraft-lab bench verifiers --paths 2,4 --depths 4,8 --temperatures 0.6,1 --plot verifiers.svg
  polydraft-lab bench verifiers --verifiers nested-priority,traversal,specinfer --paths '' --tree \
  4,2,1 --tree delayed:2,4,2
  polydraft-lab bench verifiers --positions 20000 --save record.json --threads 2")]
pub struct Args {
    #[command(flatten)]
    models: ModelArgs,
    #[command(flatten)]
    prompts: PromptArgs,
    /// Verifiers to compare; differences are to the first. 'invariant' draws its own drafts: use
    /// 'bench decode' for it.
    #[arg(
        long,
        value_name = "NAME,..",
        value_delimiter = ',',
        default_value = ALL,
        value_parser = polydraft_reference::verifier,
    )]
    verifiers: Vec<VerifierKind>,
    #[command(flatten)]
    grid: GridArgs,
    /// Probability mass (top-p) of the likeliest tokens to sample from, for target and draft.
    #[arg(long, value_name = "P,..", default_value = "1", value_delimiter = ',')]
    top_p: Vec<f64>,
    /// Keep only the K likeliest tokens, of target and draft.
    #[arg(long, value_name = "K,..", value_delimiter = ',')]
    top_k: Vec<usize>,
    /// Number of positions to measure, for each tree and sampling setting; at least two sequences
    /// after each prompt.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4000,
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    positions: u32,
    /// Number of drafts at each position, for path trees.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4,
        value_parser = clap::value_parser!(u32).range(1..=64),
    )]
    drafts: u32,
    /// Number of tokens between measured positions: neighbouring positions are correlated, and a
    /// sequence costs one forward pass per token.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 8,
        value_parser = clap::value_parser!(u32).range(1..=4096),
        conflicts_with = "steps_of",
    )]
    every: u32,
    /// Measure at each step of decoding with this verifier, as 'bench decode' does, instead of at
    /// positions of the target's own output.
    #[arg(long, value_name = "NAME", value_parser = polydraft_reference::verifier)]
    steps_of: Option<VerifierKind>,
    /// Number of tokens of each sequence.
    #[arg(
        long,
        short = 'n',
        default_value_t = 128,
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    max_tokens: u32,
    /// Seed of the sequences and the drafts.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
    /// Draw the tokens per call to this .svg file. May be repeated.
    #[arg(long, value_name = "FILE")]
    plot: Vec<PathBuf>,
    /// Show or draw a record that --save or --json has written, instead of measuring.
    #[arg(long, value_name = "FILE", conflicts_with = "save")]
    from: Option<PathBuf>,
    #[command(flatten)]
    record: RecordArgs,
}

impl Setting {
    /// Creates a setting with the verifiers that are exact for the tree, each once. `drafts` drafts
    /// are drawn at each position.
    ///
    /// # Errors
    /// A tree or a verifier whose settings are out of range; a tree that depends on what was
    /// accepted before; none of the verifiers.
    pub fn new(
        tree: PolicyKind,
        sampling: Sampling,
        draft: Sampling,
        drafts: u32,
        verifiers: &[VerifierKind],
    ) -> Result<Self> {
        several(&tree, drafts as usize).0.build()?;
        let form = tree.build()?.form();
        ensure!(
            !chooses(&tree),
            "--tree {tree} depends on what one verifier accepted before: name the trees to \
             compare on"
        );
        ensure!(
            form.distinct() == 0,
            "--tree {tree} draws from several drafts: one is compared on here, several by 'bench \
             paper canonical'"
        );
        let verifiers = exact_for(verifiers, &form)?;
        ensure!(!verifiers.is_empty(), "none of the --verifiers is exact for {tree}");
        let (each, parts, samples) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { sampling, draft, each, tree, verifiers, parts, samples })
    }

    /// Creates a setting in which each verifier runs on its part of the same drafts. For path
    /// trees, `drafts` times as many paths are drawn.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new); a verifier that is not exact for its parts.
    pub fn of_parts(
        tree: PolicyKind,
        sampling: Sampling,
        draft: Sampling,
        drafts: u32,
        verifiers: &[(VerifierKind, Part)],
    ) -> Result<Self> {
        several(&tree, drafts as usize).0.build()?;
        Comparison::of_parts(verifiers, &tree.build()?.form(), 0)?;
        let (verifiers, parts) = verifiers.iter().cloned().unzip();
        let (each, samples) = (Vec::new(), Vec::new());
        Ok(Self { sampling, draft, each, tree, verifiers, parts, samples })
    }

    /// Sets the sampling of each draft, for paths of several drafts.
    pub fn with_each(self, each: Vec<Sampling>) -> Self {
        Self { each, ..self }
    }

    /// Returns the number of positions.
    fn positions(&self) -> usize {
        self.samples.iter().map(|sample| sample.positions).sum()
    }
}

/// Amount of measurement.
#[derive(Debug, Clone)]
pub struct Extent {
    /// Approximate number of positions per setting; at least two sequences after each prompt.
    pub positions: u32,
    /// Number of drafts at each position, for path trees.
    pub drafts: u32,
    /// Number of tokens between positions, unless positions are steps.
    pub every: u32,
    /// Number of tokens of each sequence.
    pub max_tokens: u32,
    pub seed: u64,
    /// Verifier that continues the sequence; the positions are then its steps. `None` samples from
    /// the target.
    pub steps_of: Option<VerifierKind>,
    /// Time limit; the measurement then has fewer positions.
    pub end: Option<Instant>,
}

impl Args {
    fn extent(&self) -> Extent {
        let &Self { positions, drafts, every, max_tokens, seed, .. } = self;
        Extent {
            positions,
            drafts,
            every,
            max_tokens,
            seed,
            steps_of: self.steps_of.clone(),
            end: None,
        }
    }
}

/// Returns all combinations of trees and sampling settings.
fn settings(args: &Args) -> Result<Vec<Setting>> {
    let depths = args.grid.depths(&[4]);
    let mut trees = Vec::new();
    for paths in args.grid.paths(&[4]) {
        trees.extend(depths.iter().map(|&depth| PolicyKind::paths(paths, depth)));
    }
    trees.extend(args.grid.trees.iter().cloned());
    if trees.is_empty() {
        return Err(UsageError::error("no tree to compare on: give --paths or --tree"));
    }
    let mut cuts: Vec<Option<usize>> = args.top_k.iter().copied().map(Some).collect();
    if cuts.is_empty() {
        cuts.push(None);
    }
    let mut settings = Vec::new();
    for &temperature in &args.grid.temperatures {
        for &top_p in &args.top_p {
            for &top_k in &cuts {
                let sampling = CutArgs { top_k, top_p: Some(top_p) }.at(temperature)?;
                for tree in &trees {
                    let setting = Setting::new(
                        tree.clone(),
                        sampling,
                        sampling,
                        args.drafts,
                        &args.verifiers,
                    );
                    settings.push(setting.map_err(UsageError::error)?);
                }
            }
        }
    }
    Ok(settings)
}

/// Whether a tree depends on earlier acceptances.
pub fn chooses(tree: &PolicyKind) -> bool {
    match tree {
        PolicyKind::Auto(_) => true,
        PolicyKind::StopBelow(cut) => chooses(&cut.policy),
        _ => false,
    }
}

pub fn run(args: Args) -> Result<()> {
    plot::check(&args.plot)?;
    if let Some(file) = &args.from {
        let report = super::read_record::<Report>(file, "bench verifiers")?;
        return show(&report, &args.plot, &args.record);
    }
    let mut settings = settings(&args)?;
    let save = args.record.begin()?;
    let prompts = args.prompts.read()?;
    let mut models = args.models.load(true)?;
    let prompts = prompts::encode(&prompts, &models)?;
    let (orderly, extent) = (InterruptGuard::install(), args.extent());
    let least = 2 * by_round(&extent, prompts.len(), &settings);
    if least > u64::from(extent.positions) {
        note(format_args!(
            "note: about {least} positions, not {}: two sequences after each of {} prompts are the \
             least",
            extent.positions,
            prompts.len()
        ));
    }
    let outputs =
        rounds(&extent, prompts.len(), &settings) * (prompts.len() * settings.len()) as u64;
    let bar = ProgressBar::new(outputs)
        .with_style(ProgressStyle::with_template("[{bar:30}] {pos}/{len} sequences, {eta} left")?);
    let interrupted = !measure(&extent, &mut models.engine, &prompts, &mut settings, &|| {
        bar.inc(1);
        !orderly.is_interrupted()
    })?;
    bar.finish_and_clear();
    // Without an interruption, every setting has samples.
    if settings.iter().any(|setting| setting.samples.is_empty()) {
        note("interrupted: no sequence was measured with every tree");
        return Err(output::ExitCode::error(interrupts::EXIT_CODE));
    }
    let origin = Origin {
        prompts: prompts.len(),
        max_tokens: args.max_tokens,
        every: args.steps_of.is_none().then_some(args.every),
        seed: args.seed,
        steps_of: args.steps_of.as_ref().map(ToString::to_string),
        replayed: None,
    };
    let report = Report::new(origin, interrupted, &settings);
    finish(save, &report)?;
    show(&report, &args.plot, &args.record)?;
    output::finish(interrupted)
}

/// Returns the maximum number of rounds over all prompts.
fn rounds(extent: &Extent, prompts: usize, settings: &[Setting]) -> u64 {
    u64::from(extent.positions).div_ceil(by_round(extent, prompts, settings)).max(LEAST_ROUNDS)
}

/// Minimum number of rounds: two sequences after each prompt, for the variance between sequences.
const LEAST_ROUNDS: u64 = 2;

/// Returns the approximate number of positions per round. For steps it is a lower bound, because a
/// step emits at most a path and one token.
fn by_round(extent: &Extent, prompts: usize, settings: &[Setting]) -> u64 {
    let depth = |setting: &Setting| setting.tree.build().map_or(0, |policy| policy.depth());
    let every = match extent.steps_of {
        Some(_) => settings.iter().map(depth).max().unwrap_or(0) as u32 + 1,
        None => extent.every,
    };
    (prompts as u64 * u64::from(extent.max_tokens / every.min(extent.max_tokens))).max(1)
}

/// Measures all settings on each sequence, until there are enough positions or the time limit is
/// reached. Returns false if `goes_on`, called after each setting of a sequence, returned false.
///
/// # Errors
/// Errors of the models and the verifiers; prompts that leave no space for output.
pub fn measure(
    extent: &Extent,
    engine: &mut Engine,
    prompts: &[Vec<Token>],
    settings: &mut [Setting],
    goes_on: &dyn Fn() -> bool,
) -> Result<bool> {
    ensure!(!prompts.is_empty(), "no prompts");
    for round in 0..rounds(extent, prompts.len(), settings) {
        if round >= LEAST_ROUNDS
            && settings.iter().all(|setting| setting.positions() >= extent.positions as usize)
        {
            break;
        }
        for (number, prompt) in prompts.iter().enumerate() {
            let seed = text_seed(extent.seed, round, number);
            let mut samples: Vec<Option<Sample>> = Vec::new();
            let mut text: Option<(Sampling, Vec<Token>)> = None;
            for (index, setting) in settings.iter().enumerate() {
                // All trees use the same sequence, decoded with the first tree of a sampling
                // setting.
                let known = text.take().filter(|(sampling, _)| *sampling == setting.sampling);
                let follow = known
                    .filter(|_| extent.steps_of.is_none())
                    .map_or(Vec::new(), |(_, tokens)| tokens);
                let (comparison, tokens) =
                    one(extent, engine, prompt, setting, follow, seed, index)?;
                samples.push(comparison.sample(number));
                text = Some((setting.sampling, tokens));
                if !goes_on() {
                    return Ok(false);
                }
            }
            // A sequence counts for all settings or for none, because they are compared.
            let samples: Option<Vec<Sample>> = samples.into_iter().collect();
            for (setting, sample) in settings.iter_mut().zip(samples.into_iter().flatten()) {
                setting.samples.push(sample);
            }
            if extent.end.is_some_and(|end| Instant::now() >= end) {
                return Ok(true);
            }
        }
    }
    if let Some(Setting { tree, .. }) = settings.iter().find(|setting| setting.samples.is_empty()) {
        bail!(
            "no position to measure at: all prompts leave no room for output and a tree {tree}, or \
             their output ends at once"
        );
    }
    Ok(true)
}

/// Returns the tree to draw for `drafts` drafts of `tree`, and the number of paths per draft.
fn several(tree: &PolicyKind, drafts: usize) -> (PolicyKind, Option<usize>) {
    match tree {
        PolicyKind::Paths(one) if drafts > 1 => {
            (PolicyKind::paths(one.paths * drafts, one.depth), Some(one.paths))
        }
        _ => (tree.clone(), None),
    }
}

/// Measures one sequence, and returns its tokens. If `follow` is given, it is that sequence.
fn one(
    extent: &Extent,
    engine: &mut Engine,
    prompt: &[Token],
    setting: &Setting,
    follow: Vec<Token>,
    seed: u64,
    index: usize,
) -> Result<(Comparison, Vec<Token>)> {
    let (tree, paths) = several(&setting.tree, extent.drafts as usize);
    let form = setting.tree.build()?.form();
    let comparison = if setting.parts.is_empty() {
        Comparison::new(&setting.verifiers, &form, paths, seed)?
    } else {
        let own = setting.verifiers.iter().cloned().zip(setting.parts.iter().copied());
        Comparison::of_parts(&own.collect::<Vec<_>>(), &form, seed)?
    };
    let plan = Plan {
        sampling: setting.sampling,
        draft_sampling: setting.draft,
        each: &setting.each,
        tree: &tree,
        max_tokens: extent.max_tokens as usize,
        every: extent.every as usize,
        steps_of: extent.steps_of.as_ref(),
        paths,
    };
    let rng = seed.wrapping_add(index as u64 * 0x1000_0000_0000);
    observe::text(engine, prompt, &plan, (seed, rng), follow, comparison, &|| true)
}
