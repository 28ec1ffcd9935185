//! Comparison of our results with the order of two values in a paper.

use serde::{Deserialize, Serialize};

use super::theirs::Value;

/// Two values of a paper, the larger one first, or an order stated in its text; and our difference.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// Index of the source.
    pub source: usize,
    /// Row and column of the larger value, and of the smaller one.
    pub more: (String, String),
    pub less: (String, String),
    /// Difference of the paper's values, above 0; `None` if only the text states the order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub theirs: Option<f64>,
    /// Our difference, with its standard error.
    pub ours: Value,
    pub verdict: Verdict,
}

impl Order {
    /// Formats the paper's difference, or describes an order without values.
    pub fn by(&self) -> String {
        self.theirs.map_or_else(|| "its text".to_owned(), short)
    }
}

/// Formats a value without trailing zeros.
pub fn short(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Agreement of our difference with an order in a paper, at two standard errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    Reproduced,
    Contradicted,
    Undecided,
}

impl Verdict {
    pub fn name(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::Contradicted => "contradicted",
            Self::Undecided => "undecided",
        }
    }

    pub fn from_difference(difference: Value) -> Self {
        // A single sequence has no standard error.
        let Some(error) = difference.error else { return Self::Undecided };
        // Differences below 1e-9 are rounding errors.
        let within = (2.0 * error).max(1e-9);
        match difference.value {
            value if value > within => Self::Reproduced,
            value if value < -within => Self::Contradicted,
            _ => Self::Undecided,
        }
    }
}

/// Choice of the values that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compares {
    /// No comparison: the values by sequence are not known.
    #[default]
    Nothing,
    /// Columns of one row.
    Columns,
    /// Columns of one row; and rows of one column, each with the next row whose name differs in one
    /// component.
    Rows,
}
