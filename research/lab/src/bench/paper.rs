//! `polydraft-lab bench paper`: the papers' tables, reproduced.

mod bound;
mod canonical;
mod decay;
mod delayed;
mod failures;
mod gbv;
mod global_resolution;
mod lab;
mod latency;
mod order;
mod orders;
mod ranks;
mod simple;
mod spechub;
mod spectr;
mod table;
mod theirs;
mod toy;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use polydraft_cli::args::ModelArgs;
use polydraft_cli::interrupts;
use polydraft_cli::output::{self, ExitCode, note};
use polydraft_cli::prompts::PromptArgs;
use polydraft_cli::provenance::MadeBy;
use serde::{Deserialize, Serialize};

use crate::args::{RecordArgs, finish};
use crate::cut::CutArgs;
use crate::plot::{self, Drawing};
use lab::Lab;
pub use order::Order;
pub use table::{Entry, Table, letter};
pub use theirs::Source;

/// Reproduce a paper's tables on other models, with the paper's figures beside them.
///
/// The paper's values are of its authors' models and prompts: compare orders and ratios. Ours are
/// expected tokens per call, measured as by 'bench verifiers', and acceptance rates by formula. All
/// rows and columns of one sampling setting use the same positions of the target's own output.
/// Paths of one depth are subsampled from the same drafts; other trees and drafting schemes have
/// separate drafts at the same positions. Errors are standard errors over sequences; errors of
/// differences are over differences on the same sequence. A list below each table shows which
/// orders of the paper's values are reproduced, at two standard errors. Sampling settings are the
/// paper's unless given. Each table has a share of the time; a table that was not started is
/// omitted.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  polydraft-lab bench paper spectr --quick
  polydraft-lab bench paper gbv --save gbv.json --plot gbv
  polydraft-lab bench paper canonical --target DIR --draft DIR --prompts questions.jsonl --seconds \
  600")]
pub struct Args {
    /// The paper.
    #[arg(value_name = "NAME", required_unless_present = "from")]
    paper: Option<Paper>,
    #[command(flatten)]
    models: ModelArgs,
    #[command(flatten)]
    prompts: PromptArgs,
    /// Sampling settings that replace those of the paper.
    #[command(flatten)]
    cut: CutArgs,
    /// The main rows only, in about a minute.
    #[arg(long)]
    quick: bool,
    /// Approximate number of seconds to measure [default: 840, with --quick 45]; each setting gets
    /// at least one sequence.
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: Option<u64>,
    /// Seed of the sequences and the drafts.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
    /// Draw the tables: PATH-TABLE.svg.
    #[arg(long, value_name = "PATH")]
    plot: Option<PathBuf>,
    /// Show or draw a record that --save or --json has written, instead of measuring.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["paper", "save"])]
    from: Option<PathBuf>,
    #[command(flatten)]
    record: RecordArgs,
}

/// The paper whose tables are reproduced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Paper {
    /// Sun et al. 2023: block efficiency of walks with K-SEQ by numbers of paths and depths; passes
    /// over several sequences; distributions with formulas.
    Spectr,
    /// Sun et al. 2024: acceptance of the first and the second draft; binary, ternary and Sequoia
    /// trees.
    Spechub,
    /// Khisti et al. 2025: importance-weighted selection by drafts, truncation, alphabet and draft
    /// temperatures.
    Canonical,
    /// Thomas and Pal 2025: time and success of solvers, acceptance within a time, the walk.
    GlobalResolution,
    /// Thomas and Pal 2026: greedy multi-path block verification by paths, depths and temperatures,
    /// and its distance from the bound.
    Gbv,
    /// Thomas et al. 2026: one path first, then several, under all verifiers.
    Delayed,
}

impl Paper {
    fn name(self) -> String {
        self.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
    }

    fn measure(self, lab: &mut Lab) -> Result<()> {
        match self {
            Self::Spectr => spectr::measure(lab),
            Self::Spechub => spechub::measure(lab),
            Self::Canonical => canonical::measure(lab),
            Self::GlobalResolution => global_resolution::measure(lab),
            Self::Gbv => gbv::measure(lab),
            Self::Delayed => delayed::measure(lab),
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    #[serde(flatten)]
    made_by: MadeBy,
    pub paper: Paper,
    pub target: String,
    pub draft: String,
    pub prompts: usize,
    quick: bool,
    seed: u64,
    /// Sampling settings, if they differ from those of the paper.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    top_k: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    top_p: Option<f64>,
    /// Whether the user interrupted before all tables were measured.
    interrupted: bool,
    pub tables: Vec<Table>,
}

/// Default time limit in seconds.
const SECONDS: u64 = 840;
const QUICK: u64 = 45;

pub fn run(args: Args) -> Result<()> {
    let folder = args.plot.as_ref().map(|path| path.with_extension("svg"));
    plot::check(folder.as_slice())?;
    if let Some(file) = &args.from {
        return show(&args, &super::read_record(file, "bench paper")?);
    }
    let Some(paper) = args.paper else { unreachable!("clap requires one") };
    let save = args.record.begin()?;
    let seconds = args.seconds.unwrap_or(if args.quick { QUICK } else { SECONDS });
    let time = Duration::from_secs(seconds);
    args.cut.at(1.0)?;
    let (extent, how) = ((args.quick, time), (args.seed, args.cut));
    let mut lab = Lab::new(&args.models, &args.prompts, extent, how)?;
    paper.measure(&mut lab)?;
    let done = lab.finish(&paper.name())?;
    if done.tables.is_empty() {
        note("interrupted: no table was measured");
        return Err(ExitCode::error(interrupts::EXIT_CODE));
    }
    let report = Report {
        made_by: MadeBy::current(),
        paper,
        target: done.target,
        draft: done.draft,
        prompts: done.prompts,
        quick: args.quick,
        seed: args.seed,
        top_k: args.cut.top_k,
        top_p: args.cut.top_p,
        interrupted: done.interrupted,
        tables: done.tables,
    };
    finish(save, &report)?;
    show(&args, &report)?;
    output::finish(report.interrupted)
}

fn show(args: &Args, report: &Report) -> Result<()> {
    if let Some(path) = &args.plot {
        for table in &report.tables {
            let mut name = path.as_os_str().to_owned();
            name.push(format!("-{}.svg", table.name));
            table.chart().write(name.as_ref())?;
            note(format_args!("wrote {}", PathBuf::from(name).display()));
        }
    }
    args.record.print(report, table::print)
}
