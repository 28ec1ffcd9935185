//! Report of an audit.

use serde::Serialize;

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The observations are consistent with a lossless server.
    Passed,
    /// Behaviour that a lossless server never shows, or no more often than the error rate.
    Fault,
    /// The server takes a setting and ignores it, in the first token of an answer too, in which
    /// drafts play no part: not a fault of speculation.
    Ignored,
    /// Too few observations for a verdict.
    NotEnoughData,
    /// The server lacks a capability that the check needs.
    NotApplicable,
}

impl Verdict {
    /// Returns whether requests show the reason of the verdict.
    pub(crate) fn has_evidence(self) -> bool {
        matches!(self, Self::Fault | Self::Ignored)
    }
}

/// Request that shows a fault, or that a setting is ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// Explanation of what its answers show.
    pub what: String,
    /// The request, as a command line.
    pub curl: String,
}

/// Result of a check with its data.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Verdict.
    pub verdict: Verdict,
    /// Probability that a lossless server ever shows this much evidence, at any number of
    /// observations; `None` for deterministic checks.
    pub p_value: Option<f64>,
    /// Smallest error, in total variation at every token, that the check would have found in 19 of
    /// 20 audits.
    pub would_find: Option<f64>,
    /// Number of observed tokens, answers or pairs.
    pub seen: usize,
    /// Summary of the observations, in a sentence.
    pub summary: String,
    /// Requests that show a fault.
    pub evidence: Vec<Evidence>,
}

impl Outcome {
    /// Creates the outcome of a deterministic check.
    pub fn certain(verdict: Verdict, seen: usize, summary: impl Into<String>) -> Self {
        Self {
            verdict,
            p_value: None,
            would_find: None,
            seen,
            summary: summary.into(),
            evidence: Vec::new(),
        }
    }

    /// Creates the outcome of a check that needs a capability that the server lacks.
    pub fn not_applicable(why: impl Into<String>) -> Self {
        Self::certain(Verdict::NotApplicable, 0, why)
    }
}

/// A check and its outcome.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// Name of the check.
    pub check: &'static str,
    /// Tested property.
    pub title: String,
    /// Outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Number of requests of the check.
    pub requests: usize,
    /// Duration in seconds.
    pub seconds: f64,
}

/// Result of an audit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Address of the server.
    pub url: String,
    /// Name of the model there.
    pub model: String,
    /// Detected interface of the server.
    pub server: String,
    /// Origin of the distributions that are taken as correct.
    pub truth: String,
    /// Verdict: a fault if any check found one. Ignored settings do not count.
    pub verdict: Verdict,
    /// Maximum probability that a lossless server fails, over all checks.
    pub error_rate: f64,
    /// Total variation attributed to arithmetic.
    pub tolerance: f64,
    /// Speculation statistics of the server.
    pub speculation: String,
    /// Reason for an early end.
    pub cut_short: Option<String>,
    /// Findings by check.
    pub findings: Vec<Finding>,
    /// Total number of requests.
    pub requests: usize,
    /// Total duration in seconds.
    pub seconds: f64,
    /// Start time, in seconds since 1970.
    pub date: u64,
    /// Version of polydraft.
    pub version: &'static str,
    /// Seed of the audit's own random choices.
    pub seed: u64,
}

impl Report {
    /// Returns the names of the checks whose setting the server ignores.
    pub fn ignored(&self) -> Vec<&'static str> {
        let ignored = self.findings.iter().filter(|f| f.outcome.verdict == Verdict::Ignored);
        ignored.map(|finding| finding.check).collect()
    }

    /// Returns the exit code: 0 for lossless as far as tested, 1 for a fault, 3 for not enough
    /// data.
    pub fn exit_code(&self) -> u8 {
        match self.verdict {
            Verdict::Passed => 0,
            Verdict::Fault => 1,
            Verdict::NotEnoughData | Verdict::NotApplicable | Verdict::Ignored => 3,
        }
    }
}

/// Formats a p-value, however small.
pub fn format_p_value(p: f64) -> String {
    match p {
        ..1e-300 => "p < 1e-300".to_owned(),
        ..1e-3 => format!("p = {p:.0e}"),
        _ => format!("p = {p:.2}"),
    }
}

/// How often the most probable token was emitted among `tokens` tokens, and how often it should be:
/// shares below one per cent with the digits that tell them apart.
pub(crate) fn emitted(seen: f64, expected: f64, tokens: usize) -> String {
    let (seen, expected) = (100.0 * seen, 100.0 * expected);
    let [seen, expected] = [seen, expected].map(|part| part / tokens.max(1) as f64);
    let digits = if seen.max(expected) < 1.0 { 3 } else { 1 };
    format!(
        "the most probable token was emitted {seen:.digits$} % of the time, expected \
         {expected:.digits$} %"
    )
}

/// Formats a share in per cent, without a trailing `.0`.
pub fn format_percent(share: f64) -> String {
    let text = format!("{:.1}", 100.0 * share);
    format!("{} %", text.strip_suffix(".0").unwrap_or(&text))
}
