//! `polydraft list`: names of option values.

use std::io::Write;

use anyhow::Result;
use serde::Serialize;

use crate::output;

/// List verifiers, token-level rules and trees with a short description of each.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print one JSON object of lists.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Entry {
    name: &'static str,
    about: &'static str,
}

#[derive(Serialize)]
struct Lists {
    verifiers: Vec<Entry>,
    rules: Vec<Entry>,
    trees: Vec<Entry>,
}

/// Verifiers with descriptions.
pub const VERIFIERS: [(&str, &str); 17] = [
    (
        "nested-priority",
        "the path of highest priority, verified as a block; any tree of i.i.d. draws; the default",
    ),
    ("greedy-block", "the path of highest ratios, verified as a block (GBV); any number of paths"),
    (
        "pooled",
        "the nodes of a level share its capacity; any but distinct drafts; the default for levels \
         without replacement",
    ),
    ("traversal", "from the leaves up (Weng et al. 2025); paths or trees"),
    (
        "priority-block",
        "the path that priorities select node by node, verified as a block; any i.i.d. draws",
    ),
    ("token", "token by token (Leviathan et al. 2023, Chen et al. 2023); one path"),
    ("block", "one path as a whole (Sun et al. 2024)"),
    ("spectr", "SpecTr (Sun et al. 2023): from the root down by k-seq; i.i.d. draws"),
    (
        "specinfer",
        "SpecInfer (Miao et al. 2023): from the root down by recursive rejection; paths or trees",
    ),
    ("walk:single", "from the root down, one draft at a node"),
    ("walk:priority", "from the root down by priority, the best token-level rule for i.i.d. draws"),
    ("walk:race", "from the root down by a race, the best rule for draws without replacement"),
    (
        "walk:naive",
        "from the root down: draw from the target, see whether it was drafted; top-k trees too",
    ),
    ("walk:hub", "from the root down by SpecHub; trees of hub or greedy draws"),
    ("walk:RULE", "from the root down by any rule below"),
    (
        "invariant",
        "the output for a seed is the same for every draft and tree, at some loss of \
         acceptance; any tree",
    ),
    ("none", "plain decoding, the same distribution"),
];

/// Token-level rules with descriptions.
pub const RULES: [(&str, &str); 7] = [
    ("single", "single-draft speculative sampling: one draft"),
    ("priority", "priority coupling, the optimum for i.i.d. drafts"),
    ("k-seq", "SpecTr's sequential selection: i.i.d. drafts"),
    (
        "recursive",
        "recursive rejection (SpecInfer, RSD): i.i.d., without replacement, or distinct drafts",
    ),
    ("race", "shares by a race, the best for draws without replacement: any but distinct drafts"),
    ("naive", "draw from the target and see whether it was drafted: any drafts"),
    ("hub", "SpecHub and its extension to n drafts: hub or greedy drafts"),
];

const TREES: [(&str, &str); 11] = [
    ("--tree auto", "adaptive draft length, for the most tokens per second; the default"),
    ("--paths K --depth L", "K i.i.d. paths of L tokens; also --tree paths:K,L"),
    ("--tree delayed:L1,K,L2", "one path of L1 tokens, then K of L2 from its end"),
    ("--tree distinct:K,L", "a path of L tokens from each of K drafts, or draft temperatures"),
    ("--stop-below P", "end paths at low confidence of the draft; with any tree"),
    ("--tree fixed:0,0,1", "the parent of each node; drawn without replacement, or by /SCHEME"),
    ("--tree 3,2,1", "this many draws at each node of a level"),
    ("--tree binary", "two draws at every node, --depth levels"),
    ("--tree 3-ary", "three draws, or any other number, at every node"),
    ("--tree budget:2,1.5", "draws until this many distinct tokens are expected, by level"),
    ("--tree sequoia:16", "the best tree of 16 nodes for the acceptance rates of --acceptance"),
];

/// Prints the lists.
///
/// # Errors
/// Fails if the output is closed.
pub fn run(args: Args) -> Result<()> {
    print(&VERIFIERS, &RULES, args.json)
}

/// Prints these verifiers and rules, and all trees.
///
/// # Errors
/// Fails if the output is closed.
pub fn print(verifiers: &[Line], rules: &[Line], json: bool) -> Result<()> {
    let entries = |lines: &[Line]| {
        lines.iter().map(|&(name, about)| Entry { name, about }).collect::<Vec<_>>()
    };
    let lists =
        Lists { verifiers: entries(verifiers), rules: entries(rules), trees: entries(&TREES) };
    if json {
        return output::json(&lists);
    }
    let mut out = std::io::stdout().lock();
    for (title, entries) in [
        ("verifiers, for --verifier; all are lossless", &lists.verifiers),
        ("token-level rules, for walk:RULE", &lists.rules),
        ("trees of drafts", &lists.trees),
    ] {
        writeln!(out, "{title}:")?;
        entries
            .iter()
            .try_for_each(|Entry { name, about }| writeln!(out, "  {name:<20} {about}"))?;
        writeln!(out)?;
    }
    Ok(())
}

/// Name and description.
pub type Line = (&'static str, &'static str);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_exactly_the_existing_names() {
        let listed =
            |name: &str, lines: &[(&str, &str)]| lines.iter().any(|(listed, _)| *listed == name);
        for kind in polydraft::VerifierKind::all() {
            assert!(listed(&kind.to_string(), &VERIFIERS), "{kind}");
        }
        for (name, _) in VERIFIERS.iter().filter(|(name, _)| !["none", "walk:RULE"].contains(name))
        {
            assert!(name.parse::<polydraft::VerifierKind>().is_ok(), "{name}");
        }
        assert_eq!(polydraft::RuleKind::NAMES, RULES.map(|(name, _)| name));
    }
}
