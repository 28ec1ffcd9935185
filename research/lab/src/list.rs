//! `polydraft-lab list`: the names that options take.

use anyhow::Result;
use polydraft_cli::commands::list::{self, Line};

/// List verifiers, token-level rules and trees, including those of the reference solvers.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print JSON: an object of lists.
    #[arg(long)]
    json: bool,
}

const RULES: [Line; 5] = [
    (
        "importance",
        "importance-weighted selection by a truncated linear program: i.i.d. or distinct drafts",
    ),
    ("linear-program", "reference: the optimum by a linear program; slow"),
    ("max-flow", "reference: the optimum by maximum flow; slow"),
    ("slackness", "reference: the optimum by complementary slackness; slow"),
    ("global-resolution", "reference: the optimum by Global Resolution, where it finds a solution"),
];

/// Prints the lists.
///
/// # Errors
/// Output that is closed.
pub fn run(args: Args) -> Result<()> {
    let walk = ("walk:importance", "from the root down by importance-weighted selection");
    let (plain, any) = list::VERIFIERS.split_at(list::VERIFIERS.len() - 3);
    let verifiers = [plain, &[walk], any].concat();
    list::print(&verifiers, &[&list::RULES[..], &RULES].concat(), args.json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_a_line() {
        let names = list::RULES.iter().chain(&RULES).map(|(name, _)| *name);
        assert_eq!(polydraft_reference::rules().names(), names.collect::<Vec<_>>().join(", "));
    }
}
