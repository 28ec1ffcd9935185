//! Options of the verifier and of the tree of drafts.

use std::any::TypeId;
use std::path::PathBuf;

use clap::{Arg, Args, Command};
use polydraft::coupling::registry::RuleRegistry;
use polydraft::{Drafting, VerifierKind};
use polydraft_runtime::{SpeculationOptions, TreeName};

/// How drafts are made and verified.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Speculation")]
pub struct SpeculationArgs {
    /// The verifier; all are lossless. One path: token, block. Several: nested-priority (the best),
    /// greedy-block, traversal, priority-block, spectr, specinfer, walk:RULE with any rule of
    /// 'list'. 'invariant' gives for a seed the same output with every draft and tree, and accepts
    /// less. 'none' is plain decoding.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "nested-priority",
        value_parser = verifier,
    )]
    verifier: VerifierName,
    /// Paths drafted per pass of the target [default: as --tree auto finds best; 2 where --depth is
    /// given, 1 for a verifier of one path].
    #[arg(
        long,
        short = 'k',
        value_name = "K",
        value_parser = clap::value_parser!(u32).range(1..=1024),
    )]
    paths: Option<u32>,
    /// Tokens of each path, or levels of a k-ary or sequoia tree [default: as --tree auto finds
    /// best; 3 where --paths is given].
    #[arg(
        long,
        short = 'd',
        value_name = "L",
        value_parser = clap::value_parser!(u32).range(1..=256),
    )]
    depth: Option<u32>,
    /// Where the tree branches: 'auto' drafts one path, before each step and at each token as long
    /// as gives the most tokens per second, plain decoding included; 'auto:L' at most L tokens;
    /// 'paths:K,L' is --paths and --depth in one, 'delayed:L1,K,L2' one path of L1 tokens and then
    /// K of L2, '3,2,1' draws so many tokens at each node of a level, 'binary' or '3-ary' as many
    /// at every node, 'budget:2,1.5' as many as give so many distinct ones, 'sequoia:N' is the best
    /// tree of N nodes for --acceptance.
    #[arg(long, value_name = "TREE")]
    tree: Option<TreeName>,
    /// End a path where the product of the expected acceptances along it falls below this, from 0
    /// to 1: they are estimated from the draft's confidence in each token. With --depth as the
    /// maximum.
    #[arg(long, value_name = "P")]
    stop_below: Option<f64>,
    /// How tokens are drawn at a node of --tree: iid, without-replacement, greedy, hub, top-k
    /// [default: the first of these that the verifier supports].
    #[arg(long, value_name = "SCHEME", requires = "tree")]
    drafting: Option<Drafting>,
    /// Acceptances of first, second, .. drafts for a sequoia tree, as 'polydraft-lab bench
    /// acceptance --save' writes them [default: those of the demo pair where no model is named].
    #[arg(long, value_name = "FILE", requires = "tree")]
    acceptance: Option<PathBuf>,
    /// Costs of passes, for --tree auto: a file that is read, or written if there is none [default:
    /// measured once for a pair of models, and stored in the user's cache folder].
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
}

/// A verifier, or none.
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

/// Lets [`SpeculationArgs`] of a command, and of its subcommands, name walks by these rules.
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
    /// The options as a description.
    pub fn options(&self) -> SpeculationOptions {
        SpeculationOptions {
            verifier: self.verifier.0.clone(),
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
