//! Why Global Resolution gave up.

use polydraft::Error;

use super::NAME;

/// Why there is no solution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GaveUp {
    /// A truncated problem would need more tokens than the limit.
    TooManyTokens {
        /// Which system, outer or inner.
        system: &'static str,
        /// Tokens that would leave out no more than τ.
        needed: usize,
        /// The largest number allowed.
        limit: usize,
    },
    /// L-BFGS ended above the threshold.
    NotConverged {
        /// Which system, outer or inner.
        system: &'static str,
        /// L1 norm of the gradient at the end.
        gradient: f64,
        /// 5τ.
        threshold: f64,
        /// Iterations made.
        iterations: usize,
    },
    /// The time limit passed.
    OutOfTime {
        /// Which system, outer or inner.
        system: &'static str,
        /// The limit.
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
    /// This as an error.
    pub fn error(&self) -> Error {
        Error::Solver { operation: NAME, got: self.to_string() }
    }
}
