//! Audit of speculative decoding over OpenAI's interface: is a server's output lossless?
//!
//! A server that speculates promises the model's own distribution. [`audit`] tests that promise
//! from outside: the tokens after the first one of an answer are compared with the model's
//! distributions from requests of one token, which involve no draft. Every bet against the server
//! is fair if the server is lossless, so that no number of looks raises the rate of false alarms
//! above the one that was chosen; docs/audit.md has the proofs.

mod answer;
mod checks;
mod client;
mod error;
mod evidence;
mod html;
mod journal;
mod plan;
mod probe;
mod prompts;
mod report;
mod server;
mod setting;
mod speculation;
mod state;

use std::path::PathBuf;
use std::time::Duration;

pub use checks::names;
pub use error::{Error, Result};
pub use html::page;
pub use plan::audit;
pub use report::{Evidence, Finding, Outcome, Report, Verdict, format_p_value, format_percent};

/// Address of a server, with model and key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// `http://host:port`, with or without `/v1`.
    pub url: String,
    /// Name of the model there; `None` if it has only one.
    pub model: Option<String>,
    /// Bearer token.
    pub key: Option<String>,
}

/// Scope and limits of an audit.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Tested server.
    pub server: Address,
    /// Reference: the same model without speculation.
    pub reference: Option<Address>,
    /// Names of the checks; empty for all.
    pub checks: Vec<String>,
    /// Maximum number of requests.
    pub requests: usize,
    /// Time limit.
    pub time: Option<Duration>,
    /// Maximum number of concurrent requests.
    pub connections: usize,
    /// Maximum probability that a lossless server fails, over all checks.
    pub error_rate: f64,
    /// Error, in total variation at every token, that the main check finds in 19 of 20 audits.
    pub sensitivity: f64,
    /// Total variation attributed to arithmetic.
    pub tolerance: f64,
    /// File in which answers are saved, so that the audit can be resumed.
    pub save: Option<PathBuf>,
    /// Seed of the audit's own random choices.
    pub seed: u64,
}

impl Options {
    /// Creates the default options for a server.
    pub fn new(server: Address) -> Self {
        Self {
            server,
            reference: None,
            checks: Vec::new(),
            requests: 20_000,
            time: None,
            connections: 8,
            error_rate: 1e-3,
            sensitivity: 0.03,
            tolerance: 2e-3,
            save: None,
            seed: 0,
        }
    }
}

/// Receiver of progress reports.
pub trait Listener: Sync {
    /// Reports progress: completed checks of `total`, requests so far, and the current check.
    fn progress(&self, done: usize, total: usize, requests: usize, check: &str) {
        let _ = (done, total, requests, check);
    }

    /// Reports the finding of a completed check.
    fn found(&self, finding: &Finding) {
        let _ = finding;
    }

    /// Reports a remark.
    fn note(&self, text: &str) {
        let _ = text;
    }

    /// Returns whether the audit should stop.
    fn is_stopped(&self) -> bool {
        false
    }
}

/// Listener that ignores all reports.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Listener for Silent {}
