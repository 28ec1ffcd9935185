//! The drafting server's side: distributions along the tree of the most probable continuations.

use polydraft::{Distribution, DraftTree, NodeId, Sampling, Token};

use super::wire::{DraftQuery, DraftedNode, DraftedTree};
use crate::distributions::largest;
use crate::{Error, Model, Result, Sequence};

/// Probability with which a client's draws must reach a node, for it to be worth a distribution.
/// The most probable node of a level always is.
const MIN_REACH: f64 = 0.02;

/// A tree that grows.
struct Growing<'q> {
    sequence: Sequence,
    query: &'q DraftQuery,
    tree: DraftTree,
    answer: DraftedTree,
    /// Logarithm of the probability with which the client's draws reach each node.
    reach: Vec<f64>,
    /// Maximum number of levels: the query's, or fewer at the end of the context.
    levels: usize,
}

/// Computes the answers to queries whose tokens are those of open sequences of `model`, one pass
/// per level for all of them. The sequences' trees remain scored.
///
/// # Errors
/// Failures of the model; logits that are not a valid distribution.
pub fn expand(
    model: &mut dyn Model,
    queries: &[(Sequence, &DraftQuery)],
) -> Result<Vec<DraftedTree>> {
    let context = model.info().context;
    let mut all: Vec<Growing> = queries
        .iter()
        .map(|&(sequence, query)| Growing {
            sequence,
            query,
            tree: DraftTree::new(),
            answer: DraftedTree::default(),
            reach: vec![0.0],
            levels: query.levels.min(context.saturating_sub(model.len(sequence)).saturating_add(1)),
        })
        .collect();
    for level in 0..all.iter().map(|growing| growing.levels).max().unwrap_or(0) {
        let grows = |growing: &Growing| growing.levels > level;
        let batch: Vec<_> =
            all.iter().filter(|g| grows(g)).map(|g| (g.sequence, &g.tree)).collect();
        model.score(&batch)?;
        for growing in all.iter_mut().filter(|growing| grows(growing)) {
            growing.report(model)?;
            if growing.levels > level + 1 {
                growing.grow();
            }
        }
    }
    Ok(all.into_iter().map(|growing| growing.answer).collect())
}

impl Growing<'_> {
    /// Adds the distributions of newly scored nodes to the answer.
    fn report(&mut self, model: &dyn Model) -> Result<()> {
        for node in self.answer.nodes.len()..self.tree.len() {
            let (logits, outputs) = (model.logits(self.sequence, node), model.outputs());
            let info = model.info();
            let size = info.vocabulary.size();
            let probs = Distribution::for_draft(None, size, outputs, logits, &Sampling::default());
            let probs = probs.map_err(|source| Error::Logits {
                role: "draft",
                model: info.name.clone(),
                source,
            })?;
            let likeliest = largest(logits, self.query.top).into_iter();
            let token = |index: Token| outputs.map_or(index, |tokens| tokens[index as usize]);
            let likeliest = likeliest.map(token).filter(|token| probs.probability(*token) > 0.0);
            let (tokens, logprobs) =
                likeliest.map(|token| (token, probs.probability(token).ln() as f32)).unzip();
            let edge = || (self.tree.parent(node), self.tree.token(node));
            let from = (node != DraftTree::ROOT).then(edge);
            self.answer.nodes.push(DraftedNode { from, tokens, logprobs });
        }
        Ok(())
    }

    /// Adds the nodes of the next level: the likeliest children of the last one's nodes.
    fn grow(&mut self) {
        let (query, depth) = (self.query, self.tree.depth(self.tree.len() - 1));
        let last = (0..self.tree.len()).filter(|node| self.tree.depth(*node) == depth);
        let mut children: Vec<(f64, NodeId, Token)> = Vec::new();
        for node in last {
            let reported = &self.answer.nodes[node];
            // The client draws from the reported tokens, at its temperature.
            let most = reported.logprobs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let scaled = |logprob: f32| match query.temperature {
                0.0 if logprob == most => 0.0,
                0.0 => f64::NEG_INFINITY,
                temperature => f64::from(logprob - most) / temperature,
            };
            let sum: f64 = reported.logprobs.iter().map(|logprob| scaled(*logprob).exp()).sum();
            for (token, logprob) in reported.tokens.iter().zip(&reported.logprobs) {
                let reach = self.reach[node] + scaled(*logprob) - sum.ln();
                children.push((reach, node, *token));
            }
        }
        children.sort_by(|a, b| b.0.total_cmp(&a.0));
        let likely =
            |(rank, child): &(usize, (f64, NodeId, Token))| *rank == 0 || child.0 >= MIN_REACH.ln();
        let chosen = children.into_iter().take(query.width).enumerate().take_while(likely);
        for (_, (reach, parent, token)) in chosen {
            self.tree.add(parent, token);
            self.reach.push(reach);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Sequences, TableModel};

    fn answer(query: DraftQuery) -> DraftedTree {
        let table = r#"{"vocabulary": 3, "next": {"": [0.5, 0.3, 0.2], "0": [0, 0.99, 0.01]}}"#;
        let mut model = TableModel::from_json("draft", table).unwrap().with_context_length(4);
        let sequence = model.open().unwrap();
        model.extend(sequence, &query.tokens).unwrap();
        expand(&mut model, &[(sequence, &query)]).unwrap().remove(0)
    }

    #[test]
    fn reports_the_likeliest_continuations() {
        let query = DraftQuery { tokens: vec![1], levels: 3, width: 2, top: 2, temperature: 1.0 };
        let tree = answer(query.clone()).validate(&query, 3).unwrap();
        let edges: Vec<_> = tree.nodes.iter().filter_map(|node| node.from).collect();
        // From the root 0 and 1; after 0 nearly always 1, after 1 again 0.
        assert_eq!(edges, [(0, 0), (0, 1), (1, 1), (2, 0)]);
        assert_eq!(tree.nodes[0].tokens, [0, 1]);
        assert!((tree.nodes[0].logprobs[1] - 0.3_f32.ln()).abs() < 1e-6);
        // Impossible tokens are not reported.
        assert_eq!(tree.nodes[1].tokens, [1, 2]);
        let greedy = answer(DraftQuery { temperature: 0.0, ..query.clone() });
        assert_eq!(greedy.nodes.len(), 3);
        assert_eq!(answer(DraftQuery { levels: 0, ..query }).nodes, []);
    }

    #[test]
    fn stays_within_the_context() {
        let query =
            DraftQuery { tokens: vec![0, 1, 0], levels: 9, width: 1, top: 1, temperature: 0.0 };
        assert_eq!(answer(query).nodes.len(), 2);
    }
}
