//! The ways to decode that are compared.

use anyhow::Result;
use polydraft::{PolicyKind, Sampling};
use polydraft_engine::Statistics;
use polydraft_reference::VerifierKind;

use super::Args;
use crate::output::Usage;
use crate::speculation::{Speculation, supports};
use crate::texts::Settings;

/// One way to decode.
pub struct Way {
    pub sampling: Sampling,
    pub speculation: Option<Speculation>,
    pub rounds: Vec<Round>,
}

/// Sums over the prompts of one round.
#[derive(Default)]
pub struct Round {
    pub seconds: f64,
    pub tokens: usize,
    pub calls: usize,
    pub nodes: usize,
    pub draft: f64,
    pub target: f64,
    pub verify: f64,
}

impl Round {
    pub fn speed(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }

    pub fn block_efficiency(&self) -> f64 {
        self.tokens as f64 / self.calls as f64
    }
}

impl Way {
    pub fn verifier(&self) -> String {
        self.speculation.as_ref().map_or("none".to_owned(), |s| s.verifier.to_string())
    }

    /// (paths, depth), if it speculates.
    pub fn paths_and_depth(&self) -> Option<(usize, usize)> {
        self.speculation.as_ref().and_then(|s| match &s.tree {
            PolicyKind::Paths(paths) => Some((paths.paths, paths.depth)),
            _ => None,
        })
    }

    pub fn name(&self) -> String {
        let tree = self.paths_and_depth().map_or(String::new(), |(k, l)| format!(", K = {k}, L = {l}"));
        format!("{}{tree}", self.verifier())
    }

    pub fn settings(&self) -> Settings {
        Settings { sampling: self.sampling, speculation: self.speculation.clone() }
    }

    pub fn begin_round(&mut self) {
        self.rounds.push(Round::default());
    }

    /// Forgets the current round.
    pub fn drop_round(&mut self) {
        self.rounds.pop();
    }

    /// Adds one text to the current round.
    pub fn add(&mut self, s: &Statistics) {
        if let Some(round) = self.rounds.last_mut() {
            round.seconds += s.total_time.as_secs_f64();
            round.tokens += s.tokens;
            round.calls += s.target_calls;
            round.nodes += s.nodes;
            round.draft += s.draft_time.as_secs_f64();
            round.target += s.target_time.as_secs_f64();
            round.verify += s.verify_time.as_secs_f64();
        }
    }
}

/// Plain decoding and all verifiers × paths × depths, at each temperature; verifiers of one path with one.
pub fn ways(args: &Args) -> Result<Vec<Way>> {
    let mut ways = Vec::new();
    for &temperature in &args.temperatures {
        let sampling = Sampling { temperature, ..Sampling::default() };
        ways.push(Way { sampling, speculation: None, rounds: Vec::new() });
        for &depth in &args.depths {
            for verifier in &args.verifiers {
                let mut trees: Vec<PolicyKind> =
                    args.paths.iter().map(|&paths| tree(verifier, paths as usize, depth as usize)).collect();
                trees.dedup();
                for tree in trees {
                    let speculation = Speculation { verifier: verifier.clone(), tree, sampling };
                    speculation.build().map_err(Usage::error)?;
                    ways.push(Way { sampling, speculation: Some(speculation), rounds: Vec::new() });
                }
            }
        }
    }
    Ok(ways)
}

fn tree(verifier: &VerifierKind, paths: usize, depth: usize) -> PolicyKind {
    let several = PolicyKind::paths(paths, depth);
    if supports(verifier, &several) { several } else { PolicyKind::chain(depth) }
}
