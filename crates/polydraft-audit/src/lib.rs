//! Is the speculative decoding of a server lossless? Asked over the interface that nearly all of
//! them have, OpenAI's.
//!
//! A server that speculates promises the model's own distribution. [`audit`] tests that promise
//! from outside: what comes after the first token of an answer is compared with what the model
//! says of it in requests of one token, in which no draft has a part. Every bet against the server
//! is fair if the server is right, so that no number of looks makes a lossless server look lossy
//! more often than was said beforehand; docs/audit.md has the proofs.

mod answer;
mod checks;
mod client;
mod error;
mod evidence;
mod html;
mod journal;
mod lab;
mod plan;
mod probe;
mod prompts;
mod report;
mod server;
mod setting;
mod speculation;

use std::path::PathBuf;
use std::time::Duration;

pub use checks::names;
pub use error::{Error, Result};
pub use html::page;
pub use plan::audit;
pub use report::{Evidence, Finding, Outcome, Report, Verdict, format_p_value, format_percent};

/// A server's address, and how it is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// `http://host:port`, with or without `/v1`.
    pub url: String,
    /// The model's name there; none for the only one.
    pub model: Option<String>,
    /// Sent as a bearer token.
    pub key: Option<String>,
}

/// What is to be audited, and how far it goes.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The server.
    pub server: Address,
    /// The same model without speculation.
    pub reference: Option<Address>,
    /// The checks that are made, by name; all if there are none.
    pub checks: Vec<String>,
    /// Requests at most.
    pub requests: usize,
    /// Time at most.
    pub time: Option<Duration>,
    /// Requests at a time.
    pub connections: usize,
    /// The probability at most that a lossless server is accused, by all checks together.
    pub error_rate: f64,
    /// The error, in total variation at every token, that the main check is to find in 19 of 20
    /// audits.
    pub sensitivity: f64,
    /// Differences in total variation up to this are taken for arithmetic.
    pub tolerance: f64,
    /// Where answers are kept, so that the audit can go on.
    pub save: Option<PathBuf>,
    /// Of the audit's own decisions.
    pub seed: u64,
}

impl Options {
    /// The defaults for a server.
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

/// Is told how an audit gets on.
pub trait Listener: Sync {
    /// So many of the checks are done; requests so far, and what is looked at.
    fn progress(&self, done: usize, total: usize, requests: usize, check: &str) {
        let _ = (done, total, requests, check);
    }

    /// A check is done.
    fn found(&self, finding: &Finding) {
        let _ = finding;
    }

    /// Something worth knowing.
    fn note(&self, text: &str) {
        let _ = text;
    }

    /// Whether somebody wants it to end.
    fn is_stopped(&self) -> bool {
        false
    }
}

/// Nobody is told anything.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Listener for Silent {}
