//! The results, as a table and as JSON.

use std::io::Write;

use anyhow::Result;
use polydraft::policy::Costs;
use polydraft_cli::output::note;
use polydraft_cli::provenance::MadeBy;
use serde::{Deserialize, Serialize};

use super::Args;
use super::ways::{Round, Way};
use crate::bench::median;

#[derive(Serialize, Deserialize)]
pub struct Report {
    #[serde(flatten)]
    made_by: MadeBy,
    pub prompts: usize,
    pub max_tokens: u32,
    pub rounds: u32,
    /// Number of outputs that differ from plain decoding at temperature 0 at a token where the
    /// logits of both choices differ only by rounding.
    pub ties: usize,
    /// Top-k, if set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    top_k: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    top_p: Option<f64>,
    /// Costs of forward passes, if measured or given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    costs: Option<Costs>,
    pub results: Vec<Row>,
}

#[derive(Serialize, Deserialize)]
pub struct Row {
    pub verifier: String,
    /// The verifier's settings, if the record has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    settings: Option<serde_json::Value>,
    pub temperature: f64,
    /// The tree, if it does not consist of paths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<String>,
    pub paths: Option<usize>,
    pub depth: Option<usize>,
    pub block_efficiency: f64,
    /// Standard error over the rounds; `None` with one round.
    pub block_efficiency_error: Option<f64>,
    pub tokens_per_second: f64,
    /// Speed that the costs predict for this number of tokens per call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_tokens_per_second: Option<f64>,
    /// Speed relative to plain decoding, in the same round and at the same temperature.
    pub ratio: f64,
    /// Distinct tokens drafted per call of the target.
    pub nodes_per_call: f64,
    pub draft_share: f64,
    pub target_share: f64,
    pub verify_share: f64,
}

impl Report {
    pub fn new(
        args: &Args,
        prompts: usize,
        ties: usize,
        ways: &[Way],
        costs: Option<Costs>,
    ) -> Self {
        let plain = |way: &Way| {
            ways.iter().find(|other| other.speculation.is_none() && other.sampling == way.sampling)
        };
        let row = |way| row(way, plain(way).map_or(&[], |way| &way.rounds), costs.as_ref());
        let results = ways.iter().map(row).collect();
        Self {
            made_by: MadeBy::current(),
            prompts,
            max_tokens: args.max_tokens,
            rounds: ways.first().map_or(0, |way| way.rounds.len() as u32),
            ties,
            top_k: args.cut.top_k,
            top_p: args.cut.top_p,
            costs,
            results,
        }
    }
}

/// Returns the results of a method's rounds, relative to plain decoding, and the prediction of the
/// costs.
pub fn row(way: &Way, plain: &[Round], costs: Option<&Costs>) -> Row {
    let efficiencies: Vec<f64> = way.rounds.iter().map(Round::block_efficiency).collect();
    let count = efficiencies.len() as f64;
    let mean = efficiencies.iter().sum::<f64>() / count;
    let variance = efficiencies.iter().map(|e| (e - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let share = |part: fn(&Round) -> f64| median(way.rounds.iter().map(|r| part(r) / r.seconds));
    let (nodes, calls) =
        way.rounds.iter().fold((0, 0), |sum, r| (sum.0 + r.nodes, sum.1 + r.calls));
    let nodes = nodes as f64 / calls as f64;
    Row {
        verifier: way.verifier(),
        settings: way.speculation.as_ref().and_then(|s| serde_json::to_value(&s.verifier).ok()),
        temperature: way.sampling.temperature,
        tree: way.tree(),
        paths: way.paths_and_depth().map(|(paths, _)| paths),
        depth: way.paths_and_depth().map(|(_, depth)| depth),
        block_efficiency: mean,
        block_efficiency_error: (efficiencies.len() > 1).then(|| (variance / count).sqrt()),
        tokens_per_second: median(way.rounds.iter().map(Round::speed)),
        ratio: median(way.rounds.iter().zip(plain).map(|(r, plain)| r.speed() / plain.speed())),
        expected_tokens_per_second: costs
            .and_then(|costs| Some(mean / way.seconds_of_a_step(nodes, costs)?)),
        nodes_per_call: nodes,
        draft_share: share(|r| r.draft),
        target_share: share(|r| r.target),
        verify_share: share(|r| r.verify),
    }
}

pub fn print(report: &Report) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let rounds = match report.rounds {
        1 => "one round".to_owned(),
        rounds => format!("medians of {rounds} rounds"),
    };
    writeln!(
        out,
        "{}\n{} prompts, {} tokens each, {}; answers checked at temperature 0\n",
        report.made_by.machine, report.prompts, report.max_tokens, rounds
    )?;
    writeln!(
        out,
        "{:<20} {:>4} {:>3} {:>3} {:>16} {:>6} {:>9} {:>7}   {:>5} {:>7} {:>9}",
        "verifier",
        "T",
        "K",
        "L",
        "block efficiency",
        "nodes",
        "tokens/s",
        "ratio",
        "draft",
        "target",
        "verifier"
    )?;
    // Keep the column aligned with rows that have an error.
    let error = |r: &Row| match r.block_efficiency_error {
        Some(error) if r.paths.is_some() || r.tree.is_some() => format!(" ± {error:<4.3}"),
        _ => String::new(),
    };
    let number = |value: Option<usize>| value.map_or(String::new(), |value| value.to_string());
    for r in &report.results {
        writeln!(
            out,
            "{:<20} {:>4} {:>3} {:>3} {:>8.3}{:<8} {:>6.1} {:>9.0} {:>6.2}x   {:>3.0} % {:>5.0} % \
             {:>7.0} %",
            r.tree.as_ref().map_or(r.verifier.clone(), |tree| format!("{} {tree}", r.verifier)),
            r.temperature,
            number(r.paths),
            number(r.depth),
            r.block_efficiency,
            error(r),
            r.nodes_per_call,
            r.tokens_per_second,
            r.ratio,
            100.0 * r.draft_share,
            100.0 * r.target_share,
            100.0 * r.verify_share
        )?;
    }
    if report.ties > 0 {
        note(format_args!(
            "{} of the checked outputs differ at a tie within rounding",
            report.ties
        ));
    }
    if report.rounds < 3 {
        note("fewer than 3 rounds: the medians are unreliable");
    }
    Ok(())
}
