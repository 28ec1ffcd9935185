//! Compares the drafts of drafters that are not models, after each position of a sequence, with
//! logits that another program computed.

use std::path::Path;

use polydraft::{DraftTree, Sampling, Token};
use polydraft_engine::{Drafter, Sequences};
use polydraft_models::{DraftHead, TransformerModel};

use super::read_tensors;

/// A sequence, and the expected log-probabilities after its positions.
pub struct ExpectedSteps {
    tokens: Vec<Token>,
    /// Log-probabilities by step and position: after as many drafted tokens as the step.
    steps: Vec<Vec<Vec<f64>>>,
}

impl ExpectedSteps {
    /// Reads logits by step, position and token.
    pub fn read(file: &Path) -> Self {
        let stored = read_tensors(file);
        let [_, positions, width] = stored["logits"].shape[..] else { panic!("no steps") };
        let tokens = stored["tokens"].integers().into_iter().map(|token| token as Token).collect();
        let logits: Vec<f64> = stored["logits"].values().into_iter().map(f64::from).collect();
        let steps = logits.chunks_exact(positions * width);
        let all = steps.map(|step| step.chunks_exact(width).map(log_probabilities).collect());
        Self { tokens, steps: all.collect() }
    }

    /// Largest difference between drafted and expected log-probabilities.
    pub fn distance(&self, (target, head): &mut (TransformerModel, DraftHead)) -> f64 {
        let mut largest = 0f64;
        for position in 0..self.tokens.len() - 1 {
            let (target_sequence, head_sequence) = (target.open().unwrap(), head.open().unwrap());
            let known = &self.tokens[..position + 2];
            target.extend(target_sequence, known).unwrap();
            head.extend(head_sequence, known).unwrap();
            target.prepare(target_sequence, usize::MAX).unwrap();
            head.sync_target(head_sequence, target, target_sequence, known.len() - 1).unwrap();
            assert_eq!(head.prepare(head_sequence, usize::MAX).unwrap(), 0);
            // Two paths, so that taking the state of a wrong node would show.
            let mut tree = DraftTree::new();
            let mut node = DraftTree::ROOT;
            for (step, all) in self.steps.iter().enumerate() {
                if step > 0 {
                    let Some(token) = self.tokens.get(position + 1 + step) else { break };
                    tree.add(node, (token + 1) % 60);
                    node = tree.add(node, *token);
                }
                head.score(&[(head_sequence, &tree)]).unwrap();
                let q = head.distribution(head_sequence, node, &Sampling::default(), None).unwrap();
                for (token, expected) in all[position].iter().enumerate() {
                    largest = largest.max((q.probability(token as Token).ln() - expected).abs());
                }
            }
            target.close(target_sequence);
            head.close(head_sequence);
        }
        largest
    }
}

fn log_probabilities(logits: &[f64]) -> Vec<f64> {
    let top = logits.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
    let sum: f64 = logits.iter().map(|x| (x - top).exp()).sum();
    logits.iter().map(|x| x - top - sum.ln()).collect()
}
