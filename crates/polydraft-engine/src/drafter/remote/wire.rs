//! Messages between a client and a drafting server, with the checks of both sides.

use polydraft::{DraftTree, Token};
use serde::{Deserialize, Serialize};

/// Maximum number of levels of a query.
pub const MAX_LEVELS: usize = 16;
/// Maximum number of nodes per level.
pub const MAX_WIDTH: usize = 8;
/// Maximum number of tokens reported at a node.
pub const MAX_TOP: usize = 256;
/// Maximum number of sequences in a request.
pub const MAX_QUERIES: usize = 64;
/// Bytes of a reported token in JSON, at most, and of the rest of a node.
const TOKEN_BYTES: usize = 48;
const NODE_BYTES: usize = 128;
/// Amount by which the probabilities of a node may exceed 1, for rounding.
const SUM_TOLERANCE: f64 = 1e-3;

/// A sequence for which a server is asked to draft.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DraftQuery {
    /// All tokens of the sequence so far.
    pub tokens: Vec<Token>,
    /// Levels of the tree for which distributions are returned, at most [`MAX_LEVELS`]: 1 returns
    /// the next token's only, 0 only prefills the tokens.
    pub levels: usize,
    /// Maximum number of nodes per level, from 1 to [`MAX_WIDTH`].
    pub width: usize,
    /// Maximum number of tokens reported at a node, the most probable ones, from 1 to [`MAX_TOP`].
    pub top: usize,
    /// Temperature at which the client draws. It only decides which nodes are worth a
    /// distribution: reported probabilities are always those at temperature 1.
    pub temperature: f64,
}

impl DraftQuery {
    /// Checks the settings and the tokens, for a vocabulary of this size.
    ///
    /// # Errors
    /// A description of the first invalid value.
    pub fn check(&self, vocabulary: usize) -> Result<(), String> {
        let range = |name: &str, got: usize, least: usize, most: usize| match got {
            got if (least..=most).contains(&got) => Ok(()),
            got => Err(format!("{name}: expected {least} to {most}, got {got}")),
        };
        range("levels", self.levels, 0, MAX_LEVELS)?;
        range("width", self.width, 1, MAX_WIDTH)?;
        range("top", self.top, 1, MAX_TOP)?;
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return Err(format!("temperature: expected at least 0, got {}", self.temperature));
        }
        if self.tokens.is_empty() {
            return Err("tokens: expected at least one token".to_owned());
        }
        let unknown = self.tokens.iter().find(|token| **token as usize >= vocabulary);
        unknown.map_or(Ok(()), |got| {
            Err(format!("tokens: expected ids below {vocabulary}, got {got}"))
        })
    }

    /// Maximum bytes of the answer as JSON.
    pub fn max_answer_bytes(&self) -> usize {
        self.max_nodes() * (NODE_BYTES + self.top * TOKEN_BYTES) + NODE_BYTES
    }

    /// Maximum number of nodes of the answer.
    fn max_nodes(&self) -> usize {
        match self.levels {
            0 => 0,
            levels => 1 + (levels - 1) * self.width,
        }
    }
}

/// Queries of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DraftRequest {
    /// Model of the server; its first one if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// At most [`MAX_QUERIES`] sequences, which are computed together.
    pub sequences: Vec<DraftQuery>,
}

/// Answer to a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DraftAnswer {
    /// Trees in the order of the queries.
    pub drafts: Vec<DraftedTree>,
}

/// Properties of a drafting server's model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DraftInfo {
    /// Name of the model.
    pub model: String,
    /// Size of its vocabulary.
    pub vocabulary: usize,
    /// Fingerprint of the strings of all tokens.
    pub fingerprint: String,
    /// Context length in tokens.
    pub context: usize,
    /// Maximum number of sequences in a request.
    pub sequences: usize,
}

/// Distributions after a sequence, along a tree of probable continuations.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DraftedTree {
    /// Nodes; the first is the end of the sequence, others follow their parents.
    pub nodes: Vec<DraftedNode>,
}

/// A node, with the distribution of the token after it at temperature 1.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DraftedNode {
    /// Index of the parent, and the token that leads from it to this node; `None` at the first
    /// node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<(usize, Token)>,
    /// The most probable tokens. The other tokens have the rest of the probability.
    pub tokens: Vec<Token>,
    /// Natural logarithms of their probabilities.
    pub logprobs: Vec<f32>,
}

impl DraftedTree {
    /// Checks an answer to `query`, for a vocabulary of this size, and sorts the tokens of each
    /// node.
    ///
    /// # Errors
    /// A description of the first problem: too many nodes or tokens, edges that are not a tree,
    /// ids outside the vocabulary or listed twice, values that are not probabilities, or a sum
    /// above 1.
    pub fn validate(mut self, query: &DraftQuery, vocabulary: usize) -> Result<Self, String> {
        let (nodes, most) = (self.nodes.len(), query.max_nodes());
        if nodes > most || (nodes == 0 && most > 0) {
            return Err(format!("expected 1 to {most} nodes, got {nodes}"));
        }
        let mut edges = Vec::new();
        for (number, node) in self.nodes.iter_mut().enumerate() {
            match (number, node.from) {
                (0, None) => {}
                (1.., Some(edge)) if edge.0 < number && !edges.contains(&edge) => edges.push(edge),
                (_, edge) => return Err(format!("node {number}: unexpected parent {edge:?}")),
            }
            node.validate(query.top, vocabulary)
                .map_err(|problem| format!("node {number}: {problem}"))?;
        }
        Ok(self)
    }

    /// Returns the node that a token leads to.
    pub(super) fn child(&self, parent: usize, token: Token) -> Option<usize> {
        self.nodes.iter().position(|node| node.from == Some((parent, token)))
    }

    /// Adds the nodes of `tree` to the drafted nodes of each: `None` where this tree has none.
    pub(super) fn follow(&self, tree: &DraftTree, nodes: &mut Vec<Option<usize>>) {
        for node in nodes.len()..tree.len() {
            nodes.push(match node {
                DraftTree::ROOT => (!self.nodes.is_empty()).then_some(0),
                node => {
                    nodes[tree.parent(node)].and_then(|parent| self.child(parent, tree.token(node)))
                }
            });
        }
    }
}

impl DraftedNode {
    fn validate(&mut self, top: usize, vocabulary: usize) -> Result<(), String> {
        let (tokens, logprobs) = (self.tokens.len(), self.logprobs.len());
        if tokens != logprobs || !(1..=top).contains(&tokens) {
            return Err(format!(
                "expected 1 to {top} tokens with as many logprobs, got {tokens} and {logprobs}"
            ));
        }
        if let Some(got) = self.tokens.iter().find(|token| **token as usize >= vocabulary) {
            return Err(format!("expected ids below {vocabulary}, got {got}"));
        }
        let is_logprob = |p: &f32| p.is_finite() && f64::from(*p) <= SUM_TOLERANCE;
        if let Some(got) = self.logprobs.iter().find(|logprob| !is_logprob(logprob)) {
            return Err(format!("expected logarithms of probabilities, got {got}"));
        }
        let sum: f64 = self.logprobs.iter().map(|logprob| f64::from(*logprob).exp()).sum();
        if sum > 1.0 + SUM_TOLERANCE {
            return Err(format!("expected probabilities whose sum is at most 1, got {sum}"));
        }
        let both = self.tokens.iter().copied().zip(self.logprobs.iter().copied());
        let mut both: Vec<(Token, f32)> = both.collect();
        both.sort_unstable_by_key(|(token, _)| *token);
        if let Some(pair) = both.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(format!("expected each id once, got {} twice", pair[0].0));
        }
        (self.tokens, self.logprobs) = both.into_iter().unzip();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(from: Option<(usize, Token)>, tokens: &[Token], logprobs: &[f32]) -> DraftedNode {
        DraftedNode { from, tokens: tokens.to_vec(), logprobs: logprobs.to_vec() }
    }

    const QUERY: DraftQuery =
        DraftQuery { tokens: Vec::new(), levels: 2, width: 2, top: 2, temperature: 1.0 };

    fn check(nodes: Vec<DraftedNode>) -> Result<DraftedTree, String> {
        DraftedTree { nodes }.validate(&QUERY, 5)
    }

    #[test]
    fn sorts_tokens_of_valid_answers() {
        let root = node(None, &[4, 1], &[-0.5, -1.5]);
        let valid = check(vec![root.clone(), node(Some((0, 4)), &[0], &[0.0])]).unwrap();
        assert_eq!(valid.nodes[0], node(None, &[1, 4], &[-1.5, -0.5]));
        assert_eq!((valid.child(0, 4), valid.child(0, 1)), (Some(1), None));
    }

    #[test]
    fn rejects_hostile_answers() {
        let root = || node(None, &[0], &[-0.1]);
        let child = |edge| node(Some(edge), &[0], &[-0.1]);
        for (nodes, expected) in [
            (vec![], "expected 1 to 3 nodes, got 0"),
            (vec![root(); 4], "expected 1 to 3 nodes, got 4"),
            (vec![root(), root()], "node 1: unexpected parent None"),
            (vec![child((0, 0))], "node 0: unexpected parent"),
            (vec![root(), child((1, 0))], "node 1: unexpected parent"),
            (vec![root(), child((0, 0)), child((0, 0))], "node 2: unexpected parent"),
            (vec![node(None, &[0, 1, 2], &[-2.0; 3])], "expected 1 to 2 tokens"),
            (vec![node(None, &[], &[])], "expected 1 to 2 tokens"),
            (vec![node(None, &[0, 1], &[-1.0])], "got 2 and 1"),
            (vec![node(None, &[5], &[-1.0])], "expected ids below 5, got 5"),
            (vec![node(None, &[1, 1], &[-1.0; 2])], "got 1 twice"),
            (vec![node(None, &[0], &[f32::NAN])], "expected logarithms"),
            (vec![node(None, &[0], &[f32::NEG_INFINITY])], "expected logarithms"),
            (vec![node(None, &[0], &[0.1])], "expected logarithms"),
            (vec![node(None, &[0, 1], &[-0.1; 2])], "whose sum is at most 1"),
        ] {
            let problem = check(nodes.clone()).unwrap_err();
            assert!(problem.contains(expected), "{nodes:?}: {problem}");
        }
    }

    #[test]
    fn rejects_queries_out_of_range() {
        let valid = DraftQuery { tokens: vec![1], ..QUERY };
        assert_eq!(valid.check(5), Ok(()));
        for (query, expected) in [
            (DraftQuery { levels: 17, ..valid.clone() }, "levels: expected 0 to 16, got 17"),
            (DraftQuery { width: 0, ..valid.clone() }, "width: expected 1 to 8"),
            (DraftQuery { top: 257, ..valid.clone() }, "top: expected 1 to 256"),
            (DraftQuery { temperature: f64::NAN, ..valid.clone() }, "temperature: expected"),
            (DraftQuery { tokens: vec![], ..valid.clone() }, "at least one token"),
            (DraftQuery { tokens: vec![5], ..valid.clone() }, "expected ids below 5, got 5"),
        ] {
            assert!(query.check(5).unwrap_err().contains(expected), "{query:?}");
        }
    }
}
