//! What an audit found, as data.

use serde::Serialize;

/// What a check came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Nothing was found that a lossless server would not do.
    Passed,
    /// Something that a lossless server does not do, or so seldom as the error rate says.
    Fault,
    /// Too little was seen to say.
    NotEnoughData,
    /// The server cannot be asked for it.
    NotApplicable,
}

/// A request that shows something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// What its answers show.
    pub what: String,
    /// The request, as a command line.
    pub curl: String,
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// What it came to.
    pub verdict: Verdict,
    /// The probability of as much evidence against a lossless server, however long one looks; none
    /// where nothing is random.
    pub p_value: Option<f64>,
    /// The smallest error, in total variation at every token, that it would have found in 19 of 20
    /// audits.
    pub would_find: Option<f64>,
    /// Tokens, answers or pairs that were looked at.
    pub seen: usize,
    /// What was seen, in a sentence.
    pub summary: String,
    /// Requests that show a fault.
    pub evidence: Vec<Evidence>,
}

impl Outcome {
    /// A check in which nothing is random.
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

    /// A check for which the server lacks something.
    pub fn not_applicable(why: impl Into<String>) -> Self {
        Self::certain(Verdict::NotApplicable, 0, why)
    }
}

/// A check and what it found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// Its name.
    pub check: &'static str,
    /// What it looks at.
    pub title: String,
    /// What it found.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Requests that it took.
    pub requests: usize,
    /// Seconds that it took.
    pub seconds: f64,
}

/// All that was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The server's address.
    pub url: String,
    /// The model's name there.
    pub model: String,
    /// What is known of the server.
    pub server: String,
    /// How the truth was known.
    pub truth: String,
    /// What it came to: a fault if any check found one.
    pub verdict: Verdict,
    /// The probability that a lossless server is accused, by all checks together.
    pub error_rate: f64,
    /// Differences in total variation that are taken for arithmetic.
    pub tolerance: f64,
    /// What is known of speculation on the server.
    pub speculation: String,
    /// Why it ended early, if it did.
    pub cut_short: Option<String>,
    /// By check.
    pub findings: Vec<Finding>,
    /// Requests in all.
    pub requests: usize,
    /// Seconds in all.
    pub seconds: f64,
    /// When it was made: seconds since 1970.
    pub date: u64,
    /// The version that made it.
    pub version: &'static str,
    /// The seed of the audit's own decisions.
    pub seed: u64,
}

impl Report {
    /// 0: lossless as far as tested; 1: a fault; 3: not enough data.
    pub fn exit_code(&self) -> u8 {
        match self.verdict {
            Verdict::Passed => 0,
            Verdict::Fault => 1,
            Verdict::NotEnoughData | Verdict::NotApplicable => 3,
        }
    }
}

/// A p-value, however small.
pub fn format_p_value(p: f64) -> String {
    match p {
        ..1e-300 => "p < 1e-300".to_owned(),
        ..1e-3 => format!("p = {p:.0e}"),
        _ => format!("p = {p:.2}"),
    }
}

/// A share as per cent, without digits that say nothing.
pub fn format_percent(share: f64) -> String {
    let text = format!("{:.1}", 100.0 * share);
    format!("{} %", text.strip_suffix(".0").unwrap_or(&text))
}
