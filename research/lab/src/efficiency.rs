//! `polydraft-lab efficiency`: exact block efficiencies and distributions of verifiers on table
//! models.

use std::path::PathBuf;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use polydraft::VerifierKind;
use polydraft::conformance::tree::{ContextDistributions, Exact, count_drafts, exact};
use polydraft::policy::Distinct;
use polydraft::{Distribution, PolicyKind, Token};
use polydraft_cli::output::{self, note};
use polydraft_cli::usage::UsageError;
use polydraft_engine::{Model, TableModel};
use polydraft_reference::for_measurement;
use polydraft_reference::paths::{Limits, PathProblem, multi_path_optimum};
use serde::Serialize;

use crate::bench::verifiers::chooses;
use crate::settings;

/// Compute the exact number of tokens that a verifier emits per call on table models, and check its
/// emitted distribution.
///
/// Every tree of drafts and every decision of the verifier is enumerated, so both results are
/// exact. A table model is JSON such as {"vocabulary": 2, "next": {"": [0.5, 0.5], "0": [0.9, 0.1],
/// "0 1": [0, 1]}}: next-token probabilities by context, with token ids separated by spaces. The
/// longest listed suffix of the context applies; "" is the fallback.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  polydraft-lab efficiency --target t.json --draft d.json --paths 2 --depth 2
  polydraft-lab efficiency --target t.json --draft d.json --paths 2 --depth 2 --bound --json
  polydraft-lab efficiency --target t.json --draft d.json --tree fixed:0,0,1/hub
  polydraft-lab efficiency --target t.json --draft d.json --draft e.json --verifier walk:max-flow
  polydraft-lab efficiency --target t.json --draft d.json --paths 3 --verifier spectr --set rho=3
  polydraft-lab efficiency --target t.json --draft d.json --verifier walk:global-resolution --set \
  mode=published-walk --set limits=[1,1]")]
pub struct Args {
    /// Table model of the target.
    #[arg(long, value_name = "FILE")]
    target: PathBuf,
    /// Table model of the draft, with the same vocabulary. With several, each draws a path.
    #[arg(long, value_name = "FILE", required = true)]
    draft: Vec<PathBuf>,
    /// The verifier, as in 'generate' [default: all that are exact for the tree].
    #[arg(long, value_name = "NAME", value_parser = polydraft_reference::verifier)]
    verifier: Option<VerifierKind>,
    /// Setting of the verifier, or of a walk's rule, as its JSON name and value. May be repeated.
    #[arg(long, value_name = "NAME=VALUE", requires = "verifier", value_parser = settings::setting)]
    set: Vec<settings::Setting>,
    /// Tree other than paths, such as 3,2/hub, fixed:0,0,1/iid, delayed:1,2,2 or
    /// 2,2/without-replacement.
    #[arg(long, value_name = "TREE", conflicts_with_all = ["paths", "depth", "bound"])]
    tree: Option<PolicyKind>,
    /// Number of independent paths.
    #[arg(
        long,
        short = 'k',
        value_name = "K",
        default_value_t = 2,
        value_parser = clap::value_parser!(u32).range(1..=64),
    )]
    paths: u32,
    /// Number of tokens of each path.
    #[arg(
        long,
        short = 'd',
        value_name = "L",
        default_value_t = 2,
        value_parser = clap::value_parser!(u32).range(1..=64),
    )]
    depth: u32,
    /// Also compute the upper bound over all lossless verifiers, including verifiers that know all
    /// distributions, not only those at drafted nodes, by linear programming.
    #[arg(long)]
    bound: bool,
    /// Maximum number of trees to enumerate. A million takes seconds to minutes.
    #[arg(long, value_name = "N", default_value_t = 2_000_000)]
    max_trees: u64,
    /// Print JSON: an object, or a list of them if no verifier is named.
    #[arg(long)]
    json: bool,
}

impl Args {
    fn tree(&self) -> PolicyKind {
        let depth = self.depth as usize;
        self.tree.clone().unwrap_or_else(|| match self.draft.len() {
            1 => PolicyKind::paths(self.paths as usize, depth),
            drafts => PolicyKind::Distinct(Distinct { drafts, depth }),
        })
    }
}

#[derive(Serialize)]
struct Row {
    command: String,
    verifier: String,
    settings: VerifierKind,
    tree: String,
    /// Number of paths, if the tree consists of paths.
    #[serde(skip_serializing_if = "Option::is_none")]
    paths: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    depth: Option<u32>,
    /// Expected tokens per call of the target.
    block_efficiency: f64,
    /// The largest difference of a full sequence's probability from the target's.
    deviation: f64,
    /// Expected number of nodes per call where the rule gave up and a fallback was used. For
    /// `global-resolution` as published, the fallback is a draw from the target.
    fallbacks: f64,
    /// Whether the output should have the target's distribution. False for a walk with
    /// `global-resolution` as published, which is included for measurement only.
    lossless: bool,
    /// Upper bound over all lossless verifiers, if requested.
    bound: Option<f64>,
}

/// Next-token distributions of a table model, by context.
struct Table(TableModel);

impl ContextDistributions for Table {
    fn distribution(&self, text: &[Token]) -> polydraft::Result<&Distribution> {
        Ok(self.0.distribution(text))
    }
}

/// Reads the tables, enumerates all drafts and decisions, and prints the result.
pub fn run(args: Args) -> Result<()> {
    let target = Table(TableModel::read(&args.target)?);
    let mut drafts = Vec::new();
    for file in &args.draft {
        let draft = Table(TableModel::read(file)?);
        target.0.info().vocabulary.check_draft(&draft.0.info().vocabulary)?;
        drafts.push(draft);
    }
    let vocabulary = target.0.info().vocabulary.size();
    let tree = args.tree();
    let policy = tree.build().map_err(UsageError::error)?;
    let distinct = policy.form().distinct();
    if distinct.max(1) != drafts.len() {
        return Err(UsageError::error(format_args!(
            "{} drafts, but --tree {tree} draws from {}: of several drafts each draws a path, \
             --tree distinct:K,L",
            drafts.len(),
            distinct.max(1)
        )));
    }
    if args.bound && distinct > 0 {
        return Err(UsageError::error("--bound is for i.i.d. paths of one draft"));
    }
    if chooses(&tree) {
        return Err(UsageError::error(format_args!(
            "--tree {tree} depends on what was accepted before, so it has no single efficiency"
        )));
    }
    let trees = count_drafts(&tree, vocabulary);
    if trees > args.max_trees as f64 {
        return Err(UsageError::error(format_args!(
            "{tree} over {vocabulary} tokens can be drawn in up to {trees:.3e} ways, more than \
             --max-trees {}: try a smaller one, or raise the limit if these tables allow fewer, as \
             with a budget, whose number of draws depends on the draft",
            args.max_trees
        )));
    }
    let kinds = match &args.verifier {
        Some(kind) => {
            let kind = settings::verifier(kind, &args.set)?;
            for_measurement(&kind)
                .and_then(|verifier| verifier.supports(&policy.form()))
                .map_err(UsageError::error)?;
            vec![kind]
        }
        // Reference solvers are not verifiers by default; a walk with one must be named.
        None => VerifierKind::all()
            .into_iter()
            .filter(|kind| {
                tree.is_supported_by(kind)
                    && kind.build().is_ok_and(|verifier| !verifier.uses_shared_randomness())
            })
            .collect(),
    };
    let bound = if args.bound { Some(best(&args, vocabulary, &target, &drafts[0])?) } else { None };
    let bar = ProgressBar::new(1000 * kinds.len() as u64)
        .with_style(ProgressStyle::with_template("{msg:16} [{bar:30}] {percent} %, {eta} left")?);
    let mut rows = Vec::new();
    for (index, kind) in kinds.into_iter().enumerate() {
        bar.set_message(kind.to_string());
        let mut progress =
            |done: f64| bar.set_position(1000 * index as u64 + (1000.0 * done) as u64);
        let mut verifier = for_measurement(&kind)?;
        let Exact { block_efficiency, deviation, fallbacks, .. } =
            exact(verifier.as_mut(), policy.as_ref(), &target, &drafts, &mut progress)
                .with_context(|| format!("verifier {kind}"))?;
        let own = matches!(tree, PolicyKind::Paths(_));
        rows.push(Row {
            command: output::command(),
            verifier: kind.to_string(),
            lossless: kind.build().is_ok(),
            settings: kind,
            tree: tree.to_string(),
            paths: own.then_some(args.paths),
            depth: own.then_some(args.depth),
            block_efficiency,
            deviation,
            fallbacks,
            bound,
        });
    }
    bar.finish_and_clear();
    match (args.json, &rows[..]) {
        (true, [row]) if args.verifier.is_some() => output::json(row),
        (true, rows) => output::json(&rows),
        (false, rows) => print(rows, bound),
    }
}

fn best(args: &Args, vocabulary: usize, target: &Table, draft: &Table) -> Result<f64> {
    let problem = PathProblem {
        vocabulary,
        depth: args.depth as usize,
        paths: args.paths as usize,
        target: &|text| target.distribution(text).cloned(),
        draft: &|text| draft.distribution(text).cloned(),
    };
    multi_path_optimum(&problem, &Limits::default()).context("the bound")
}

fn print(rows: &[Row], bound: Option<f64>) -> Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{:<24} {:>16} {:>14}", "verifier", "block efficiency", "deviation")?;
    for row in rows {
        let Row { verifier, block_efficiency, deviation, fallbacks, .. } = row;
        write!(out, "{verifier:<24} {block_efficiency:>16.9} {deviation:>14.1e}")?;
        match *fallbacks {
            0.0 => writeln!(out)?,
            _ if row.lossless => writeln!(out, "   another rule at {fallbacks:.3} nodes per call")?,
            _ => writeln!(out, "   draws from the target at {fallbacks:.3} nodes per call")?,
        }
    }
    if let Some(bound) = bound {
        writeln!(out, "{:<24} {bound:>16.9}", "bound")?;
    }
    if rows.iter().any(|row| !row.lossless) {
        note(
            "as published, its output does not have the target's distribution: no command emits it",
        );
    }
    let wrong = |row: &&Row| row.deviation.is_nan() || row.deviation > 1e-9;
    if rows.iter().filter(|row| row.lossless).any(|row| wrong(&row)) {
        note("a deviation exceeds rounding: that verifier is wrong, please report it");
    }
    Ok(())
}
