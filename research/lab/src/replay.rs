//! `polydraft-lab replay`: verifiers compared on recorded distributions.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use polydraft::PolicyKind;
use polydraft::VerifierKind;
use polydraft_cli::interrupts::{self, InterruptGuard};
use polydraft_cli::output::{self, note};
use polydraft_cli::usage::UsageError;
use polydraft_reference::comparison::Sample;
use polydraft_reference::trace::{Error, Header, Replay, Trace, in_rounds, replay};
use rayon::prelude::*;

use crate::args::{RecordArgs, finish};
use crate::bench::verifiers::{ALL, Origin, Report, Setting, Traced, show};
use crate::plot;

/// Compare verifiers on traces recorded by 'polydraft-lab trace', on all cores and without models.
///
/// The measurement is that of 'bench verifiers', and the results on the same drafts are equal:
/// bitwise, if distributions were stored exactly. Trees are the recorded tree and trees that are
/// part of it: from K paths of L tokens, drafts with fewer or shorter paths are subsampled. Every
/// file is checked before use.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  polydraft-lab replay traces/demo
  polydraft-lab replay traces/demo --tree paths:2,4 --tree paths:4,4 --plot verifiers.svg
  polydraft-lab replay traces/demo --verifiers nested-priority,walk:max-flow --tree \
  stop-below:0.3,paths:4,4
  polydraft-lab replay traces/demo/prompt-000003.safetensors.gz --json")]
pub struct Args {
    /// Traces, or single files of a trace; all recorded with the same models and settings.
    #[arg(value_name = "TRACE", required = true)]
    traces: Vec<PathBuf>,
    /// Verifiers to compare; differences are to the first.
    #[arg(
        long,
        value_name = "NAME,..",
        value_delimiter = ',',
        default_value = ALL,
        value_parser = polydraft_reference::verifier,
    )]
    verifiers: Vec<VerifierKind>,
    /// Tree to compare on, with the verifiers that are exact for it [default: the recorded tree].
    /// May be repeated.
    #[arg(long = "tree", value_name = "TREE")]
    trees: Vec<PolicyKind>,
    /// Threads to compute with [default: one per core].
    // Applied in threads.rs, before any thread starts.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Draw the tokens per call to this .svg file. May be repeated.
    #[arg(long, value_name = "FILE")]
    plot: Vec<PathBuf>,
    #[command(flatten)]
    record: RecordArgs,
}

pub fn run(args: Args) -> Result<()> {
    plot::check(&args.plot)?;
    let traces = Trace::open_all(&args.traces)?;
    let header = traces[0].header().clone();
    let files: Vec<(&Trace, usize)> =
        traces.iter().flat_map(|trace| (0..trace.len()).map(move |shard| (trace, shard))).collect();
    ensure!(!files.is_empty(), "{}: nothing was recorded there", args.traces[0].display());
    let trees = if args.trees.is_empty() { vec![header.tree.clone()] } else { args.trees.clone() };
    let replays: Vec<Replay> = trees
        .iter()
        .map(|tree| Replay::new(&header.tree, tree, &args.verifiers).map_err(UsageError::error))
        .collect::<Result<_>>()?;
    let save = args.record.begin()?;

    let bar = ProgressBar::new(files.len() as u64)
        .with_style(ProgressStyle::with_template("[{bar:30}] {pos}/{len} prompts, {eta} left")?);
    let orderly = InterruptGuard::install();
    // Stop at the first error, because the other files may have it too.
    let failed = AtomicBool::new(false);
    let one =
        |(prompt, (trace, shard)): (usize, &(&Trace, usize))| -> Option<Result<Replayed, Error>> {
            if orderly.is_interrupted() || failed.load(Ordering::Relaxed) {
                return None;
            }
            let read = trace.shard(*shard).and_then(|shard| {
                let samples = replay(&shard, &replays, prompt)?;
                Ok(Replayed { left_out: shard.left_out(), samples })
            });
            failed.fetch_or(read.is_err(), Ordering::Relaxed);
            bar.inc(1);
            Some(read)
        };
    let shards: Vec<_> = files.par_iter().enumerate().filter_map(one).collect();
    bar.finish_and_clear();
    let shards = shards.into_iter().collect::<Result<Vec<_>, _>>()?;
    let interrupted = shards.len() < files.len();
    let setting = |(index, replay): (usize, &Replay)| {
        let prompts: Vec<_> = shards.iter().map(|shard| shard.samples[index].clone()).collect();
        Setting {
            sampling: header.sampling,
            draft: header.draft_sampling,
            each: Vec::new(),
            tree: replay.tree().clone(),
            verifiers: replay.verifiers().to_vec(),
            parts: Vec::new(),
            samples: in_rounds(&prompts),
        }
    };
    let settings: Vec<Setting> = replays.iter().enumerate().map(setting).collect();
    if settings.iter().any(|setting| setting.samples.is_empty()) {
        note("interrupted: no sequence was replayed");
        return Err(output::ExitCode::error(interrupts::EXIT_CODE));
    }
    let left_out = shards.iter().map(|shard| shard.left_out).fold(0.0, f64::max);
    let report =
        Report::new(origin(&args, &header, shards.len(), left_out), interrupted, &settings);
    finish(save, &report)?;
    show(&report, &args.plot, &args.record)?;
    output::finish(interrupted)
}

/// Results of one prompt.
struct Replayed {
    left_out: f64,
    /// By tree and sequence.
    samples: Vec<Vec<Option<Sample>>>,
}

fn origin(args: &Args, header: &Header, prompts: usize, left_out: f64) -> Origin {
    Origin {
        prompts,
        max_tokens: header.max_tokens,
        every: Some(header.every),
        seed: header.seed,
        steps_of: None,
        replayed: Some(Traced {
            traces: args.traces.iter().map(|path| path.display().to_string()).collect(),
            target: header.target.clone(),
            draft: header.draft.clone(),
            tree: header.tree.to_string(),
            mass: header.mass,
            left_out,
        }),
    }
}
