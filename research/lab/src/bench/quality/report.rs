//! The scores, as a table and as JSON.

use std::io::Write;

use anyhow::Result;
use polydraft_cli::output::note;
use polydraft_cli::provenance::MadeBy;
use polydraft_runtime::{Models, Speculation};
use serde::{Deserialize, Serialize};

use super::interval::interval;
use super::{Args, Tried};

#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    #[serde(flatten)]
    made_by: MadeBy,
    pub target: String,
    pub draft: String,
    pub verifier: String,
    pub tree: String,
    /// Numbers of prompts with an answer that can be checked, and (`skipped`) without one.
    pub checked: usize,
    skipped: usize,
    pub scores: Vec<Score>,
    pub kinds: Vec<KindScore>,
}

/// Fractions of correct outputs.
#[derive(Debug, Serialize, Deserialize)]
pub struct Score {
    pub temperature: f64,
    /// Number of outputs per prompt and method.
    pub samples: u32,
    pub plain: f64,
    pub speculative: f64,
    /// Score of speculative decoding minus that of plain decoding, with its 95 % bootstrap interval
    /// over prompts.
    pub difference: f64,
    pub interval: (f64, f64),
    /// At temperature 0: outputs compared token by token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "texts")]
    pub outputs: Option<Outputs>,
}

/// Outputs of plain and of speculative decoding at temperature 0.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Outputs {
    pub equal: usize,
    /// Outputs that differ at a token where the logits of both choices differ only by rounding.
    pub ties: usize,
    pub different: usize,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct KindScore {
    pub kind: String,
    pub temperature: f64,
    pub prompts: usize,
    pub plain: f64,
    pub speculative: f64,
}

impl Report {
    pub(super) fn new(
        args: &Args,
        models: &Models,
        speculation: &Speculation,
        tried: &[Tried],
        measured: &[(f64, Outputs)],
        skipped: usize,
    ) -> Self {
        let mut kinds: Vec<&str> = Vec::new();
        tried.iter().for_each(|tried| {
            if !kinds.contains(&tried.item.kind.as_str()) {
                kinds.push(&tried.item.kind);
            }
        });
        let (mut scores, mut by_kind) = (Vec::new(), Vec::new());
        for (position, (temperature, outputs)) in measured.iter().enumerate() {
            let greedy = *temperature == 0.0;
            let samples = if greedy { 1 } else { args.samples };
            let part = |right: u32| f64::from(right) / f64::from(samples);
            let mean = |kind: Option<&str>, way: usize| {
                let own =
                    tried.iter().filter(|tried| kind.is_none_or(|kind| tried.item.kind == kind));
                let parts: Vec<f64> = own.map(|tried| part(tried.right[position][way])).collect();
                parts.iter().sum::<f64>() / parts.len() as f64
            };
            let differences: Vec<f64> = tried
                .iter()
                .map(|tried| part(tried.right[position][1]) - part(tried.right[position][0]))
                .collect();
            let (plain, speculative) = (mean(None, 0), mean(None, 1));
            scores.push(Score {
                temperature: *temperature,
                samples,
                plain,
                speculative,
                difference: speculative - plain,
                interval: interval(&differences),
                outputs: greedy.then(|| outputs.clone()),
            });
            by_kind.extend(kinds.iter().map(|kind| KindScore {
                kind: (*kind).to_owned(),
                temperature: *temperature,
                prompts: tried.iter().filter(|tried| tried.item.kind == *kind).count(),
                plain: mean(Some(kind), 0),
                speculative: mean(Some(kind), 1),
            }));
        }
        Self {
            made_by: MadeBy::current(),
            target: models.engine.info().name.clone(),
            draft: models.engine.drafter_name().unwrap_or("no draft").to_owned(),
            verifier: speculation.verifier.to_string(),
            tree: speculation.tree.describe(),
            checked: tried.len(),
            skipped,
            scores,
            kinds: by_kind,
        }
    }
}

pub fn print(report: &Report) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let Report { made_by: MadeBy { machine, .. }, target, draft, verifier, tree, checked, .. } =
        report;
    writeln!(
        out,
        "{machine}\n{target} with {draft}; {verifier}, {tree}; {checked} prompts with answers"
    )?;
    writeln!(
        out,
        "\n{:<14} {:>4} {:>8} {:>9} {:>12}   difference (95 % bootstrap interval over prompts), \
         points",
        "correct", "T", "prompts", "plain", "speculative"
    )?;
    for score in &report.scores {
        let Score { temperature, plain, speculative, difference, interval, .. } = score;
        for row in report.kinds.iter().filter(|row| row.temperature == *temperature) {
            writeln!(
                out,
                "{:<14} {temperature:>4} {:>8} {:>7.1} % {:>10.1} %",
                row.kind,
                row.prompts,
                100.0 * row.plain,
                100.0 * row.speculative
            )?;
        }
        writeln!(
            out,
            "{:<14} {temperature:>4} {checked:>8} {:>7.1} % {:>10.1} %   {:+.2} ({:+.2} to {:+.2})",
            "all",
            100.0 * plain,
            100.0 * speculative,
            100.0 * difference,
            100.0 * interval.0,
            100.0 * interval.1
        )?;
        if let Some(Outputs { equal, ties, different }) = &score.outputs {
            writeln!(
                out,
                "temperature 0: {equal} of {} outputs equal plain decoding's, {ties} differ at a \
                 tie within rounding, {different} differ",
                equal + ties + different
            )?;
        }
    }
    if report.skipped > 0 {
        note(format_args!("{} prompts have no answer that can be checked", report.skipped));
    }
    Ok(())
}
