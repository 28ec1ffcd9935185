//! The results, as a table and as JSON.

use std::io::Write;

use anyhow::Result;
use polydraft::VerifierKind;
use polydraft::{PolicyKind, Sampling};
use polydraft_cli::output::note;
use polydraft_cli::provenance::MadeBy;
use polydraft_reference::comparison::{self, Part, Sample};
use serde::{Deserialize, Serialize};

/// A tree, sampling settings, and the verifiers that are compared.
pub struct Setting {
    pub sampling: Sampling,
    /// The sampling settings that turn the drafter's output into distributions.
    pub draft: Sampling,
    /// Sampling of each draft, if the tree has paths of several drafts.
    pub each: Vec<Sampling>,
    pub tree: PolicyKind,
    pub verifiers: Vec<VerifierKind>,
    /// The part of each draft that each verifier evaluates; none where all have a draft of the
    /// tree.
    pub parts: Vec<Part>,
    /// Samples of the sequences so far, shared by all settings that are measured together.
    pub samples: Vec<Sample>,
}

/// The origin of the drafts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Origin {
    pub prompts: usize,
    /// The number of tokens of each sequence.
    pub max_tokens: u32,
    /// Tokens from one position to the next; none where they are steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<u32>,
    pub seed: u64,
    /// The verifier whose steps the positions are; none where they are anywhere in the target's
    /// output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps_of: Option<String>,
    /// The traces, if the drafts were read from traces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replayed: Option<Traced>,
}

/// The recorded setting.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Traced {
    pub traces: Vec<String>,
    pub target: String,
    pub draft: String,
    /// The tree that was drafted.
    pub tree: String,
    /// The stored probability mass of each distribution, and the largest mass left out of one.
    pub mass: f64,
    pub left_out: f64,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    #[serde(flatten)]
    made_by: MadeBy,
    #[serde(flatten)]
    pub origin: Origin,
    /// Whether it was interrupted before all sequences were measured.
    interrupted: bool,
    pub results: Vec<Compared>,
}

/// Verifiers on the same drafts.
#[derive(Debug, Serialize, Deserialize)]
pub struct Compared {
    pub temperature: f64,
    pub top_p: f64,
    /// The likeliest tokens that are kept; none where all are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<usize>,
    pub tree: String,
    /// The number of sequences, of positions in all of them, and of drafts at all positions.
    #[serde(rename = "texts")]
    pub outputs: usize,
    pub positions: usize,
    drafts: usize,
    pub nodes_per_call: f64,
    pub verifiers: Vec<Row>,
    /// Differences of all pairs of verifiers, in the order of their names on the command line.
    pub pairs: Vec<Pair>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Row {
    pub verifier: String,
    settings: serde_json::Value,
    /// Expected tokens per call of the target.
    pub block_efficiency: f64,
    /// Its standard error; none if there is only one sequence.
    pub block_efficiency_error: Option<f64>,
    /// The difference to the first verifier, on the same drafts.
    pub difference: f64,
    /// The standard error of the difference.
    pub difference_error: Option<f64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Pair {
    pub verifier: String,
    pub other: String,
    /// Tokens per call of `verifier` less those of `other`.
    pub difference: f64,
    pub error: Option<f64>,
}

impl Report {
    pub fn new(origin: Origin, interrupted: bool, settings: &[Setting]) -> Self {
        Self {
            made_by: MadeBy::current(),
            origin,
            interrupted,
            results: settings.iter().map(compared).collect(),
        }
    }
}

/// The mean, and its error where there is one.
fn mean(samples: &[Sample], value_of: impl Fn(&Sample) -> f64) -> (f64, Option<f64>) {
    let (mean, error) = comparison::mean(samples, value_of);
    (mean, Some(error).filter(|error| error.is_finite()))
}

/// The results of a setting.
pub fn compared(setting: &Setting) -> Compared {
    let Setting { sampling, tree, verifiers, samples, .. } = setting;
    let rows = verifiers.iter().enumerate().map(|(index, kind)| {
        let (block_efficiency, block_efficiency_error) =
            mean(samples, |sample| sample.tokens[index]);
        let (difference, difference_error) =
            mean(samples, |sample| sample.tokens[index] - sample.tokens[0]);
        Row {
            verifier: kind.to_string(),
            settings: serde_json::to_value(kind).unwrap_or_default(),
            block_efficiency,
            block_efficiency_error,
            difference,
            difference_error,
        }
    });
    let two = (0..verifiers.len())
        .flat_map(|one| (one + 1..verifiers.len()).map(move |other| (one, other)));
    let pairs = two.map(|(one, other)| {
        let (difference, error) = mean(samples, |sample| sample.tokens[one] - sample.tokens[other]);
        Pair {
            verifier: verifiers[one].to_string(),
            other: verifiers[other].to_string(),
            difference,
            error,
        }
    });
    let drafts: usize = samples.iter().map(|sample| sample.drafts).sum();
    let nodes: usize = samples.iter().map(|sample| sample.nodes).sum();
    Compared {
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        top_k: sampling.top_k,
        tree: tree.to_string(),
        outputs: samples.len(),
        positions: setting.positions(),
        drafts,
        nodes_per_call: nodes as f64 / drafts as f64,
        verifiers: rows.collect(),
        pairs: pairs.collect(),
    }
}

/// An error as printed in the table.
fn within(error: Option<f64>) -> String {
    error.map_or(String::new(), |error| format!(" ± {error:.4}"))
}

pub fn print(report: &Report) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", report.made_by.machine)?;
    if let Some(verifier) = &report.origin.steps_of {
        writeln!(out, "at the steps of {verifier}")?;
    }
    if let Some(Traced { traces, target, draft, tree, mass, left_out }) = &report.origin.replayed {
        let cut = match left_out {
            0.0 => "distributions exact".to_owned(),
            _ => format!("distributions up to {mass}, at most {left_out:.1e} of one left out"),
        };
        writeln!(
            out,
            "replayed from {}: {target}, drafts {tree} by {draft}; {cut}",
            traces.join(", ")
        )?;
    }
    for result in &report.results {
        let Compared {
            temperature,
            top_p,
            top_k,
            tree,
            outputs,
            positions,
            drafts,
            nodes_per_call,
            verifiers,
            ..
        } = result;
        let mut cut = top_k.map_or(String::new(), |top_k| format!(", top-k {top_k}"));
        if *top_p < 1.0 {
            cut += &format!(", top-p {top_p}");
        }
        writeln!(
            out,
            "\n{tree}, temperature {temperature}{cut}: {drafts} drafts at {positions} positions of \
             {outputs} sequences, \
             {nodes_per_call:.1} nodes"
        )?;
        let first = verifiers.first().map_or("", |row| row.verifier.as_str());
        writeln!(out, "{:<20} {:>18}   less {first}", "verifier", "tokens per call")?;
        for row in verifiers {
            let difference = match row.verifier == first {
                true => String::new(),
                false => format!("{:>+9.4}{}", row.difference, within(row.difference_error)),
            };
            let (tokens, error) = (row.block_efficiency, within(row.block_efficiency_error));
            writeln!(out, "{:<20} {tokens:>9.4}{error:<9} {difference}", row.verifier)?;
        }
    }
    if report.results.iter().any(|result| result.outputs < 2 * report.origin.prompts) {
        note("fewer than two sequences after a prompt: the errors include those between prompts");
    }
    Ok(())
}
