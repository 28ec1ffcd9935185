//! The shipped pair: speculation changes no token at temperature 0 and no probability at temperature 1.

mod common;

use common::{demo, law};
use polydraft::{Chance, DraftTree, Laws, Outcome, Result as LawResult, Sampling, Verifier, VerifierKind};
use polydraft_candle::{LoadOptions, Loaded, Precision, load};
use polydraft_engine::{Decoder, Generation, Limits, Model, Settings, Speculation, TextStream};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;

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

/// How well `runs` texts of `verifier` fit the law of the demo target.
fn p_value(runs: usize, verifier: Box<dyn Verifier + Send>) -> f64 {
    let (mut target, mut draft) = pair(Precision::F32);
    let prompt = target.text.encode("impl Iterator for").unwrap();
    let settings = settings(1.0, Some(3));
    law::p_value(&mut target.model, &mut draft.model, &prompt, settings, verifier, runs)
}

#[test]
fn temperature_one_gives_the_targets_law_of_two_tokens() {
    let p = p_value(6000, VerifierKind::Token.build());
    assert!(p > law::FALSE_ALARM, "p = {p:e}");
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
    let p = p_value(1500, Box::new(WrongResidual));
    assert!(p < law::FALSE_ALARM, "p = {p:e}");
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
