//! Shipped pair of models: speculation changes no token at temperature 0 and no probability at
//! temperature 1.

use crate::common::{Pair, demo, open_pair};
use polydraft::{Drafting, PolicyKind, Sampling, Topology, Verifier, VerifierKind};
use polydraft_engine::certify::{WrongResidual, compare, count_sequences};
use polydraft_engine::{Detokenizer, Speculation};
use polydraft_models::Precision;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;

fn pair(precision: Precision) -> Pair {
    open_pair(&demo("target"), &demo("draft"), precision)
}

/// Whether to run exhaustive tests, which take long.
fn exhaustive() -> bool {
    std::env::var_os("POLYDRAFT_EXHAUSTIVE").is_some()
}

fn prompts() -> Vec<String> {
    let text = include_str!("../../../bench/prompts.jsonl");
    let value = |line| serde_json::from_str::<serde_json::Value>(line).unwrap();
    text.lines().map(|line| value(line)["prompt"].as_str().unwrap().to_owned()).collect()
}

fn at(temperature: f64) -> Sampling {
    Sampling { temperature, ..Sampling::default() }
}

fn verifier(name: &str) -> Box<dyn Verifier> {
    name.parse::<VerifierKind>().unwrap().build().unwrap()
}

/// Speculation with two paths and nested priorities.
fn two_paths(temperature: f64, depth: usize) -> Speculation {
    let (verifier, policy) =
        (verifier("nested-priority"), PolicyKind::paths(2, depth).build().unwrap());
    Speculation::new(verifier, policy).unwrap().with_sampling(at(temperature))
}

#[test]
fn same_output_as_plain_decoding_at_temperature_zero() {
    let mut pair = pair(Precision::F32);
    let prompts = prompts();
    assert!(prompts.len() >= 20);
    for (number, prompt) in prompts.iter().enumerate() {
        let tokens = pair.language.tokenizer.encode(prompt).unwrap();
        // Some run to the end of the context: no limit, no end token.
        let limit = (number % 4 != 0 && !exhaustive()).then_some(120);
        let [plain, speculative] = [None, Some(1 + number % 8)].map(|depth| {
            pair.decode(&tokens, at(0.0), depth.map(|depth| two_paths(0.0, depth)), limit, 0)
        });
        let remaining = pair.engine.info().context - tokens.len();
        assert_eq!(plain.tokens.len(), limit.unwrap_or(remaining));
        assert_eq!(plain.tokens, speculative.tokens, "prompt {number}");
        assert_eq!(plain.text, speculative.text);
        assert_eq!(plain.statistics.block_efficiency(), 1.0);
        assert!(speculative.statistics.block_efficiency() > 1.0);
    }
}

/// Every verifier, with paths and with the other trees that it supports. The draft samples at
/// temperature 1, so that trees branch.
#[test]
fn same_output_as_plain_decoding_at_temperature_zero_for_every_verifier_and_tree() {
    let mut pair = pair(Precision::F32);
    let prompts = prompts();
    let topology = Topology::sequoia(&[0.5, 0.2, 0.1], 8, 4).unwrap();
    let levels = |drafting| PolicyKind::levels(&[3, 2, 1], drafting);
    let trees = [
        PolicyKind::chain(4),
        PolicyKind::paths(4, 4),
        levels(Drafting::Iid),
        levels(Drafting::Hub),
        levels(Drafting::TopK),
        PolicyKind::Fixed(polydraft::policy::Fixed {
            parents: topology.parents(),
            drafting: Drafting::WithoutReplacement,
        }),
        "delayed:2,3,2".parse().unwrap(),
        "stop-below:0.2,paths:3,6".parse().unwrap(),
    ];
    let mut run = |prompt: &str, speculation| {
        let tokens = pair.language.tokenizer.encode(prompt).unwrap();
        pair.decode(&tokens, at(0.0), speculation, Some(80), 5)
    };
    let plain: Vec<_> = prompts.iter().map(|prompt| run(prompt, None).tokens).collect();
    let mut runs = 0;
    for tree in trees {
        for kind in VerifierKind::all() {
            if kind.build().unwrap().supports(&tree.build().unwrap().form()).is_err() {
                continue;
            }
            let all = [runs % prompts.len(), (runs + 7) % prompts.len()];
            for &number in if exhaustive() { &all[..] } else { &all[..1] } {
                let speculation =
                    Speculation::new(kind.build().unwrap(), tree.build().unwrap()).unwrap();
                let got = run(&prompts[number], Some(speculation));
                assert_eq!(got.tokens, plain[number], "{kind}, {tree}, prompt {number}");
                assert!(got.statistics.block_efficiency() > 1.0, "{kind}, {tree}");
            }
            runs += 1;
        }
    }
    assert!(runs > 30, "{runs}");
}

/// p-value of `runs` outputs of `verifier` under the target's distribution of two tokens: the
/// probability that a correct sample deviates at least as much.
fn p_value(runs: usize, verifier: impl Fn() -> Box<dyn Verifier>) -> f64 {
    let mut pair = pair(Precision::F32);
    let prompt = pair.language.tokenizer.encode("impl Iterator for").unwrap();
    let mut requests: Vec<_> = (0..runs)
        .map(|run| {
            let speculation = two_paths(1.0, 3).map_verifier(|_| verifier()).unwrap();
            Some(pair.request(&prompt, at(1.0), Some(speculation), None, 17_000 + run as u64))
        })
        .collect();
    let mut request = |run: usize| Ok::<_, polydraft_engine::Error>(requests[run].take().unwrap());
    let counts = count_sequences(&mut pair.engine, 2, runs, &mut request, &mut || true).unwrap();
    let test = compare(pair.engine.target(), &at(1.0), &prompt, 2, &counts).unwrap();
    assert!(test.cells > 50, "{test:?}: too few to tell distributions apart");
    test.p_value()
}

/// Probability that a correct program with random seeds fails this test.
const FALSE_ALARM_PROBABILITY: f64 = 1e-3;

#[test]
fn two_tokens_have_the_targets_distribution_at_temperature_one() {
    let p = p_value(3000, || verifier("nested-priority"));
    assert!(p > FALSE_ALARM_PROBABILITY, "p = {p:e}");
}

#[test]
fn distribution_test_detects_wrong_residual() {
    let p = p_value(1500, || Box::new(WrongResidual(verifier("nested-priority"))));
    assert!(p < FALSE_ALARM_PROBABILITY, "p = {p:e}");
}

#[test]
fn streamed_text_is_complete_and_never_splits_characters() {
    let pair = pair(Precision::F32);
    let mut rng = ChaCha12Rng::seed_from_u64(3);
    // Characters of one to four bytes, and random tokens that need not form valid text.
    let sentence = "fn naïve() -> \"日本語 🦀🦀\" { é }";
    let mut cases = vec![pair.language.tokenizer.encode(sentence).unwrap()];
    cases.extend((0..200).map(|_| (0..20).map(|_| rng.random_range(1..4096)).collect()));
    for (number, tokens) in cases.iter().enumerate() {
        let prompt = pair.language.tokenizer.encode("let s = ").unwrap();
        let mut stream = pair.language.tokenizer.stream(&prompt);
        let mut streamed = String::new();
        for &token in tokens {
            let chunk = stream.push(token).unwrap();
            assert!(number > 0 || !chunk.contains(char::REPLACEMENT_CHARACTER));
            streamed += &chunk;
        }
        streamed += &stream.finish().unwrap();
        let decoded = pair.language.tokenizer.decode(&[&prompt[..], tokens].concat()).unwrap();
        let expected =
            decoded.strip_prefix(&pair.language.tokenizer.decode(&prompt).unwrap()).unwrap();
        // Invalid bytes may be shown as fewer or more U+FFFD; the rest must be equal.
        let valid = |text: &str| text.replace(char::REPLACEMENT_CHARACTER, "");
        assert_eq!(valid(&streamed), valid(expected), "case {number}");
        if number == 0 {
            assert_eq!(streamed, expected);
        }
    }
}

// Not the same tokens: quantising the inputs of a product makes rounding errors jump, and ties
// break there.
#[test]
fn quantised_models_decode_to_the_token_limit() {
    let mut pair = pair(Precision::Q8_0);
    let tokens = pair.language.tokenizer.encode("pub fn new(").unwrap();
    for temperature in [0.0, 1.0] {
        let outputs = [None, Some(4)].map(|depth| {
            let speculation = depth.map(|depth| two_paths(temperature, depth));
            pair.decode(&tokens, at(temperature), speculation, Some(100), 1).tokens
        });
        assert_eq!(outputs.iter().map(Vec::len).collect::<Vec<_>>(), [100, 100]);
    }
}
