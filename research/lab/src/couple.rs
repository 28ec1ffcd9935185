//! `polydraft-lab couple`: token-level rules on given distributions.

mod distributions;
mod report;
mod table;

use std::num::ParseIntError;
use std::path::PathBuf;

use anyhow::Result;
use polydraft::{Drafting, Token};
use polydraft_cli::output;
use polydraft_cli::usage::UsageError;

use crate::settings;
use report::{compare, coupling, report};
use table::{describe, list};

pub use distributions::{Distributions, from_bytes};

/// Run token-level rules on a target distribution and a draft distribution.
///
/// Prints how often a rule emits one of the drafts, the optimum, and, with --given, the exact
/// distribution of the emitted token. Without --rule, compares all rules: first the fast ones, then
/// the reference solvers (linear-program, max-flow, slackness, global-resolution) if the problem is
/// small enough for them.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
The distributions are one of
  a JSON file       {\"target\": [0.5, 0.3, 0.2], \"draft\": [0.2, 0.3, 0.5]}
  a .npy file       of shape [2, vocabulary], the target first
  a .safetensors    file with tensors 'target' and 'draft'
  --target, --draft .npy files of shape [vocabulary]
For distinct drafts 'draft' is a list of distributions, one for each.

Examples:
  echo '{\"target\": [0.5, 0.3, 0.2], \"draft\": [0.2, 0.3, 0.5]}' | polydraft-lab couple
  polydraft-lab couple pair.json --rule priority --drafts 4 --json
  polydraft-lab couple pair.json --rule recursive --drafting without-replacement --drafts 2 \
  --given 2,1
  polydraft-lab couple pair.json --rule importance --set truncation=8 --set alphabet=null
  polydraft-lab couple pair.json --rule global-resolution --set tau=1e-4 --set mode=published
  polydraft-lab couple --target p.npy --draft q.npy --drafts 8 --normalize")]
pub struct Args {
    /// The distributions; '-' or nothing is JSON on standard input.
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Target distribution, a .npy file.
    #[arg(long, value_name = "FILE", requires = "draft", conflicts_with = "file")]
    target: Option<PathBuf>,
    /// Draft distribution, a .npy file. Repeat it for distinct drafts.
    #[arg(long, value_name = "FILE", requires = "target")]
    draft: Vec<PathBuf>,
    /// Normalise distributions whose sum differs from 1 by up to 0.001.
    #[arg(long)]
    normalize: bool,
    /// Rule [default: all that support the problem].
    #[arg(long, short, value_name = "NAME", value_parser = rule_name)]
    rule: Option<String>,
    /// Setting of the rule, as its JSON name and value. May be repeated.
    #[arg(long, value_name = "NAME=VALUE", requires = "rule", value_parser = settings::setting)]
    set: Vec<settings::Setting>,
    /// Number of drafts [default: 2, or as many as there are draft distributions; 1 for 'single'].
    #[arg(
        long,
        short = 'n',
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=10_000),
    )]
    drafts: Option<u32>,
    /// Drafting scheme: iid, without-replacement, greedy, hub or distinct [default: iid; hub for
    /// rule 'hub', distinct for several draft distributions; all schemes without --rule].
    #[arg(long, value_name = "SCHEME")]
    drafting: Option<Drafting>,
    /// Print the distribution of the emitted token given these drafts, in the order drawn.
    #[arg(
        long,
        value_name = "TOKENS",
        value_delimiter = ',',
        requires = "rule",
        value_parser = token,
    )]
    given: Option<Vec<Token>>,
    /// Seed of estimates, for rules whose acceptance has no formula.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Print JSON: an object for one rule, else a list of them.
    #[arg(long)]
    json: bool,
}

fn rule_name(name: &str) -> Result<String, String> {
    polydraft_reference::rule(name)
        .map(|rule| rule.name().to_owned())
        .map_err(|error| error.to_string())
}

/// Parses a token of a list; surrounding spaces are allowed.
fn token(text: &str) -> Result<Token, ParseIntError> {
    text.trim().parse()
}

/// Reads the distributions, runs the rules, and prints.
pub fn run(args: Args) -> Result<()> {
    let distributions = match &args.target {
        Some(target) => distributions::from_arrays(target, &args.draft, args.normalize)?,
        None => distributions::from_file(args.file.as_deref(), args.normalize)?,
    };
    let Some(name) = &args.rule else {
        let reports = compare(&args, &distributions)?;
        return if args.json { output::json(&reports) } else { table::table(&reports) };
    };
    let rule = settings::rule(name, &args.set)?;
    let scheme = match (args.drafting, rule.name()) {
        (Some(scheme), _) => scheme,
        _ if distributions.drafts.len() > 1 => Drafting::Distinct,
        (_, "hub") => Drafting::Hub,
        _ => Drafting::Iid,
    };
    let default = if rule.name() == "single" { 1 } else { distributions.default_count() };
    let count = args.drafts.map_or(default, |count| count as usize);
    let problem = distributions.problem(scheme, count).map_err(UsageError::error)?;
    let mut working = rule.build().map_err(UsageError::error)?;
    let mut report = report(&rule, working.as_mut(), problem, args.seed)?;
    if let Some(given) = &args.given {
        let mut coupling = coupling(working.as_mut(), problem)?;
        let probs = coupling
            .distribution(given)
            .map_err(|error| UsageError::error(format!("--given: {error}")))?;
        if problem.proposal.probability(given) == 0.0 {
            return Err(UsageError::error(format!(
                "drafts {} are never drawn by {scheme} drafting",
                list(given)
            )));
        }
        report.distribution = Some(probs.probabilities);
    }
    if args.json {
        return output::json(&report);
    }
    describe(&report, args.given.as_deref())
}
