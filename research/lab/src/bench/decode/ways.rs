//! The decoding methods that are compared.

use anyhow::Result;
use polydraft::VerifierKind;
use polydraft::policy::{Costs, StepContext};
use polydraft::{PolicyKind, Sampling};
use polydraft_cli::usage::UsageError;
use polydraft_engine::Statistics;
use polydraft_runtime::{Settings, Speculation};

use super::Args;

/// A decoding method.
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
    /// Creates plain decoding, without drafts.
    pub fn plain(sampling: Sampling) -> Self {
        Self { sampling, speculation: None, rounds: Vec::new() }
    }

    pub fn verifier(&self) -> String {
        self.speculation.as_ref().map_or("none".to_owned(), |s| s.verifier.to_string())
    }

    /// Returns the numbers of paths and of tokens per path, if the method speculates with paths.
    pub fn paths_and_depth(&self) -> Option<(usize, usize)> {
        self.speculation.as_ref().and_then(|s| match &s.tree {
            PolicyKind::Paths(paths) => Some((paths.paths, paths.depth)),
            _ => None,
        })
    }

    /// Returns the tree, if it does not consist of paths.
    pub fn tree(&self) -> Option<String> {
        self.speculation.as_ref().and_then(|s| match &s.tree {
            PolicyKind::Paths(_) => None,
            PolicyKind::Auto(_) => Some("auto".to_owned()),
            tree => Some(tree.to_string()),
        })
    }

    pub fn name(&self) -> String {
        let tree = match (self.paths_and_depth(), self.tree()) {
            (Some((k, l)), _) => format!(", K = {k}, L = {l}"),
            (None, Some(tree)) => format!(", {tree}"),
            (None, None) => String::new(),
        };
        format!("{}{tree}", self.verifier())
    }

    /// Returns the seconds of a step whose tree has `nodes` nodes, according to the costs: a
    /// forward pass of the draft per level, then one of the target. `None` for adaptive draft
    /// lengths, whose levels are unknown.
    pub fn seconds_of_a_step(&self, nodes: f64, costs: &Costs) -> Option<f64> {
        let empty = StepContext::default();
        let Some(speculation) = &self.speculation else {
            return Some(costs.target.seconds(1, &empty));
        };
        if speculation.tree.clone().auto_mut().is_some() {
            return None;
        }
        let depth = speculation.tree.build().ok()?.depth();
        // The first level is drawn from one token's distribution, the others from those of the
        // previous level's nodes; levels are assumed to be of equal size.
        let level = (nodes / depth as f64).max(1.0).round() as usize;
        let levels = (depth - 1) as f64 * costs.draft.seconds(level, &empty);
        let draft = costs.first + costs.draft.seconds(1, &empty) + levels;
        Some(draft + costs.target.seconds(1 + nodes.round() as usize, &empty))
    }

    pub fn settings(&self) -> Settings {
        Settings { sampling: self.sampling, speculation: self.speculation.clone() }
    }

    pub fn begin_round(&mut self) {
        self.rounds.push(Round::default());
    }

    /// Discards the current round.
    pub fn drop_round(&mut self) {
        self.rounds.pop();
    }

    /// Adds one sequence to the current round.
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

/// Creates a method with these drafts.
///
/// # Errors
/// A verifier that is not exact for the tree.
pub fn way(verifier: &VerifierKind, tree: PolicyKind, sampling: Sampling) -> Result<Way> {
    let speculation = Speculation::new(verifier.clone(), tree, sampling);
    speculation.build().map_err(UsageError::error)?;
    Ok(Way { sampling, speculation: Some(speculation), rounds: Vec::new() })
}

/// Returns plain decoding and all combinations of verifiers, paths and depths at each temperature.
/// Single-path verifiers run with one path. Adds the trees given by --tree, each with the verifiers
/// that are exact for it.
pub fn ways(args: &Args) -> Result<Vec<Way>> {
    let mut ways = Vec::new();
    for &temperature in &args.grid.temperatures {
        let sampling = args.cut.at(temperature)?;
        ways.push(Way::plain(sampling));
        for depth in args.grid.depths(&[2, 4]) {
            for verifier in &args.verifiers {
                let mut trees: Vec<PolicyKind> = args
                    .grid
                    .paths(&[2])
                    .into_iter()
                    .map(|paths| tree(verifier, paths, depth))
                    .collect();
                trees.dedup();
                for tree in trees {
                    ways.push(way(verifier, tree, sampling)?);
                }
            }
        }
        for tree in &args.grid.trees {
            for verifier in args.verifiers.iter().filter(|verifier| tree.is_supported_by(verifier))
            {
                ways.push(way(verifier, tree.clone(), sampling)?);
            }
        }
    }
    Ok(ways)
}

fn tree(verifier: &VerifierKind, paths: usize, depth: usize) -> PolicyKind {
    let several = PolicyKind::paths(paths, depth);
    if several.is_supported_by(verifier) { several } else { PolicyKind::chain(depth) }
}
