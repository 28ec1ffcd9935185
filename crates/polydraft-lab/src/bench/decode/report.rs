//! What was measured, as a table, as JSON and as a plot.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::Args;
use super::ways::{Round, Way};
use crate::bench::median;
use crate::output::{Usage, machine, note};
use crate::plot::{Chart, Scale, Series, Value};

#[derive(Serialize, Deserialize)]
pub struct Report {
    machine: String,
    version: String,
    prompts: usize,
    max_tokens: u32,
    rounds: u32,
    /// Texts that left plain decoding's at temperature 0 between two tokens whose logits differ by rounding only.
    ties: usize,
    results: Vec<Row>,
}

#[derive(Serialize, Deserialize)]
struct Row {
    verifier: String,
    temperature: f64,
    paths: Option<usize>,
    depth: Option<usize>,
    block_efficiency: f64,
    /// Standard error over the rounds.
    block_efficiency_error: f64,
    tokens_per_second: f64,
    /// Of the speed of plain decoding, in the same round and at the same temperature.
    ratio: f64,
    /// Distinct tokens drafted per call of the target.
    nodes_per_call: f64,
    draft_share: f64,
    target_share: f64,
    verify_share: f64,
}

impl Report {
    /// A record that was printed before.
    pub fn read(file: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        serde_json::from_str(&text)
            .with_context(|| format!("{}: expected a record of bench decode", file.display()))
    }

    pub fn new(args: &Args, prompts: usize, ties: usize, ways: &[Way]) -> Self {
        let plain = |way: &Way| {
            ways.iter().find(|other| other.speculation.is_none() && other.sampling == way.sampling)
        };
        let results = ways.iter().map(|way| row(way, plain(way).map_or(&[], |way| &way.rounds))).collect();
        Self {
            machine: machine(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            prompts,
            max_tokens: args.max_tokens,
            rounds: args.rounds,
            ties,
            results,
        }
    }
}

fn row(way: &Way, plain: &[Round]) -> Row {
    let efficiencies: Vec<f64> = way.rounds.iter().map(Round::block_efficiency).collect();
    let count = efficiencies.len() as f64;
    let mean = efficiencies.iter().sum::<f64>() / count;
    let variance = efficiencies.iter().map(|e| (e - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    let share = |part: fn(&Round) -> f64| median(way.rounds.iter().map(|r| part(r) / r.seconds));
    let (nodes, calls) = way.rounds.iter().fold((0, 0), |sum, r| (sum.0 + r.nodes, sum.1 + r.calls));
    Row {
        verifier: way.verifier(),
        temperature: way.sampling.temperature,
        paths: way.paths_and_depth().map(|(paths, _)| paths),
        depth: way.paths_and_depth().map(|(_, depth)| depth),
        block_efficiency: mean,
        block_efficiency_error: (variance / count).sqrt(),
        tokens_per_second: median(way.rounds.iter().map(Round::speed)),
        ratio: median(way.rounds.iter().zip(plain).map(|(r, plain)| r.speed() / plain.speed())),
        nodes_per_call: nodes as f64 / calls as f64,
        draft_share: share(|r| r.draft),
        target_share: share(|r| r.target),
        verify_share: share(|r| r.verify),
    }
}

pub fn print(report: &Report) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{}\n{} prompts, {} tokens each, medians of {} rounds; answers checked at temperature 0\n",
        report.machine, report.prompts, report.max_tokens, report.rounds
    )?;
    writeln!(
        out,
        "{:<16} {:>4} {:>3} {:>3} {:>16} {:>6} {:>9} {:>7}   {:>5} {:>7} {:>9}",
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
    let number = |value: Option<usize>| value.map_or(String::new(), |value| value.to_string());
    for r in &report.results {
        writeln!(
            out,
            "{:<16} {:>4} {:>3} {:>3} {:>9.3} ± {:<4.3} {:>6.1} {:>9.0} {:>6.2}x   {:>3.0} % {:>5.0} % {:>7.0} %",
            r.verifier,
            r.temperature,
            number(r.paths),
            number(r.depth),
            r.block_efficiency,
            r.block_efficiency_error,
            r.nodes_per_call,
            r.tokens_per_second,
            r.ratio,
            100.0 * r.draft_share,
            100.0 * r.target_share,
            100.0 * r.verify_share
        )?;
    }
    if report.ties > 0 {
        note(format_args!("{} of the checked texts parted at a tie within rounding", report.ties));
    }
    if report.rounds < 3 {
        note("fewer than 3 rounds: the medians say little");
    }
    Ok(())
}

/// Finds out before anything is measured whether the plots can be written.
pub fn check_plots(files: &[PathBuf]) -> Result<()> {
    for file in files {
        if !file.extension().is_some_and(|e| e == "svg" || e == "png") {
            return Err(Usage::error(format_args!(
                "--plot {}: expected a name in .svg or .png",
                file.display()
            )));
        }
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            return Err(Usage::error(format_args!(
                "--plot {}: there is no folder {}",
                file.display(),
                folder.display()
            )));
        }
    }
    Ok(())
}

/// Block efficiency over temperature, K and L, a series for each verifier. One path is drawn beside every K.
pub fn plot(report: &Report, files: &[PathBuf]) -> Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    let speculative: Vec<&Row> = report.results.iter().filter(|row| row.paths.is_some()).collect();
    let temperatures: BTreeSet<String> = speculative.iter().map(|row| row.temperature.to_string()).collect();
    // Those of verifiers that take several paths, if there are any.
    let most = speculative.iter().filter_map(|row| row.paths).max();
    let mut categories: Vec<(f64, usize, usize)> = Vec::new();
    for row in &speculative {
        let category = (row.temperature, row.paths.unwrap_or(1), row.depth.unwrap_or(0));
        if !categories.contains(&category) && (category.1 > 1 || most == Some(1)) {
            categories.push(category);
        }
    }
    categories.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    let mut names: Vec<String> = Vec::new();
    for row in &speculative {
        if !names.contains(&row.verifier) {
            names.push(row.verifier.clone());
        }
    }
    let value = |name: &str, (temperature, paths, depth): (f64, usize, usize)| {
        let matching = speculative
            .iter()
            .filter(|r| r.verifier == name && r.temperature == temperature && r.depth == Some(depth));
        let row = matching
            .clone()
            .find(|r| r.paths == Some(paths))
            .or(matching.clone().find(|r| r.paths == Some(1)));
        row.map(|r| Value { y: r.block_efficiency, error: Some(r.block_efficiency_error), bound: false })
    };
    let label = |&(temperature, paths, depth): &(f64, usize, usize)| match temperatures.len() {
        1 => format!("K {paths}, L {depth}"),
        _ => format!("T {temperature}, K {paths}, L {depth}"),
    };
    let chart = Chart {
        title: "Tokens per call of the target".to_owned(),
        subtitle: format!(
            "{} prompts, {} tokens each, {} rounds{}",
            report.prompts,
            report.max_tokens,
            report.rounds,
            if temperatures.len() == 1 {
                format!(", temperature {}", temperatures.first().map_or("", String::as_str))
            } else {
                String::new()
            }
        ),
        x_label: "paths and depth".to_owned(),
        y_label: "block efficiency".to_owned(),
        scale: Scale::Linear,
        categories: categories.iter().map(label).collect(),
        series: names
            .into_iter()
            .map(|name| {
                let values = categories.iter().map(|category| value(&name, *category)).collect();
                Series { name, values }
            })
            .collect(),
    };
    for file in files {
        chart.write(file).with_context(|| format!("writing the plot {}", file.display()))?;
    }
    Ok(())
}
