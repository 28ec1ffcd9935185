//! Reasons why Global Resolution gives up.

use polydraft::Error;

use super::NAME;

/// Reason why a system has no solution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GaveUp {
    /// The truncated problem needs more tokens than the limit.
    TooManyTokens {
        /// Name of the system, outer or inner.
        system: &'static str,
        /// Number of tokens needed to omit at most τ.
        needed: usize,
        /// Maximum number of tokens.
        limit: usize,
    },
    /// L-BFGS ended with a gradient above the threshold.
    NotConverged {
        /// Name of the system, outer or inner.
        system: &'static str,
        /// L1 norm of the gradient at the end.
        gradient: f64,
        /// Threshold, 5τ.
        threshold: f64,
        /// Number of iterations.
        iterations: usize,
    },
    /// The time limit was reached.
    OutOfTime {
        /// Name of the system, outer or inner.
        system: &'static str,
        /// Time limit.
        seconds: f64,
    },
}

impl std::fmt::Display for GaveUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooManyTokens { system, needed, limit } => {
                write!(f, "its {system} system needs {needed} tokens, the limit is {limit}")
            }
            Self::OutOfTime { system, seconds } => {
                write!(f, "its {system} system is not solved within {seconds} s (setting seconds)")
            }
            Self::NotConverged { system, gradient, threshold, iterations } => write!(
                f,
                "the gradient of its {system} system is {gradient:.1e} after {iterations} \
                 iterations, above {threshold:.1e}"
            ),
        }
    }
}

impl GaveUp {
    /// Converts the reason to an error.
    pub fn error(&self) -> Error {
        Error::Solver { operation: NAME, got: self.to_string() }
    }
}
