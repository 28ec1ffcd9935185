//! The shipped pair: speculation changes no token at temperature 0 and no probability at temperature 1.

mod common;

use std::collections::HashMap;

use common::demo;
use polydraft::{
    Chance, Distribution, DraftTree, Laws, Outcome, Result as LawResult, Sampling, Token, Verifier,
    VerifierKind,
};
use polydraft_candle::{LoadOptions, Loaded, Precision, load};
use polydraft_engine::{Decoder, Generation, Limits, Model, Settings, Speculation, TextStream};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;
use statrs::distribution::{ChiSquared, ContinuousCDF};

fn pair(precision: Precision) -> (Loaded, Loaded) {
    let open = |role| load(&demo(role), LoadOptions { precision, ..LoadOptions::default() }).unwrap();
    (open("target"), open("draft"))
}

fn prompts() -> Vec<String> {
    let text = include_str!("../../../bench/prompts.jsonl");
    let value = |line| serde_json::from_str::<serde_json::Value>(line).unwrap();
    text.lines().map(|line| value(line)["prompt"].as_str().unwrap().to_owned()).collect()
}

fn settings(temperature: f64, depth: Option<usize>) -> Settings {
    let sampling = Sampling { temperature, ..Sampling::default() };
    let speculation = depth.map(|depth| Speculation { verifier: VerifierKind::Token, depth, sampling });
    Settings { sampling, speculation }
}

#[test]
fn temperature_zero_gives_the_tokens_of_plain_decoding() {
    let (mut target, mut draft) = pair(Precision::F32);
    let prompts = prompts();
    assert!(prompts.len() >= 20);
    for (number, prompt) in prompts.iter().enumerate() {
        let tokens = target.text.encode(prompt).unwrap();
        let depths = [None, Some(1 + number % 8)];
        let [plain, speculative] = depths.map(|depth| {
            let mut decoder =
                Decoder::new(&mut target.model, Some(&mut draft.model), settings(0.0, depth)).unwrap();
            let mut text = target.text.stream(&tokens);
            let mut rng = ChaCha12Rng::seed_from_u64(0);
            // To the context's end: no limit, no end token.
            let limits = Limits::default();
            Generation::run(&mut decoder, &tokens, &limits, &mut text, &mut rng, &mut |_| true).unwrap()
        });
        assert_eq!(plain.tokens.len(), target.model.context_length() - tokens.len());
        assert_eq!(plain.tokens, speculative.tokens, "prompt {number}");
        assert_eq!(plain.text, speculative.text);
        assert_eq!(plain.statistics.block_efficiency(), 1.0);
        assert!(speculative.statistics.block_efficiency() > 1.0);
    }
}

fn law_after(model: &mut impl Model, text: &[Token]) -> Distribution {
    model.reset();
    model.extend(text).unwrap();
    model.score(&DraftTree::new()).unwrap();
    Distribution::from_logits(model.logits(DraftTree::ROOT), &Sampling::default()).unwrap()
}

/// The probability that a fair sample deviates from the target's law of two tokens at least as much as `runs` texts
/// of `verifier` do: G-test over the pairs expected at least five times, the rest pooled by first token and then all
/// together.
fn p_value(runs: usize, verifier: impl Fn() -> Box<dyn Verifier + Send>) -> f64 {
    let (mut target, mut draft) = pair(Precision::F32);
    let prompt = target.text.encode("impl Iterator for").unwrap();
    let mut counts: HashMap<[Token; 2], usize> = HashMap::new();
    {
        let settings = settings(1.0, Some(3));
        let mut decoder =
            Decoder::with_verifier(&mut target.model, Some(&mut draft.model), settings, verifier()).unwrap();
        let mut rng = ChaCha12Rng::seed_from_u64(17);
        for _ in 0..runs {
            decoder.start(&prompt).unwrap();
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
    let first = law_after(&mut target.model, &prompt);
    for (a, p) in first.support().filter(|(_, p)| *p >= enough).collect::<Vec<_>>() {
        let second = law_after(&mut target.model, &[&prompt[..], &[a]].concat());
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

/// Of correct programs with random seeds, one in so many would fail this test.
const FALSE_ALARM: f64 = 1e-3;

#[test]
fn temperature_one_gives_the_targets_law_of_two_tokens() {
    let p = p_value(6000, || VerifierKind::Token.build());
    assert!(p > FALSE_ALARM, "p = {p:e}");
}

/// After a rejection draws from the target itself.
struct WrongResidual;

impl Verifier for WrongResidual {
    fn verify(&mut self, tree: &DraftTree, laws: &dyn Laws, chance: &mut dyn Chance) -> LawResult<Outcome> {
        let mut outcome = VerifierKind::Token.build().verify(tree, laws, chance)?;
        let end = outcome.accepted.last().copied().unwrap_or(DraftTree::ROOT);
        outcome.token = laws.target(end)?.sample(chance);
        Ok(outcome)
    }
}

#[test]
fn the_test_of_the_law_finds_a_planted_fault() {
    let p = p_value(1500, || Box::new(WrongResidual));
    assert!(p < FALSE_ALARM, "p = {p:e}");
}

#[test]
fn streamed_text_is_whole_characters_and_complete() {
    let (target, _) = pair(Precision::F32);
    let mut rng = ChaCha12Rng::seed_from_u64(3);
    // Text with characters of one to four bytes, and tokens that make no text at all.
    let sentence = "fn naïve() -> \"日本語 🦀🦀\" { é }";
    let mut cases = vec![target.text.encode(sentence).unwrap()];
    cases.extend((0..200).map(|_| (0..20).map(|_| rng.random_range(1..4096)).collect()));
    for (number, tokens) in cases.iter().enumerate() {
        let prompt = target.text.encode("let s = ").unwrap();
        let mut stream = target.text.stream(&prompt);
        let mut streamed = String::new();
        for &token in tokens {
            let piece = stream.push(token).unwrap();
            assert!(number > 0 || !piece.contains(char::REPLACEMENT_CHARACTER));
            streamed += &piece;
        }
        streamed += &stream.finish().unwrap();
        let whole = target.text.decode(&[&prompt[..], tokens].concat()).unwrap();
        let expected = whole.strip_prefix(&target.text.decode(&prompt).unwrap()).unwrap();
        // Bytes that make no character may be shown as fewer or more U+FFFD; nothing else may differ.
        let valid = |text: &str| text.replace(char::REPLACEMENT_CHARACTER, "");
        assert_eq!(valid(&streamed), valid(expected), "case {number}");
        if number == 0 {
            assert_eq!(streamed, expected);
        }
    }
}

// Not token for token: quantising the inputs of a product makes steps of rounding errors, and ties break at them.
#[test]
fn quantised_models_decode_too() {
    let (mut target, mut draft) = pair(Precision::Q8_0);
    let tokens = target.text.encode("pub fn new(").unwrap();
    for temperature in [0.0, 1.0] {
        let texts = [None, Some(4)].map(|depth| {
            let settings = settings(temperature, depth);
            let mut decoder = Decoder::new(&mut target.model, Some(&mut draft.model), settings).unwrap();
            let limits = Limits { max_tokens: Some(100), ..Limits::default() };
            let mut rng = ChaCha12Rng::seed_from_u64(1);
            let mut text = target.text.stream(&tokens);
            Generation::run(&mut decoder, &tokens, &limits, &mut text, &mut rng, &mut |_| true)
                .unwrap()
                .tokens
        });
        assert_eq!(texts.iter().map(Vec::len).collect::<Vec<_>>(), [100, 100]);
    }
}
