//! Results of a rule: acceptance, optimum, time.

use std::time::{Duration, Instant};

use anyhow::Result;
use polydraft::coupling::{Coupling, Problem, Rule};
use polydraft::{Drafting, Draws, Error, acceptance, couple};
use polydraft_cli::output::note;
use polydraft_cli::usage::UsageError;
use polydraft_reference::optimum;
use rand::SeedableRng;
use rand_chacha::ChaCha12Rng;
use serde::Serialize;

use super::Args;
use super::distributions::Distributions;
use polydraft::coupling::registry::WalkRule;

/// Results of one rule.
#[derive(Serialize)]
pub struct Report {
    pub rule: &'static str,
    pub drafts: usize,
    pub drafting: Drafting,
    pub acceptance: f64,
    /// `None` if the optimum is too expensive to compute.
    pub optimal: Option<f64>,
    /// For two i.i.d. drafts, whether some rule always accepts one of them (Khisti et al. 2025,
    /// theorem 2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub two_drafts_suffice: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distribution: Option<Vec<f64>>,
    pub status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub standard_error: Option<f64>,
    /// Error bounds of the emitted distribution (L1) and the acceptance, for a rule that is not
    /// exact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub off_by_at_most: Option<OffBy>,
    /// Rule that was used as the fallback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback: Option<Fallback>,
    /// Median time in microseconds to prepare the rule and emit one token.
    pub time_us: f64,
}

#[derive(Serialize)]
pub struct OffBy {
    pub distribution: f64,
    pub acceptance: f64,
}

#[derive(Serialize)]
pub struct Fallback {
    pub rule: &'static str,
    pub reason: String,
}

/// Method by which the acceptance was computed.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    Exact,
    Estimated,
}

/// Prepares the rule for a problem; a rule that does not support the problem is a usage error.
pub fn coupling<'a>(rule: &'a mut dyn Rule, problem: Problem<'a>) -> Result<Coupling<'a>> {
    couple(rule, problem).map_err(|error| match error {
        Error::Unsupported { .. } => UsageError::error(error),
        _ => error.into(),
    })
}

/// Returns all results of one rule, except the distribution for given drafts.
pub fn report(
    rule: &WalkRule,
    working: &mut dyn Rule,
    problem: Problem,
    seed: u64,
) -> Result<Report> {
    let mut rng = ChaCha12Rng::seed_from_u64(seed);
    let mut coupling = coupling(working, problem)?;
    let acceptance = coupling.acceptance(&mut rng);
    let fallback = coupling.fallback().map(|f| Fallback { rule: f.rule, reason: f.reason.clone() });
    Ok(Report {
        rule: rule.name(),
        drafts: problem.proposal.count(),
        drafting: problem.proposal.scheme(),
        acceptance: acceptance.probability,
        optimal: acceptance::optimal(&problem)
            .ok()
            .or_else(|| optimum::by_minimum_cut(&problem).ok().map(|optimum| optimum.acceptance)),
        two_drafts_suffice: (problem.proposal.draws() == Draws::iid(2)).then(|| {
            acceptance::two_drafts_suffice(problem.target, problem.proposal.distribution(0))
        }),
        distribution: None,
        status: if acceptance.standard_error.is_some() { Status::Estimated } else { Status::Exact },
        standard_error: acceptance.standard_error,
        off_by_at_most: crate::rules::bounds(rule)
            .map(|(distribution, acceptance)| OffBy { distribution, acceptance }),
        fallback,
        time_us: time(working, problem, &mut rng)?.as_secs_f64() * 1e6,
    })
}

/// Returns the median time to prepare the rule and emit a token.
fn time(rule: &mut dyn Rule, problem: Problem, rng: &mut ChaCha12Rng) -> Result<Duration> {
    let mut drafts = Vec::new();
    let mut times = Vec::new();
    let begin = Instant::now();
    for _ in 0..100 {
        problem.proposal.draw(rng, &mut drafts);
        let start = Instant::now();
        coupling(rule, problem)?.emit(&drafts, rng)?;
        times.push(start.elapsed());
        if begin.elapsed() > Duration::from_millis(50) {
            break;
        }
    }
    times.sort();
    Ok(times[times.len() / 2])
}

/// Returns the results of all rules, each with every drafting scheme it supports.
pub fn compare(args: &Args, distributions: &Distributions) -> Result<Vec<Report>> {
    let count = args.drafts.map_or(distributions.default_count(), |count| count as usize);
    let schemes = match args.drafting {
        Some(scheme) => vec![scheme],
        None if distributions.drafts.len() > 1 => vec![Drafting::Distinct],
        None => Drafting::ALL.into_iter().filter(|scheme| *scheme != Drafting::Distinct).collect(),
    };
    let mut reports = Vec::new();
    for rule in crate::rules::all_quick() {
        let mut working = rule.build()?;
        // With one draft, all schemes draw alike.
        let (schemes, count) = if rule.name() == "single" && distributions.drafts.len() == 1 {
            (&[Drafting::Iid][..], 1)
        } else {
            (&schemes[..], count)
        };
        for &scheme in schemes {
            let problem = distributions.problem(scheme, count).map_err(UsageError::error)?;
            let prepared = couple(working.as_mut(), problem).map(|_| ());
            match prepared {
                Ok(()) => reports.push(report(&rule, working.as_mut(), problem, args.seed)?),
                Err(Error::Unsupported { .. }) => {}
                Err(error @ (Error::TooLarge { .. } | Error::Solver { .. })) => {
                    note(format_args!("left out, {scheme} drafts: {error}"));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(reports)
}
