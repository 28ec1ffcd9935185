//! Decisions of verifiers.

use polydraft::{Draft, NodeId, Outcome, Token};
use pyo3::prelude::*;

/// Decision of a verifier: the `accepted` nodes from a child of the root downwards, one more
/// `token`, and both as the `tokens` to emit.
#[pyclass(name = "Outcome", module = "polydraft", frozen)]
pub struct PyOutcome {
    pub outcome: Outcome,
    tokens: Vec<Token>,
}

impl PyOutcome {
    /// Joins what was decided with the tokens of the draft.
    pub fn new(draft: &Draft, outcome: Outcome) -> Self {
        let accepted = outcome.accepted.iter().map(|&node| draft.tree().token(node));
        let tokens = accepted.chain([outcome.token]).collect();
        Self { outcome, tokens }
    }
}

#[pymethods]
impl PyOutcome {
    /// Node numbers; may be empty.
    #[getter]
    fn accepted(&self) -> Vec<NodeId> {
        self.outcome.accepted.clone()
    }

    /// The token after the accepted ones.
    #[getter]
    fn token(&self) -> Token {
        self.outcome.token
    }

    /// All tokens to emit: those of the accepted nodes, and one more.
    #[getter]
    fn tokens(&self) -> Vec<Token> {
        self.tokens.clone()
    }

    fn __repr__(&self) -> String {
        format!("Outcome(accepted={:?}, token={})", self.outcome.accepted, self.outcome.token)
    }
}
