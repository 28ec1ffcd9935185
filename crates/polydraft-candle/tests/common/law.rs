//! Whether the texts of a decoder follow the law of its target.

use std::collections::HashMap;

use polydraft::{Distribution, DraftTree, Sampling, Token, Verifier};
use polydraft_candle::CandleModel;
use polydraft_engine::{Decoder, Model, Settings};
use rand::SeedableRng;
use rand_chacha::ChaCha12Rng;
use statrs::distribution::{ChiSquared, ContinuousCDF};

/// Of correct programs with random seeds, one in so many would fail a test against this.
pub const FALSE_ALARM: f64 = 1e-3;

fn law_after(model: &mut CandleModel, text: &[Token]) -> Distribution {
    model.reset();
    model.extend(text).unwrap();
    model.score(&DraftTree::new()).unwrap();
    Distribution::from_logits(model.logits(DraftTree::ROOT), &Sampling::default()).unwrap()
}

/// The probability that a fair sample deviates from the target's law of two tokens at least as much as `runs` texts
/// of `verifier` do: G-test over the pairs expected at least five times, the rest pooled by first token and then all
/// together.
pub fn p_value(
    target: &mut CandleModel,
    draft: &mut CandleModel,
    prompt: &[Token],
    settings: Settings,
    verifier: Box<dyn Verifier + Send>,
    runs: usize,
) -> f64 {
    let mut counts: HashMap<[Token; 2], usize> = HashMap::new();
    {
        let mut decoder = Decoder::with_verifier(target, Some(draft), settings, verifier).unwrap();
        let mut rng = ChaCha12Rng::seed_from_u64(17);
        for _ in 0..runs {
            decoder.start(prompt).unwrap();
            let mut text: Vec<Token> = Vec::new();
            while text.len() < 2 {
                let step = decoder.step(10, &mut rng).unwrap();
                text.extend(step.emitted.iter().map(|e| e.token));
            }
            *counts.entry([text[0], text[1]]).or_default() += 1;
        }
    }
    let enough = 5.0 / runs as f64;
    // Expected probability and count of each cell.
    let mut cells: Vec<(f64, usize)> = Vec::new();
    let mut all_rest = (1.0, runs);
    let first = law_after(target, prompt);
    for (a, p) in first.support().filter(|(_, p)| *p >= enough).collect::<Vec<_>>() {
        let second = law_after(target, &[prompt, &[a]].concat());
        let mut rest = (p, counts.iter().filter(|(pair, _)| pair[0] == a).map(|(_, n)| n).sum::<usize>());
        for (b, q) in second.support().filter(|(_, q)| p * q >= enough) {
            let cell = (p * q, counts.get(&[a, b]).copied().unwrap_or(0));
            cells.push(cell);
            rest = (rest.0 - cell.0, rest.1 - cell.1);
            all_rest = (all_rest.0 - cell.0, all_rest.1 - cell.1);
        }
        if rest.0 >= enough {
            cells.push(rest);
            all_rest = (all_rest.0 - rest.0, all_rest.1 - rest.1);
        }
    }
    cells.push(all_rest);
    let statistic: f64 = cells
        .iter()
        .filter(|(_, n)| *n > 0)
        .map(|(p, n)| 2.0 * *n as f64 * (*n as f64 / (p * runs as f64)).ln())
        .sum();
    assert!(cells.len() > 50, "{} cells are too few to tell laws apart", cells.len());
    1.0 - ChiSquared::new(cells.len() as f64 - 1.0).unwrap().cdf(statistic)
}
