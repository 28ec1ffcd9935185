//! What `polydraft bench speed` reports.

use std::io::Write;

use anyhow::Result;
use polydraft::policy::Costs;
use serde::{Deserialize, Serialize};

use crate::provenance::MadeBy;

/// What `--json` prints.
#[derive(Serialize, Deserialize)]
pub struct Report {
    #[serde(flatten)]
    pub(super) made_by: MadeBy,
    /// The target's name.
    pub target: String,
    /// The draft's name.
    pub draft: String,
    /// Of target and draft.
    pub temperature: f64,
    /// Generations of each method.
    pub texts: usize,
    /// Costs of passes.
    pub costs: Costs,
    /// Plain decoding, the adaptive tree, and the fixed trees.
    pub results: Vec<Row>,
    /// The ratio of fixed trees where each generation has the tree that was fastest in the other
    /// ones: what a user gets who tries them all beforehand. The fastest of many in hindsight owes
    /// a part of its ratio to luck. None with fewer than three generations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tried_before: Option<f64>,
    /// The same by the costs of passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tried_before_by_costs: Option<f64>,
    /// The tree that was fastest, or `none`.
    pub fastest: String,
    /// Why.
    pub verdict: String,
}

/// One method.
#[derive(Serialize, Deserialize)]
pub struct Row {
    /// Its tree, or `none`.
    pub tree: String,
    /// By measured time.
    pub tokens_per_second: f64,
    /// Tokens by seconds of all generations, relative to plain decoding's.
    pub ratio: f64,
    /// Tokens per target pass: block efficiency in the papers' sense.
    pub block_efficiency: f64,
    /// Distinct tokens drafted per pass of the target.
    pub nodes_per_call: f64,
    /// The part of the time that was the draft's.
    pub draft_share: f64,
    /// The ratio by the costs of passes instead of by measured time: of the same steps, as the
    /// adaptive tree estimates them. None for plain decoding.
    #[serde(default, alias = "expected", skip_serializing_if = "Option::is_none")]
    pub by_costs: Option<f64>,
}

impl Report {
    /// Prints the table, the costs of passes and the verdict.
    ///
    /// # Errors
    /// An output that is closed.
    pub(super) fn print(&self) -> Result<()> {
        let mut out = std::io::stdout().lock();
        writeln!(
            out,
            "{}\n{} with {}, temperature {}, {} generations each\n",
            self.made_by.machine, self.target, self.draft, self.temperature, self.texts
        )?;
        writeln!(
            out,
            "{:<12} {:>9} {:>6} {:>9} {:>17} {:>6} {:>12}",
            "tree", "tokens/s", "ratio", "by costs", "tokens per pass", "nodes", "draft's time"
        )?;
        for r in &self.results {
            writeln!(
                out,
                "{:<12} {:>9.1} {:>5.2}x {:>8.2}x {:>17.2} {:>6.1} {:>10.0} %",
                r.tree,
                r.tokens_per_second,
                r.ratio,
                r.by_costs.unwrap_or(1.0),
                r.block_efficiency,
                r.nodes_per_call,
                100.0 * r.draft_share
            )?;
        }
        if let Some(ratio) = self.tried_before {
            writeln!(
                out,
                "\nfixed trees, each generation with the one that was fastest in the others: \
                 {ratio:.2}x, by costs {:.2}x",
                self.tried_before_by_costs.unwrap_or(1.0)
            )?;
        }
        for (name, passes) in [("target", &self.costs.target), ("draft", &self.costs.draft)] {
            let pairs: Vec<String> = passes
                .0
                .iter()
                .map(|pass| format!("{}: {:.2} ms", pass.tokens, 1e3 * pass.seconds))
                .collect();
            write!(out, "\na pass of the {name} over so many tokens  {}", pairs.join("  "))?;
        }
        writeln!(out, "\n\n{}", self.verdict)?;
        Ok(())
    }
}
