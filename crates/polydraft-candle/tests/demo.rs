//! The shipped pair: speculation changes no token at temperature 0 and no probability at temperature 1.

mod common;

use std::sync::Arc;

use common::demo;
use polydraft::conformance::planted::WrongResidual;
use polydraft::{Drafting, Sampling, Shape, Topology, Verifier, VerifierKind};
use polydraft_candle::{LoadOptions, Loaded, Precision, load};
use polydraft_engine::certify::{GTest, count_texts};
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
    let verifier: VerifierKind = "nested-priority".parse().unwrap();
    let speculation = depth.map(|depth| Speculation { verifier, shape: shape(depth), sampling });
    Settings { sampling, speculation }
}

/// Two paths.
fn shape(depth: usize) -> Shape {
    Shape::Paths { paths: 2, depth }
}

fn verifier(name: &str, shape: &Shape) -> Box<dyn Verifier> {
    name.parse::<VerifierKind>().unwrap().build(shape).unwrap()
}

#[test]
fn temperature_zero_gives_the_tokens_of_plain_decoding() {
    let (mut target, mut draft) = pair(Precision::F32);
    let prompts = prompts();
    assert!(prompts.len() >= 20);
    for (number, prompt) in prompts.iter().enumerate() {
        let tokens = target.language.text.encode(prompt).unwrap();
        let depths = [None, Some(1 + number % 8)];
        let [plain, speculative] = depths.map(|depth| {
            let mut decoder =
                Decoder::new(&mut target.model, Some(&mut draft.model), settings(0.0, depth)).unwrap();
            let mut text = target.language.text.stream(&tokens);
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

/// Every verifier, with paths and with the other trees that it supports: the draft is warm, so that trees branch.
#[test]
fn every_verifier_gives_the_tokens_of_plain_decoding_at_temperature_zero() {
    let (mut target, mut draft) = pair(Precision::F32);
    let prompts = prompts();
    let topology = Arc::new(Topology::sequoia(&[0.5, 0.2, 0.1], 8, 4).unwrap());
    let shapes = [
        Shape::chain(4),
        Shape::Paths { paths: 4, depth: 4 },
        Shape::Levels { counts: vec![3, 2, 1], drafting: Drafting::Iid },
        Shape::Levels { counts: vec![3, 2, 1], drafting: Drafting::Hub },
        Shape::Levels { counts: vec![3, 2, 1], drafting: Drafting::TopK },
        Shape::Fixed { topology, drafting: Drafting::WithoutReplacement },
    ];
    let mut run = |prompt: &str, speculation: Option<Speculation>| {
        let tokens = target.language.text.encode(prompt).unwrap();
        let settings = Settings { speculation, ..settings(0.0, None) };
        let mut decoder = Decoder::new(&mut target.model, Some(&mut draft.model), settings).unwrap();
        let mut text = target.language.text.stream(&tokens);
        let mut rng = ChaCha12Rng::seed_from_u64(5);
        let limits = Limits { max_tokens: Some(80), ..Limits::default() };
        Generation::run(&mut decoder, &tokens, &limits, &mut text, &mut rng, &mut |_| true).unwrap()
    };
    let plain: Vec<_> = prompts.iter().map(|prompt| run(prompt, None).tokens).collect();
    let mut runs = 0;
    for shape in shapes {
        for verifier in VerifierKind::all() {
            let Ok(_) = verifier.build(&shape) else { continue };
            for number in [runs % prompts.len(), (runs + 7) % prompts.len()] {
                let speculation = Speculation {
                    verifier: verifier.clone(),
                    shape: shape.clone(),
                    sampling: Sampling::default(),
                };
                let found = run(&prompts[number], Some(speculation));
                assert_eq!(found.tokens, plain[number], "{verifier}, {shape}, prompt {number}");
                assert!(found.statistics.block_efficiency() > 1.0, "{verifier}, {shape}");
            }
            runs += 1;
        }
    }
    assert!(runs > 20, "{runs}");
}

/// The probability that a fair sample deviates from the target's law of two tokens at least as much as `runs` texts
/// of `verifier` do.
fn p_value(runs: usize, verifier: impl Fn() -> Box<dyn Verifier>) -> f64 {
    let (mut target, mut draft) = pair(Precision::F32);
    let prompt = target.language.text.encode("impl Iterator for").unwrap();
    let settings = settings(1.0, Some(3));
    let sampling = settings.sampling;
    let mut decoder =
        Decoder::with_verifier(&mut target.model, Some(&mut draft.model), settings, verifier()).unwrap();
    let mut rng = ChaCha12Rng::seed_from_u64(17);
    let counts = count_texts(&mut decoder, &prompt, 2, runs, &mut rng, &mut || ()).unwrap();
    let test = GTest::new(&mut target.model, &sampling, &prompt, 2, &counts).unwrap();
    assert!(test.cells > 50, "{test:?}: too few to tell laws apart");
    test.p_value()
}

/// Of correct programs with random seeds, one in so many would fail this test.
const FALSE_ALARM: f64 = 1e-3;

#[test]
fn temperature_one_gives_the_targets_law_of_two_tokens() {
    let p = p_value(6000, || verifier("nested-priority", &shape(3)));
    assert!(p > FALSE_ALARM, "p = {p:e}");
}

#[test]
fn the_test_of_the_law_finds_a_planted_fault() {
    let p = p_value(1500, || Box::new(WrongResidual(verifier("nested-priority", &shape(3)))));
    assert!(p < FALSE_ALARM, "p = {p:e}");
}

#[test]
fn streamed_text_is_whole_characters_and_complete() {
    let (target, _) = pair(Precision::F32);
    let mut rng = ChaCha12Rng::seed_from_u64(3);
    // Text with characters of one to four bytes, and tokens that make no text at all.
    let sentence = "fn naïve() -> \"日本語 🦀🦀\" { é }";
    let mut cases = vec![target.language.text.encode(sentence).unwrap()];
    cases.extend((0..200).map(|_| (0..20).map(|_| rng.random_range(1..4096)).collect()));
    for (number, tokens) in cases.iter().enumerate() {
        let prompt = target.language.text.encode("let s = ").unwrap();
        let mut stream = target.language.text.stream(&prompt);
        let mut streamed = String::new();
        for &token in tokens {
            let piece = stream.push(token).unwrap();
            assert!(number > 0 || !piece.contains(char::REPLACEMENT_CHARACTER));
            streamed += &piece;
        }
        streamed += &stream.finish().unwrap();
        let whole = target.language.text.decode(&[&prompt[..], tokens].concat()).unwrap();
        let expected = whole.strip_prefix(&target.language.text.decode(&prompt).unwrap()).unwrap();
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
    let tokens = target.language.text.encode("pub fn new(").unwrap();
    for temperature in [0.0, 1.0] {
        let texts = [None, Some(4)].map(|depth| {
            let settings = settings(temperature, depth);
            let mut decoder = Decoder::new(&mut target.model, Some(&mut draft.model), settings).unwrap();
            let limits = Limits { max_tokens: Some(100), ..Limits::default() };
            let mut rng = ChaCha12Rng::seed_from_u64(1);
            let mut text = target.language.text.stream(&tokens);
            Generation::run(&mut decoder, &tokens, &limits, &mut text, &mut rng, &mut |_| true)
                .unwrap()
                .tokens
        });
        assert_eq!(texts.iter().map(Vec::len).collect::<Vec<_>>(), [100, 100]);
    }
}
