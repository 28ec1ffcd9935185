//! Results, as a table and as JSON.

use std::io::Write;

use anyhow::Result;
use polydraft::VerifierKind;
use polydraft::{PolicyKind, Sampling};
use polydraft_cli::output::note;
use polydraft_cli::provenance::MadeBy;
use polydraft_reference::comparison::{self, Part, Sample};
use serde::{Deserialize, Serialize};

/// Tree, sampling settings, and the verifiers to compare.
pub struct Setting {
    pub sampling: Sampling,
    /// Sampling settings of the draft.
    pub draft: Sampling,
    /// Sampling settings of each draft, for trees with paths of several drafts.
    pub each: Vec<Sampling>,
    pub tree: PolicyKind,
    pub verifiers: Vec<VerifierKind>,
    /// Part of the draft that each verifier evaluates; empty if all evaluate the full draft.
    pub parts: Vec<Part>,
    /// Results of the sequences so far. Settings that are measured together have the same
    /// sequences.
    pub samples: Vec<Sample>,
}

/// Source of the drafts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Origin {
    pub prompts: usize,
    /// Number of tokens of each sequence.
    pub max_tokens: u32,
    /// Number of tokens between positions; `None` if positions are steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<u32>,
    pub seed: u64,
    /// Verifier whose steps are the positions; `None` if positions are in the target's own output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps_of: Option<String>,
    /// Traces from which drafts were read, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replayed: Option<Traced>,
}

/// Settings of a trace.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Traced {
    pub traces: Vec<String>,
    pub target: String,
    pub draft: String,
    /// Drafted tree.
    pub tree: String,
    /// Stored probability mass of each distribution, and the largest mass that was omitted from
    /// one.
    pub mass: f64,
    pub left_out: f64,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    #[serde(flatten)]
    made_by: MadeBy,
    #[serde(flatten)]
    pub origin: Origin,
    /// Whether the user interrupted before all sequences were measured.
    interrupted: bool,
    pub results: Vec<Compared>,
}

/// Results of verifiers on the same drafts.
#[derive(Debug, Serialize, Deserialize)]
pub struct Compared {
    pub temperature: f64,
    pub top_p: f64,
    /// Top-k; `None` if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<usize>,
    pub tree: String,
    /// Numbers of sequences, of positions in all of them, and of drafts at all positions.
    #[serde(rename = "texts")]
    pub outputs: usize,
    pub positions: usize,
    drafts: usize,
    pub nodes_per_call: f64,
    pub verifiers: Vec<Row>,
    /// Differences between all pairs of verifiers, in command-line order.
    pub pairs: Vec<Pair>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Row {
    pub verifier: String,
    settings: serde_json::Value,
    /// Expected tokens per call of the target.
    pub block_efficiency: f64,
    /// Standard error; `None` with one sequence.
    pub block_efficiency_error: Option<f64>,
    /// Difference to the first verifier, on the same drafts.
    pub difference: f64,
    /// The standard error of the difference.
    pub difference_error: Option<f64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Pair {
    pub verifier: String,
    pub other: String,
    /// Tokens per call of `verifier` minus those of `other`.
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

/// Returns the mean, and its error if there is one.
fn mean(samples: &[Sample], value_of: impl Fn(&Sample) -> f64) -> (f64, Option<f64>) {
    let (mean, error) = comparison::mean(samples, value_of);
    (mean, Some(error).filter(|error| error.is_finite()))
}

/// Returns the results of a setting.
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

/// Formats an error for the table.
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
