//! Options of the verifier and of the tree of drafts.

use std::any::TypeId;
use std::path::PathBuf;

use clap::{Arg, Args, Command};
use polydraft::coupling::registry::RuleRegistry;
use polydraft::{Drafting, VerifierKind};
use polydraft_runtime::{SpeculationOptions, TreeName};

/// Options for the verifier and the draft tree.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Speculation")]
pub struct SpeculationArgs {
    /// Verifier, all lossless: nested-priority, block, ... ('polydraft list').
    ///
    /// For one path: token, block. For several: nested-priority (the best), greedy-block,
    /// pooled, traversal, priority-block, spectr, specinfer, or walk:RULE with any rule of
    /// 'polydraft list'. With 'invariant' the output for a seed is the same for every draft and
    /// tree, at some loss of acceptance. 'none' decodes without speculation.
    ///
    /// [default: nested-priority, or the best that is exact for --tree]
    #[arg(long, value_name = "NAME", value_parser = verifier)]
    verifier: Option<VerifierName>,
    /// Number of paths drafted per target pass.
    ///
    /// [default: chosen by --tree auto; with --depth, 2, or 1 for verifiers of one path]
    #[arg(
        long,
        short = 'k',
        value_name = "K",
        value_parser = clap::value_parser!(u32).range(1..=1024),
    )]
    paths: Option<u32>,
    /// Tokens per path, or levels of a k-ary or sequoia tree.
    ///
    /// [default: chosen by --tree auto; 3 with --paths]
    #[arg(
        long,
        short = 'd',
        value_name = "L",
        value_parser = clap::value_parser!(u32).range(1..=256),
    )]
    depth: Option<u32>,
    /// Shape of the draft tree: auto, paths:K,L, 3,2,1, ... ('polydraft list').
    ///
    /// 'auto' drafts one path, whose length it chooses before each step and at each token for the
    /// most tokens per second; where drafting does not pay, it decodes without a draft. 'auto:L'
    /// drafts at most L tokens. 'paths:K,L' draws K paths of L tokens, 'delayed:L1,K,L2' one path
    /// of L1 tokens and K of L2 from its end. '3,2,1' gives the number of draws at each node of a
    /// level, 'binary' or '3-ary' the same number at every node; 'budget:2,1.5' draws until that
    /// many distinct tokens are expected at each level. 'sequoia:N' is the best tree of N nodes for
    /// --acceptance. 'stop-below:P,TREE' is --stop-below P for a tree.
    #[arg(long, value_name = "TREE")]
    tree: Option<TreeName>,
    /// End a path where its expected acceptance falls below P (0 to 1).
    ///
    /// The expected acceptance of a path is the product of the expected acceptances of its tokens,
    /// which are estimated from the draft's confidence. --tree sets the maximum length.
    #[arg(hide_short_help = true, long, value_name = "P")]
    stop_below: Option<f64>,
    /// How tokens are drawn at a node of --tree: iid, without-replacement, greedy, hub or top-k.
    ///
    /// [default: the first of these that the verifier supports]
    #[arg(hide_short_help = true, long, value_name = "SCHEME", requires = "tree")]
    drafting: Option<Drafting>,
    /// File with the acceptance of the first, second, ... draft, for sequoia trees.
    ///
    /// A JSON object such as {"acceptance": [0.6, 0.15, 0.05]}. [default: the measured values of
    /// the demo pair if no model is named]
    #[arg(hide_short_help = true, long, value_name = "FILE", requires = "tree")]
    acceptance: Option<PathBuf>,
    /// File with the costs of passes, for --tree auto; written if it is missing.
    ///
    /// Costs are measured only to write this file. [default: estimated; corrected by the times of
    /// outputs without a seed]
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    costs: Option<PathBuf>,
}

/// Verifier, or `None` for plain decoding.
#[derive(Debug, Clone)]
struct VerifierName(Option<VerifierKind>);

fn verifier(name: &str) -> Result<VerifierName, String> {
    named_verifier(name, &RuleRegistry::built_in())
}

fn named_verifier(name: &str, rules: &RuleRegistry) -> Result<VerifierName, String> {
    match name {
        "none" => Ok(VerifierName(None)),
        _ => match VerifierKind::parse_with(name, rules) {
            Ok(kind) => Ok(VerifierName(Some(kind))),
            Err(error) => Err(format!("{error}; or none")),
        },
    }
}

/// Lets [`SpeculationArgs`] of a command and its subcommands name walks by these rules.
pub fn with_rules(command: Command, rules: &RuleRegistry) -> Command {
    let parser = rules.clone();
    let parse = move |name: &str| named_verifier(name, &parser);
    let takes = |argument: Arg| {
        let names_verifiers = argument.get_value_parser().type_id() == TypeId::of::<VerifierName>();
        if names_verifiers { argument.value_parser(parse.clone()) } else { argument }
    };
    command.mut_args(takes).mut_subcommands(|inner| with_rules(inner, rules))
}

impl SpeculationArgs {
    /// Returns the options as a description.
    pub fn options(&self) -> SpeculationOptions {
        let default = SpeculationOptions::default();
        SpeculationOptions {
            verifier: self.verifier.clone().map_or(default.verifier, |named| named.0),
            verifier_by_tree: self.verifier.is_none(),
            paths: self.paths,
            depth: self.depth,
            tree: self.tree.clone(),
            stop_below: self.stop_below,
            drafting: self.drafting,
            acceptance: self.acceptance.clone(),
            costs: self.costs.clone(),
        }
    }
}
