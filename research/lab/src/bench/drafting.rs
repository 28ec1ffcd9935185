//! `polydraft-lab bench drafting`: the largest acceptance of each drafting scheme at one node.

use anyhow::{Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use polydraft::drafting::{Drafting, Draws, draws_for_distinct, expected_distinct};
use polydraft::gumbel::{self, SharedRandomness};
use polydraft::{Distribution, Problem, Proposal, RandomSource, acceptance};
use polydraft_cli::args::ModelArgs;
use polydraft_cli::interrupts::{self, InterruptGuard};
use polydraft_cli::output::{self, ExitCode, note};
use polydraft_cli::prompts::{self, PromptArgs};
use polydraft_cli::provenance::MadeBy;
use polydraft_runtime::{SeededRng, seeded};
use serde::Serialize;

use super::solve_time::distributions;
use crate::cut::CutArgs;

/// Compare drafting schemes at one node, by the largest acceptance that any rule can reach with
/// each.
///
/// Measured at positions of the target's own output, from both models' distributions. Two numbers
/// of i.i.d. draws are compared: n, and the number that gives n distinct tokens on average, which
/// needs no more nodes in a tree than n draws without replacement. 'Gumbel' is the acceptance of
/// verifier invariant (Gumbel coupling by shared randomness), by simulation.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  polydraft-lab bench drafting
  polydraft-lab bench drafting --counts 2,3,4,8 --temperature 0.6 --draft-temperature 0.3 \
  --positions 500")]
pub struct Args {
    #[command(flatten)]
    models: ModelArgs,
    #[command(flatten)]
    prompts: PromptArgs,
    /// Number of positions.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 300,
        value_parser = clap::value_parser!(u32).range(2..=100_000),
    )]
    positions: u32,
    /// Numbers of distinct drafts.
    #[arg(
        long,
        value_name = "N,..",
        default_value = "2,3,4",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=64),
    )]
    counts: Vec<u32>,
    /// Temperature of the target.
    #[arg(long, short = 't', value_name = "T", default_value_t = 1.0)]
    temperature: f64,
    /// Temperature of the draft [default: the target's].
    #[arg(long, value_name = "T")]
    draft_temperature: Option<f64>,
    #[command(flatten)]
    cut: CutArgs,
    /// Seed of the positions.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Means over positions for one number of drafts, except `draws`.
#[derive(Serialize)]
struct Row {
    count: usize,
    iid: f64,
    distinct_of_iid: f64,
    /// Largest acceptance with as many i.i.d. draws as give `count` distinct tokens on average, and
    /// the median of that number of draws.
    iid_as_distinct: f64,
    draws: f64,
    without_replacement: f64,
    greedy: f64,
    top: f64,
    race: f64,
    /// `iid_as_distinct` minus `without_replacement`: mean, standard error, minimum and maximum.
    difference: f64,
    error: f64,
    least: f64,
    most: f64,
    /// Fractions of positions at which one of the two exceeds the other by more than 1e-6.
    iid_ahead: f64,
    without_ahead: f64,
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    made_by: MadeBy,
    temperature: f64,
    draft_temperature: f64,
    top_k: Option<usize>,
    top_p: f64,
    positions: usize,
    rows: Vec<Row>,
    /// Whether it was interrupted before all positions were evaluated.
    interrupted: bool,
}

/// Maximum number of i.i.d. draws.
const MOST_DRAWS: usize = 1 << 20;
/// Number of samples of the shared randomness per position.
const RACES: usize = 256;

/// Measures and prints the result.
pub fn run(args: Args) -> Result<()> {
    let target = args.cut.at(args.temperature)?;
    let draft = args.cut.at(args.draft_temperature.unwrap_or(args.temperature))?;
    let prompts = args.prompts.read()?;
    let mut models = args.models.load(true)?;
    let prompts = prompts::encode(&prompts, &models)?;
    let mut counts: Vec<Count> =
        args.counts.iter().map(|&count| Count::new(count as usize, args.seed)).collect();
    let all = args.positions as usize;
    let bar = ProgressBar::new(all as u64)
        .with_style(ProgressStyle::with_template("[{bar:30}] {pos}/{len} positions, {eta} left")?);
    let orderly = InterruptGuard::install();
    let mut look = |pair: distributions::Pair| {
        let (target, draft) = (pair.target(&target)?, pair.draft(&draft)?);
        counts.iter_mut().try_for_each(|count| count.look(&target, &draft))?;
        bar.inc(1);
        Ok(!orderly.is_interrupted())
    };
    distributions::show_of_models(
        &mut models.engine,
        &prompts,
        all,
        distributions::TEXT,
        (target, args.seed),
        &mut look,
    )?;
    drop(orderly);
    let positions = bar.position() as usize;
    bar.finish_and_clear();
    if positions < 2 {
        note("interrupted: fewer than two positions were measured");
        return Err(ExitCode::error(interrupts::EXIT_CODE));
    }
    let report = Report {
        made_by: MadeBy::current(),
        temperature: target.temperature,
        draft_temperature: draft.temperature,
        top_k: target.top_k,
        top_p: target.top_p,
        positions,
        rows: counts.iter().map(Count::row).collect(),
        interrupted: positions < all,
    };
    if args.json {
        output::json(&report)?;
    } else {
        print(&report)?;
    }
    output::finish(report.interrupted)
}

/// Results for one number of drafts at the positions so far.
struct Count {
    count: usize,
    /// By position: the results of [`look`](Self::look).
    columns: [Vec<f64>; 8],
    rng: SeededRng,
    shared_randomness: Box<dyn SharedRandomness>,
}

impl Count {
    fn new(count: usize, seed: u64) -> Self {
        let mut rng = seeded(seed);
        Self {
            count,
            columns: Default::default(),
            shared_randomness: gumbel::shared_randomness(&mut rng),
            rng,
        }
    }

    fn look(&mut self, target: &Distribution, draft: &Distribution) -> Result<()> {
        let (count, position) = (self.count, self.columns[0].len());
        let optimal = |scheme| {
            let proposal = Proposal::new(Draws { scheme, count }, std::slice::from_ref(draft))?;
            acceptance::optimal(&Problem::new(target, proposal)?)
        };
        let draws = draws_for_distinct(draft, count as f64, MOST_DRAWS);
        let values = [
            optimal(Drafting::Iid)?,
            expected_distinct(draft, count),
            acceptance::optimal_iid(target, draft, draws),
            draws,
            optimal(Drafting::WithoutReplacement)?,
            optimal(Drafting::Greedy)?,
            optimal(Drafting::TopK)?,
            raced(
                target,
                draft,
                count,
                position * RACES,
                &mut *self.shared_randomness,
                &mut self.rng,
            ),
        ];
        ensure!(values.iter().all(|value| value.is_finite()), "no number at position {position}");
        self.columns.iter_mut().zip(values).for_each(|(column, value)| column.push(value));
        Ok(())
    }

    /// Returns the row; requires at least two positions.
    fn row(&self) -> Row {
        let columns = &self.columns;
        let number = columns[0].len() as f64;
        let mean = |values: &[f64]| values.iter().sum::<f64>() / number;
        let differences: Vec<f64> =
            columns[2].iter().zip(&columns[4]).map(|(iid, without)| iid - without).collect();
        let difference = mean(&differences);
        let variance =
            differences.iter().map(|d| (d - difference).powi(2)).sum::<f64>() / (number - 1.0);
        let part = |is: &dyn Fn(f64) -> bool| {
            differences.iter().filter(|d| is(**d)).count() as f64 / number
        };
        Row {
            count: self.count,
            iid: mean(&columns[0]),
            distinct_of_iid: mean(&columns[1]),
            iid_as_distinct: mean(&columns[2]),
            draws: super::median(columns[3].iter().copied()),
            without_replacement: mean(&columns[4]),
            greedy: mean(&columns[5]),
            top: mean(&columns[6]),
            race: mean(&columns[7]),
            difference,
            error: (variance / number).sqrt(),
            least: differences.iter().copied().fold(f64::INFINITY, f64::min),
            most: differences.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            iid_ahead: part(&|d| d > 1e-6),
            without_ahead: part(&|d| d < -1e-6),
        }
    }
}

/// Estimates how often the target's token is among the first `count` drafts with shared randomness.
fn raced(
    target: &Distribution,
    draft: &Distribution,
    count: usize,
    from: usize,
    shared_randomness: &mut dyn SharedRandomness,
    rng: &mut dyn RandomSource,
) -> f64 {
    let mut accepted = 0;
    for position in from..from + RACES {
        let token = shared_randomness.first_arrivals(position, target, 1, rng);
        let drafts = shared_randomness.first_arrivals(position, draft, count, rng);
        accepted += usize::from(token.iter().all(|token| drafts.contains(token)));
    }
    accepted as f64 / RACES as f64
}

fn print(report: &Report) -> Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "largest acceptance of n drafts at a node, means over {} positions, of (draws) the median; \
         temperature {} (draft {})",
        report.positions, report.temperature, report.draft_temperature
    )?;
    let head = [
        "n",
        "n i.i.d.",
        "(distinct)",
        "as distinct",
        "(draws)",
        "without repl.",
        "greedy",
        "top n",
        "Gumbel",
    ];
    head.iter().try_for_each(|name| write!(out, "{name:>14}"))?;
    writeln!(out)?;
    for row in &report.rows {
        write!(out, "{:>14}", row.count)?;
        for value in [
            row.iid,
            row.distinct_of_iid,
            row.iid_as_distinct,
            row.draws,
            row.without_replacement,
            row.greedy,
            row.top,
            row.race,
        ] {
            write!(out, "{value:>14.4}")?;
        }
        writeln!(out)?;
    }
    writeln!(out, "\ni.i.d. draws that give n distinct ones, less n without replacement")?;
    let head = ["n", "difference", "std. error", "least", "most", "i.i.d. ahead", "without ahead"];
    head.iter().try_for_each(|name| write!(out, "{name:>14}"))?;
    writeln!(out)?;
    for row in &report.rows {
        write!(out, "{:>14}", row.count)?;
        for value in
            [row.difference, row.error, row.least, row.most, row.iid_ahead, row.without_ahead]
        {
            write!(out, "{value:>14.4}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}
