//! `polydraft-lab bench solve-time`: the time to find the best rule for a token, by solver.

mod cell;
mod dataset;
pub mod distributions;
mod report;
mod solvers;
mod table;

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use polydraft::{Problem, Proposal, Sampling, acceptance};
use polydraft_cli::args::ModelArgs;
use polydraft_cli::interrupts::InterruptGuard;
use polydraft_cli::output;
use polydraft_cli::prompts::{self, PromptArgs};
use polydraft_cli::usage::UsageError;
use rand::SeedableRng;
use rand_chacha::ChaCha12Rng;

use crate::cut::CutArgs;
use cell::Cell;
pub use cell::RowReport;
pub use dataset::Dataset;
use distributions::Pair;
pub use report::{Report, chart};
use solvers::Attempt;
pub use solvers::Column;

/// Time the solvers of the optimal transport problem: the published table, and `priority`.
///
/// A row (k, n) means n i.i.d. drafts from the draft's k likeliest tokens. The time is from the two
/// distributions to an emitted token: the median at each position, then the mean over positions.
/// Solvers take turns at every position. Before timing, every solver's emitted distribution is
/// enumerated on small problems; every acceptance is compared with the optimum by formula. The time
/// of an interrupted solution is a lower bound.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  polydraft-lab bench solve-time                                  # everything, two to three minutes
  polydraft-lab bench solve-time --rows 10:2,100:2 --budget 1
  polydraft-lab bench solve-time --json --plot solve-time > solve-time.json
Built with --features highs, linear programs are solved by HiGHS, as in the published tables; else \
by microlp.")]
pub struct Args {
    #[command(flatten)]
    models: ModelArgs,
    #[command(flatten)]
    prompts: PromptArgs,
    /// Number of positions of the target's own output.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 20,
        value_parser = clap::value_parser!(u32).range(0..=10_000),
    )]
    positions: u32,
    /// Number of synthetic pairs of distributions over 128,256 tokens.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 20,
        value_parser = clap::value_parser!(u32).range(0..=1_000),
    )]
    synthetic: u32,
    /// Rows as K:N, K tokens (or V for all) and N drafts.
    #[arg(
        long,
        value_name = "K:N,..",
        value_delimiter = ',',
        default_value = "10:2,10:3,10:4,10:5,100:2,100:3,1000:2,V:2,V:4"
    )]
    rows: Vec<Row>,
    /// Time limit in seconds per solver and row. A solver that reaches it gets no further
    /// positions, and a single solution that exceeds it is stopped as soon as possible.
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = budget)]
    budget: f64,
    #[command(flatten)]
    cut: CutArgs,
    /// Seed of the positions, the synthetic distributions and the drafts.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Draw the times: PATH-pair.svg, PATH-synthetic.svg.
    #[arg(long, value_name = "PATH")]
    plot: Option<PathBuf>,
}

/// A row: K likeliest tokens of the draft, or all, and N drafts.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    tokens: Option<usize>,
    drafts: usize,
}

impl FromStr for Row {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "expected K:N such as 100:2 or V:4, with K at least 1 and N from 1 to 64, got \
                 {text:?}"
            )
        };
        let (tokens, drafts) = text.split_once(':').ok_or_else(expected)?;
        let tokens = match tokens {
            "V" | "v" => None,
            _ => Some(tokens.parse().ok().filter(|k| *k > 0).ok_or_else(expected)?),
        };
        let drafts = drafts.parse().ok().filter(|n| (1..=64).contains(n)).ok_or_else(expected)?;
        Ok(Self { tokens, drafts })
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let tokens = self.tokens.map_or("V".to_owned(), |tokens| tokens.to_string());
        f.pad(&format!("({tokens}, {})", self.drafts))
    }
}

fn budget(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if seconds > 0.0 && seconds.is_finite() {
        Ok(seconds)
    } else {
        Err("expected seconds above 0".to_owned())
    }
}

pub fn run(args: Args) -> Result<()> {
    if args.positions + args.synthetic == 0 {
        return Err(UsageError::error("nothing to measure: --positions 0 and --synthetic 0"));
    }
    if let Some(folder) = args.plot.as_ref().and_then(|path| path.parent())
        && !folder.as_os_str().is_empty()
        && !folder.is_dir()
    {
        return Err(UsageError::error(format!("--plot: there is no folder {}", folder.display())));
    }
    let columns = Column::all();
    columns.iter().try_for_each(Column::check)?;

    let cells = (args.positions + args.synthetic) as usize * args.rows.len() * columns.len();
    let style = "{msg} [{bar:30}] {pos}/{len} solutions, {elapsed}";
    let bar = ProgressBar::new(cells as u64).with_style(ProgressStyle::with_template(style)?);
    let mut datasets = Vec::new();
    let orderly = InterruptGuard::install();
    let sampling = args.cut.at(1.0)?;
    let work = Work { rows: args.rows.clone(), budget: args.budget, seed: args.seed, sampling };
    let mut dataset = |name: &str, pairs: Vec<Pair>| -> Result<()> {
        let goes_on = |row: Row, ended: bool| {
            bar.set_message(format!("{name}: {row}"));
            bar.inc(u64::from(!ended));
            !orderly.is_interrupted()
        };
        let rows = measure(&pairs, &work, &columns, &goes_on).with_context(|| name.to_owned())?;
        let vocabulary = pairs.first().map_or(0, |pair| pair.target.len());
        datasets.push(Dataset::new(name, vocabulary, pairs.len(), rows));
        Ok(())
    };
    if args.positions > 0 {
        bar.set_message("running the models");
        let prompts = args.prompts.read()?;
        let mut models = args.models.load(true)?;
        let prompts = prompts::encode(&prompts, &models)?;
        let count = args.positions as usize;
        let pairs = distributions::of_models(
            &mut models.engine,
            &prompts,
            count,
            distributions::TEXT,
            (sampling, args.seed),
        )?;
        dataset("pair", pairs)?;
    }
    if args.synthetic > 0 && !orderly.is_interrupted() {
        dataset("synthetic", distributions::synthetic(args.synthetic as usize, args.seed))?;
    }
    bar.finish_and_clear();
    let interrupted = orderly.is_interrupted();
    let report = Report::new(args.budget, args.seed, datasets);
    if let Some(path) = &args.plot {
        report.plot(path)?;
    }
    if args.json {
        output::json(&report)?
    } else {
        report.print()?
    }
    output::finish(interrupted)
}

/// Limits of a measurement.
pub struct Work {
    pub rows: Vec<Row>,
    /// Time limit in seconds, per solver and row.
    pub budget: f64,
    pub seed: u64,
    /// Sampling settings of target and draft. For the draft, a row's k replaces the top-k.
    pub sampling: Sampling,
}

/// Measures all rows. `goes_on` is called with the row before each solution; when it returns false,
/// the current row is the last one.
///
/// # Errors
/// A solver whose acceptance is not the optimum's.
pub fn measure(
    pairs: &[Pair],
    work: &Work,
    columns: &[Column],
    goes_on: &dyn Fn(Row, bool) -> bool,
) -> Result<Vec<RowReport>> {
    let mut rows = Vec::new();
    for &row in &work.rows {
        let measured = measure_row(row, pairs, work, columns, goes_on);
        rows.push(measured.with_context(|| format!("row {row}"))?);
        if !goes_on(row, true) {
            break;
        }
    }
    Ok(rows)
}

/// Maximum number of attempts of a fast solver at a position; the first one is a warm-up.
const REPEATS: usize = 10;
/// Seconds at a position after which a solver is not repeated.
const ENOUGH: f64 = 0.02;

fn measure_row(
    row: Row,
    pairs: &[Pair],
    work: &Work,
    columns: &[Column],
    goes_on: &dyn Fn(Row, bool) -> bool,
) -> Result<RowReport> {
    let mut cells: Vec<Cell> = columns.iter().map(Cell::new).collect();
    let mut optima = Vec::new();
    let mut rng = ChaCha12Rng::seed_from_u64(work.seed);
    for pair in pairs {
        let target = pair.target(&work.sampling)?;
        let top_k = row.tokens.or(work.sampling.top_k);
        let draft = pair.draft(&Sampling { top_k, ..work.sampling })?;
        let problem = Problem::new(&target, Proposal::iid(&draft, row.drafts)?)?;
        let optimum = acceptance::optimal(&problem)?;
        optima.push(optimum);
        for (column, cell) in columns.iter().zip(&mut cells) {
            goes_on(row, false);
            if cell.spent() >= work.budget || cell.is_closed() {
                continue;
            }
            let mut solver = column.build(work.budget)?;
            let begin = Instant::now();
            let mut attempts = Vec::new();
            while attempts.len() < REPEATS
                && (attempts.is_empty() || begin.elapsed().as_secs_f64() < ENOUGH)
            {
                let mut drafts = Vec::new();
                problem.proposal.draw(&mut rng, &mut drafts);
                let attempt = solver.attempt(problem, &drafts, &mut rng)?;
                let goes_on = !matches!(attempt, Attempt::Unfinished(_) | Attempt::TooLarge(_));
                attempts.push(attempt);
                if !goes_on {
                    break;
                }
            }
            let got = solver.acceptance(problem, &mut rng);
            if let Some(got) = got {
                let off = (got - optimum).abs();
                ensure!(
                    off <= column.tolerance(),
                    "{}: expected the optimum's acceptance {optimum}, got {got}: {off:e} apart",
                    column.name()
                );
            }
            cell.add(attempts, got, optimum);
        }
    }
    Ok(RowReport::new(row.to_string(), row.tokens, row.drafts, &optima, cells))
}
