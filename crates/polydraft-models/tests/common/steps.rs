//! What drafters that are no models of their own draft after each place of a text, compared with
//! logits that somebody else computed.

use std::path::Path;

use polydraft::{DraftTree, Sampling, Token};
use polydraft_engine::{Drafter, Sequences};
use polydraft_models::{Head, TransformerModel};

use super::read_tensors;

/// A text, and log-probabilities after its places.
pub struct ExpectedSteps {
    text: Vec<Token>,
    /// By step and place: those of the token that so many drafted ones precede.
    steps: Vec<Vec<Vec<f64>>>,
}

impl ExpectedSteps {
    /// Of logits by step, place and token.
    pub fn read(file: &Path) -> Self {
        let found = read_tensors(file);
        let [_, places, width] = found["logits"].shape[..] else { panic!("no steps") };
        let text = found["tokens"].integers().into_iter().map(|token| token as Token).collect();
        let logits: Vec<f64> = found["logits"].values().into_iter().map(f64::from).collect();
        let steps = logits.chunks_exact(places * width);
        let all = steps.map(|step| step.chunks_exact(width).map(log_probabilities).collect());
        Self { text, steps: all.collect() }
    }

    /// The largest distance of a draft's log-probability from the expected one.
    pub fn distance(&self, (target, head): &mut (TransformerModel, Head)) -> f64 {
        let mut worst = 0f64;
        for place in 0..self.text.len() - 1 {
            let (own, its) = (target.open().unwrap(), head.open().unwrap());
            let known = &self.text[..place + 2];
            target.extend(own, known).unwrap();
            head.extend(its, known).unwrap();
            target.prepare(own, usize::MAX).unwrap();
            head.sync_target(its, target, own, known.len() - 1).unwrap();
            assert_eq!(head.prepare(its, usize::MAX).unwrap(), 0);
            // Two paths, so that states of other nodes could be taken for one's own.
            let mut tree = DraftTree::new();
            let mut node = DraftTree::ROOT;
            for (step, all) in self.steps.iter().enumerate() {
                if step > 0 {
                    let Some(token) = self.text.get(place + 1 + step) else { break };
                    tree.add(node, (token + 1) % 60);
                    node = tree.add(node, *token);
                }
                head.score(&[(its, &tree)]).unwrap();
                let q = head.distribution(its, node, &Sampling::default(), None).unwrap();
                for (token, expected) in all[place].iter().enumerate() {
                    worst = worst.max((q.probability(token as Token).ln() - expected).abs());
                }
            }
            target.close(own);
            head.close(its);
        }
        worst
    }
}

fn log_probabilities(logits: &[f64]) -> Vec<f64> {
    let top = logits.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
    let sum: f64 = logits.iter().map(|x| (x - top).exp()).sum();
    logits.iter().map(|x| x - top - sum.ln()).collect()
}
