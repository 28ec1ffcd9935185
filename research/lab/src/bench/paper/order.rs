//! An order that a paper's figures have, and what ours say of it.

use serde::{Deserialize, Serialize};

use super::theirs::Value;

/// Two figures of theirs, the larger one first, or what their text says of two; and ours.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// The number of the source.
    pub source: usize,
    /// Row and column of the larger figure, and of the smaller one.
    pub more: (String, String),
    pub less: (String, String),
    /// Their difference, above 0; none where only the text states the order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub theirs: Option<f64>,
    /// Ours, with its standard error.
    pub ours: Value,
    pub verdict: Verdict,
}

impl Order {
    /// Their difference, in words where it has no number.
    pub fn by(&self) -> String {
        self.theirs.map_or_else(|| "its text".to_owned(), short)
    }
}

/// As published: without zeros at the end that nobody printed.
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
        // One sequence tells nothing.
        let Some(error) = difference.error else { return Self::Undecided };
        // Rounding is no difference.
        let within = (2.0 * error).max(1e-9);
        match difference.value {
            value if value > within => Self::Reproduced,
            value if value < -within => Self::Contradicted,
            _ => Self::Undecided,
        }
    }
}

/// Which figures of a table are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compares {
    /// None: the values of one sequence are not known.
    #[default]
    Nothing,
    /// Columns of one row.
    Columns,
    /// Columns of one row, and each row of a column with the next one that differs in one part of
    /// its name.
    Rows,
}
