//! `polydraft bench verifiers`: verifiers compared on the same drafts.

mod chart;
mod expected;
mod hands;
mod measure;
mod report;

use std::path::PathBuf;

use anyhow::{Result, anyhow, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use polydraft::{PolicyKind, Sampling, Token};
use polydraft_engine::{Limits, NoText, Request};
use polydraft_reference::VerifierKind;

use crate::interrupts::{self, Orderly};
use crate::models::{ModelArgs, Models};
use crate::output::{self, Usage, note};
use crate::plot;
use crate::save::Save;
use crate::{prompts, texts};
use expected::Subject;
use measure::{Measure, Shared, Sometimes};
use report::{Report, Sample, print};

/// Compare verifiers on the same drafts, and tell small differences in a short time.
///
/// At positions of the target's own text a draft is drawn, and each verifier's expected number of tokens for it is
/// computed from the code that emits: its decisions are enumerated, not drawn. What is left to chance are the texts and
/// the drafts, which are the same for all of them, so the standard error of a difference is a fraction of that of two
/// runs. Where the tree is a number of paths, several drafts of them are dealt from one with more, which cost one pass of
/// the target together; a verifier of one path is given each path in turn. Errors are those of other texts behind the
/// same prompts.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  polydraft bench verifiers
  polydraft bench verifiers --paths 2,4 --depths 4,8 --temperatures 0.6,1 --plot verifiers.svg
  polydraft bench verifiers --verifiers nested-priority,traversal,specinfer --paths '' --tree 4,2,1 --tree delayed:2,4,2
  polydraft bench verifiers --positions 20000 --save record.json --threads 2")]
pub struct Args {
    #[command(flatten)]
    models: ModelArgs,
    /// Prompts, as for 'bench decode' [default: the project's own, Rust code for the demo pair].
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Verifiers to compare; differences are to the first.
    #[arg(
        long,
        value_name = "NAME,..",
        value_delimiter = ',',
        default_value = "nested-priority,priority-block,greedy-block,traversal,walk:priority,spectr,specinfer,block,token"
    )]
    verifiers: Vec<VerifierKind>,
    /// Numbers of paths.
    #[arg(long, short = 'k', value_name = "K,..", default_value = "4", value_delimiter = ',', value_parser = number)]
    paths: Vec<Option<usize>>,
    /// Depths of the paths.
    #[arg(long, short = 'd', value_name = "L,..", default_value = "4", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=256))]
    depths: Vec<u32>,
    /// Another tree, as for 'generate --tree'; with the verifiers that are exact for it. May be repeated. An empty --paths
    /// leaves only these.
    #[arg(long = "tree", value_name = "TREE")]
    trees: Vec<PolicyKind>,
    /// Temperatures, for target and draft.
    #[arg(
        long,
        short = 't',
        value_name = "T,..",
        default_value = "1",
        value_delimiter = ',',
        allow_negative_numbers = true
    )]
    temperatures: Vec<f64>,
    /// Probabilities to keep the likeliest tokens up to, for target and draft.
    #[arg(
        long,
        value_name = "P,..",
        default_value = "1",
        value_delimiter = ',',
        allow_negative_numbers = true
    )]
    top_p: Vec<f64>,
    /// Positions to measure at, for each tree and each kind of sampling; at least two texts behind each prompt.
    #[arg(long, value_name = "N", default_value_t = 4000, value_parser = clap::value_parser!(u32).range(1..))]
    positions: u32,
    /// Drafts at each position, where the tree is a number of paths.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    drafts: u32,
    /// Measure at every so many tokens of a text.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=4096))]
    every: u32,
    /// Tokens of each text.
    #[arg(long, short = 'n', default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// Seed of the texts and the drafts.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
    /// Write the record to this file as JSON.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Draw the tokens per call to this file, .svg or .png. May be repeated.
    #[arg(long, value_name = "FILE")]
    plot: Vec<PathBuf>,
    /// Measure nothing: show or draw a record that --save or --json wrote before.
    #[arg(long, value_name = "FILE", conflicts_with = "save")]
    from: Option<PathBuf>,
    /// Print one JSON object instead of a table; it has the differences of all pairs of verifiers.
    #[arg(long)]
    json: bool,
}

fn number(text: &str) -> Result<Option<usize>, String> {
    match text.parse() {
        _ if text.is_empty() => Ok(None),
        Ok(count @ 1..=1024) => Ok(Some(count)),
        _ => Err("expected a number from 1 to 1024".to_owned()),
    }
}

/// A tree, a way to sample, and the verifiers that are compared on it.
pub struct Setting {
    pub sampling: Sampling,
    pub tree: PolicyKind,
    pub verifiers: Vec<VerifierKind>,
    pub samples: Vec<Sample>,
}

impl Setting {
    fn subjects(&self) -> Result<Vec<Subject>> {
        let form = self.tree.build()?.form();
        let subject =
            |kind| Subject::new(kind, &form)?.ok_or_else(|| anyhow!("{kind} does not take {}", self.tree));
        self.verifiers.iter().map(subject).collect()
    }
}

/// All trees at all ways to sample.
fn settings(args: &Args) -> Result<Vec<Setting>> {
    let depths = || args.depths.iter().map(|&depth| depth as usize);
    let paths = args.paths.iter().flatten();
    let mut trees: Vec<PolicyKind> =
        paths.flat_map(|&paths| depths().map(move |depth| PolicyKind::paths(paths, depth))).collect();
    trees.extend(args.trees.iter().cloned());
    if trees.is_empty() {
        return Err(Usage::error("no tree to compare on: give --paths or --tree"));
    }
    let mut settings = Vec::new();
    for &temperature in &args.temperatures {
        for &top_p in &args.top_p {
            let sampling = Sampling { temperature, top_p, ..Sampling::default() };
            sampling.validate().map_err(Usage::error)?;
            for tree in &trees {
                several(tree, args.drafts as usize).0.build().map_err(Usage::error)?;
                let form = tree.build().map_err(Usage::error)?.form();
                if chooses(tree) {
                    return Err(Usage::error(format_args!(
                        "--tree {tree} goes by what one verifier accepted before: name the trees to compare on"
                    )));
                }
                let mut verifiers = Vec::new();
                for kind in &args.verifiers {
                    if Subject::new(kind, &form).map_err(Usage::error)?.is_some() && !verifiers.contains(kind)
                    {
                        verifiers.push(kind.clone());
                    }
                }
                if verifiers.is_empty() {
                    return Err(Usage::error(format_args!("none of the --verifiers is exact for {tree}")));
                }
                settings.push(Setting { sampling, tree: tree.clone(), verifiers, samples: Vec::new() });
            }
        }
    }
    Ok(settings)
}

/// Whether a tree depends on what was accepted before.
fn chooses(tree: &PolicyKind) -> bool {
    match tree {
        PolicyKind::Auto(_) => true,
        PolicyKind::StopBelow(cut) => chooses(&cut.of),
        _ => false,
    }
}

pub fn run(args: Args) -> Result<()> {
    plot::check(&args.plot)?;
    if let Some(file) = &args.from {
        return show(&args, &super::read_record(file, "bench verifiers")?);
    }
    let mut settings = settings(&args)?;
    let save = args.save.as_deref().map(Save::begin).transpose()?;
    let prompts = prompts::read(args.prompts.as_deref())?;
    let mut models = args.models.load(true)?;
    let prompts = prompts::encode(&prompts, &models)?;
    let interrupted = measure(&args, &mut models, &prompts, &mut settings)?;
    if settings.iter().any(|setting| setting.samples.is_empty()) {
        note("interrupted: no text was measured with every tree");
        return Err(output::Verdict::error(interrupts::EXIT_CODE));
    }
    let report = Report::new(&args, prompts.len(), interrupted, &settings);
    if let Some(save) = save {
        save.finish((serde_json::to_string_pretty(&report)? + "\n").as_bytes())?;
    }
    show(&args, &report)?;
    output::done(interrupted)
}

fn show(args: &Args, report: &Report) -> Result<()> {
    plot::write(&args.plot, || chart::chart(report))?;
    if args.json { output::json(report) } else { print(report) }
}

/// Measures text by text, with every setting on each, until there are positions enough; whether the user ended it.
fn measure(
    args: &Args,
    models: &mut Models,
    prompts: &[Vec<Token>],
    settings: &mut [Setting],
) -> Result<bool> {
    ensure!(!prompts.is_empty(), "no prompts");
    let every = args.every.min(args.max_tokens);
    let by_round = prompts.len() as u64 * u64::from(args.max_tokens / every);
    let rounds = u64::from(args.positions).div_ceil(by_round).max(2);
    let bar = ProgressBar::new(rounds * (prompts.len() * settings.len()) as u64)
        .with_style(ProgressStyle::with_template("[{bar:30}] {pos}/{len} texts, {eta} left")?);
    let orderly = Orderly::begin();
    for round in 0..rounds {
        for (number, prompt) in prompts.iter().enumerate() {
            let seed = args.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (round << 32 | number as u64);
            let mut samples: Vec<Sample> = Vec::new();
            let mut text: Option<(Sampling, Vec<Token>)> = None;
            for (index, setting) in settings.iter().enumerate() {
                if orderly.asked() {
                    bar.finish_and_clear();
                    return Ok(true);
                }
                // The same text for all trees: the first of a way to sample decodes it.
                let known = text.take().filter(|(sampling, _)| *sampling == setting.sampling);
                let follow = known.map_or(Vec::new(), |(_, tokens)| tokens);
                let (sample, tokens) = one(args, models, prompt, setting, follow, seed, index)?;
                samples.push(Sample { prompt: number, ..sample });
                text = Some((setting.sampling, tokens));
                bar.inc(1);
            }
            for (setting, sample) in settings.iter_mut().zip(samples) {
                setting.samples.extend(Some(sample).filter(|sample| sample.positions > 0));
            }
        }
    }
    bar.finish_and_clear();
    Ok(false)
}

/// The tree to draw for so many drafts of `tree`, and the paths that each of them gets.
fn several(tree: &PolicyKind, drafts: usize) -> (PolicyKind, Option<usize>) {
    match tree {
        PolicyKind::Paths(one) if drafts > 1 => {
            (PolicyKind::paths(one.paths * drafts, one.depth), Some(one.paths))
        }
        _ => (tree.clone(), None),
    }
}

/// Measures one text, which is `follow` if there is one; also its tokens.
fn one(
    args: &Args,
    models: &mut Models,
    prompt: &[Token],
    setting: &Setting,
    follow: Vec<Token>,
    seed: u64,
    index: usize,
) -> Result<(Sample, Vec<Token>)> {
    let (tree, paths) = several(&setting.tree, args.drafts as usize);
    let policy = tree.build()?;
    // Trees of full depth everywhere.
    let room = models.engine.facts().context.saturating_sub(prompt.len() + policy.depth() + 1);
    let length = room.min(args.max_tokens as usize);
    let every = args.every.min(args.max_tokens) as usize;
    let first = (seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % every;
    let limits = Limits { max_tokens: Some(length + policy.depth() + 1), ..Limits::default() };
    let shared = Shared::following(follow);
    let speculation = polydraft_engine::Speculation {
        verifier: Box::new(Measure {
            subjects: setting.subjects()?,
            paths,
            random: texts::random(seed),
            shared: shared.clone(),
        }),
        policy: Box::new(Sometimes { policy, first, every, emitted: 0 }),
        sampling: setting.sampling,
    };
    let request = Request {
        prompt: prompt.to_vec(),
        sampling: setting.sampling,
        speculation: Some(speculation),
        limits,
        text: Box::new(NoText),
        chance: Box::new(texts::random(seed.wrapping_add(index as u64 * 0x1000_0000_0000))),
    };
    let mut session = models.engine.open(request)?;
    let mut failed = Ok(());
    while failed.is_ok() && !session.is_done() && session.tokens().len() < length {
        failed = models.engine.step(&mut [&mut session]);
    }
    let generation = models.engine.close(session);
    failed?;
    let notes = shared.notes();
    let sample = Sample {
        prompt: 0,
        positions: notes.positions,
        drafts: notes.drafts,
        nodes: notes.nodes,
        tokens: notes.tokens.iter().map(|sum| sum / notes.positions as f64).collect(),
    };
    drop(notes);
    Ok((sample, generation?.tokens))
}
