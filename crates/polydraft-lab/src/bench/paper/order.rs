//! An order that a paper's figures have, and what ours say of it.

use serde::{Deserialize, Serialize};

use super::theirs::Value;

/// Two figures of theirs, the larger one first, and ours.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// The number of the source.
    pub source: usize,
    /// Row and column of the larger figure, and of the smaller one.
    pub more: (String, String),
    pub less: (String, String),
    /// Their difference, above 0.
    pub theirs: f64,
    /// Ours, with its standard error.
    pub ours: Value,
    pub verdict: Verdict,
}

/// What our difference says about an order, at two standard errors.
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

    pub fn of(difference: Value) -> Self {
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
