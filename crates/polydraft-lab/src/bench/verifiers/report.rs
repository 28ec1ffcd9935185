//! What was measured, as a table and as JSON.

use std::io::Write;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::{Args, Setting};
use crate::output::{machine, note};
use crate::provenance::Provenance;

/// What one text gave.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The number of its prompt.
    pub prompt: usize,
    pub positions: usize,
    pub drafts: usize,
    pub nodes: usize,
    /// Mean over the positions of each verifier's expected tokens.
    pub tokens: Vec<f64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    machine: String,
    version: String,
    #[serde(flatten)]
    provenance: Provenance,
    pub prompts: usize,
    pub max_tokens: u32,
    every: u32,
    seed: u64,
    /// Whether it was ended before all texts were measured.
    interrupted: bool,
    pub results: Vec<Compared>,
}

/// Verifiers on the same drafts.
#[derive(Debug, Serialize, Deserialize)]
pub struct Compared {
    pub temperature: f64,
    pub top_p: f64,
    pub tree: String,
    /// Texts, positions in all of them together, and drafts at all of these.
    pub texts: usize,
    pub positions: usize,
    drafts: usize,
    pub nodes_per_call: f64,
    pub verifiers: Vec<Row>,
    /// Of every two verifiers, the one named earlier first.
    pub pairs: Vec<Pair>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Row {
    pub verifier: String,
    settings: serde_json::Value,
    /// Expected tokens per call of the target.
    pub block_efficiency: f64,
    pub block_efficiency_error: f64,
    /// Of the first verifier's, on the same drafts.
    pub difference: f64,
    /// The standard error of the difference.
    pub difference_error: f64,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Pair {
    pub verifier: String,
    pub other: String,
    /// Tokens per call of `verifier` less those of `other`.
    pub difference: f64,
    pub error: f64,
}

/// The mean over texts of what `of` says of each, and its standard error over other texts behind the same prompts; over
/// all texts alike where a prompt has only one.
fn mean(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> (f64, f64) {
    let values: Vec<(usize, f64)> = samples.iter().map(|sample| (sample.prompt, of(sample))).collect();
    let count = values.len() as f64;
    let mean = values.iter().map(|(_, value)| value).sum::<f64>() / count;
    let mut prompts: Vec<usize> = values.iter().map(|(prompt, _)| *prompt).collect();
    prompts.sort_unstable();
    prompts.dedup();
    let spread = |values: &[f64]| {
        let (count, sum) = (values.len() as f64, values.iter().sum::<f64>());
        let squares: f64 = values.iter().map(|value| (value - sum / count).powi(2)).sum();
        squares * count / (count - 1.0)
    };
    let own = |prompt: usize| -> Vec<f64> {
        values.iter().filter(|(other, _)| *other == prompt).map(|(_, value)| *value).collect()
    };
    let by_prompt: Vec<Vec<f64>> = prompts.into_iter().map(own).collect();
    let squares = if by_prompt.iter().all(|values| values.len() > 1) {
        by_prompt.iter().map(|values| spread(values)).sum()
    } else {
        spread(&by_prompt.concat())
    };
    (mean, squares.sqrt() / count)
}

impl Report {
    pub fn new(args: &Args, prompts: usize, interrupted: bool, settings: &[Setting]) -> Self {
        Self {
            machine: machine(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            provenance: Provenance::here(),
            prompts,
            max_tokens: args.max_tokens,
            every: args.every,
            seed: args.seed,
            interrupted,
            results: settings.iter().map(compared).collect(),
        }
    }
}

fn compared(setting: &Setting) -> Compared {
    let Setting { sampling, tree, verifiers, samples } = setting;
    let rows = verifiers.iter().enumerate().map(|(index, kind)| {
        let (block_efficiency, block_efficiency_error) = mean(samples, |sample| sample.tokens[index]);
        let (difference, difference_error) = mean(samples, |sample| sample.tokens[index] - sample.tokens[0]);
        Row {
            verifier: kind.to_string(),
            settings: serde_json::to_value(kind).unwrap_or_default(),
            block_efficiency,
            block_efficiency_error,
            difference,
            difference_error,
        }
    });
    let two = (0..verifiers.len()).flat_map(|one| (one + 1..verifiers.len()).map(move |other| (one, other)));
    let pairs = two.map(|(one, other)| {
        let (difference, error) = mean(samples, |sample| sample.tokens[one] - sample.tokens[other]);
        Pair { verifier: verifiers[one].to_string(), other: verifiers[other].to_string(), difference, error }
    });
    let positions: usize = samples.iter().map(|sample| sample.positions).sum();
    let drafts: usize = samples.iter().map(|sample| sample.drafts).sum();
    let nodes: usize = samples.iter().map(|sample| sample.nodes).sum();
    Compared {
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        tree: tree.to_string(),
        texts: samples.len(),
        positions,
        drafts,
        nodes_per_call: nodes as f64 / drafts as f64,
        verifiers: rows.collect(),
        pairs: pairs.collect(),
    }
}

pub fn print(report: &Report) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", report.machine)?;
    for result in &report.results {
        let Compared {
            temperature, top_p, tree, texts, positions, drafts, nodes_per_call, verifiers, ..
        } = result;
        let cut = if *top_p < 1.0 { format!(", top-p {top_p}") } else { String::new() };
        writeln!(
            out,
            "\n{tree}, temperature {temperature}{cut}: {drafts} drafts at {positions} positions of {texts} texts, \
             {nodes_per_call:.1} nodes"
        )?;
        let first = verifiers.first().map_or("", |row| row.verifier.as_str());
        writeln!(out, "{:<20} {:>18}   less {first}", "verifier", "tokens per call")?;
        for row in verifiers {
            let difference = match row.verifier == first {
                true => String::new(),
                false => format!("{:>+9.4} ± {:.4}", row.difference, row.difference_error),
            };
            let (tokens, error) = (row.block_efficiency, row.block_efficiency_error);
            writeln!(out, "{:<20} {tokens:>9.4} ± {error:.4} {difference}", row.verifier)?;
        }
    }
    if report.results.iter().any(|result| result.texts < 2 * report.prompts) {
        note("fewer than two texts behind a prompt: the errors are those of other prompts too");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_within_prompts() {
        let sample =
            |prompt, value| Sample { prompt, positions: 1, drafts: 1, nodes: 1, tokens: vec![value] };
        // Prompts differ by 10, texts of one by 1 and 3.
        let samples = [sample(0, 1.0), sample(0, 2.0), sample(1, 11.0), sample(1, 14.0)];
        let (value, error) = mean(&samples, |sample| sample.tokens[0]);
        assert_eq!(value, 7.0);
        // Var = (2·(0.5² + 0.5²) + 2·(1.5² + 1.5²))/4².
        assert!((error - (10.0_f64 / 16.0).sqrt()).abs() < 1e-12, "{error}");
        // One text each: over prompts.
        let (_, error) = mean(&[samples[0].clone(), samples[2].clone()], |sample| sample.tokens[0]);
        assert!((error - 5.0).abs() < 1e-12, "{error}");
    }
}
