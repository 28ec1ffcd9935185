//! Report of `polydraft bench speed`.

use std::io::Write;

use anyhow::Result;
use polydraft::policy::Costs;
use serde::{Deserialize, Serialize};

use crate::provenance::MadeBy;

/// Output of `--json`.
#[derive(Serialize, Deserialize)]
pub struct Report {
    #[serde(flatten)]
    pub(super) made_by: MadeBy,
    /// Name of the target.
    pub target: String,
    /// Name of the draft.
    pub draft: String,
    /// Temperature of target and draft.
    pub temperature: f64,
    /// Number of generations per method; named as in the stored records.
    #[serde(rename = "texts")]
    pub generations: usize,
    /// Maximum tokens per generation; 0 in records that do not state it.
    #[serde(default)]
    pub max_tokens: usize,
    /// Costs of passes.
    pub costs: Costs,
    /// Results of plain decoding, the adaptive tree, and the fixed trees.
    pub results: Vec<Row>,
    /// Ratio of fixed trees where each generation uses the tree that was fastest in the other
    /// generations: the speed-up for a user who tries them all beforehand. The fastest of many in
    /// hindsight owes part of its ratio to luck. `None` with fewer than three generations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tried_before: Option<f64>,
    /// [`tried_before`](Self::tried_before), estimated from the costs of passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tried_before_by_costs: Option<f64>,
    /// Fastest tree, or `none`.
    pub fastest: String,
    /// Recommendation with its reason.
    pub verdict: String,
}

/// Result of one method.
#[derive(Serialize, Deserialize)]
pub struct Row {
    /// Tree, or `none`.
    pub tree: String,
    /// Tokens per measured second.
    pub tokens_per_second: f64,
    /// Ratio of tokens per second over all generations to plain decoding.
    pub ratio: f64,
    /// Half the width of the 95 % interval of the ratio, from the spread between texts; `None` with
    /// fewer than three.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<f64>,
    /// Tokens per target pass: block efficiency in the papers' sense.
    pub block_efficiency: f64,
    /// Distinct drafted tokens per target pass.
    pub nodes_per_call: f64,
    /// Share of the draft in the time.
    pub draft_share: f64,
    /// Ratio estimated from the costs of passes instead of measured times, for the same steps, as
    /// the adaptive tree estimates it. `None` for plain decoding.
    #[serde(default, alias = "expected", skip_serializing_if = "Option::is_none")]
    pub by_costs: Option<f64>,
}

impl Report {
    /// Prints the table, the costs of passes and the verdict.
    ///
    /// Fails if the output is closed.
    pub(super) fn print(&self) -> Result<()> {
        let mut out = std::io::stdout().lock();
        writeln!(
            out,
            "{}\n{} with {}, temperature {}, {} generations of {} tokens per \
             method\n",
            self.made_by.machine,
            self.target,
            self.draft,
            self.temperature,
            self.generations,
            self.max_tokens
        )?;
        writeln!(
            out,
            "{:<12} {:>9} {:>12} {:>9} {:>12} {:>6} {:>11}",
            "tree", "tokens/s", "ratio", "by costs", "tokens/pass", "nodes", "draft time"
        )?;
        for r in &self.results {
            writeln!(
                out,
                "{:<12} {:>9.1} {:>12} {:>8.2}x {:>12.2} {:>6.1} {:>9.0} %",
                r.tree,
                r.tokens_per_second,
                match r.interval.filter(|_| r.tree != "none") {
                    Some(interval) => format!("{:.2}x ±{interval:.2}", r.ratio),
                    None => format!("{:.2}x", r.ratio),
                },
                r.by_costs.unwrap_or(1.0),
                r.block_efficiency,
                r.nodes_per_call,
                100.0 * r.draft_share
            )?;
        }
        if let Some(ratio) = self.tried_before {
            writeln!(
                out,
                "\nfixed trees, for each generation the fastest in the others: {ratio:.2}x, by \
                 costs {:.2}x",
                self.tried_before_by_costs.unwrap_or(1.0)
            )?;
        }
        for (name, passes) in [("target", &self.costs.target), ("draft", &self.costs.draft)] {
            let pairs: Vec<String> = passes
                .0
                .iter()
                .map(|pass| format!("{}: {:.2} ms", pass.tokens, 1e3 * pass.seconds))
                .collect();
            write!(out, "\npasses of the {name} by number of tokens\n  {}", pairs.join("  "))?;
        }
        writeln!(out, "\n\n{}", self.verdict.replace("; ", "\n"))?;
        Ok(())
    }
}
