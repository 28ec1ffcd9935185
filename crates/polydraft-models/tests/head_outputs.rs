//! Outputs with draft heads: no token and no probability changes, however bad the head.

use crate::common;

use crate::common::heads::*;
use polydraft::{Drafting, PolicyKind, Sampling, Token, VerifierKind};
use polydraft_engine::certify::{compare, count_sequences};
use polydraft_engine::{Engine, Speculation};
use polydraft_models::Loaded;

fn engine(name: &str) -> Engine {
    let (target, head) = open_drafter(name);
    Engine::new(Box::new(target), Some(head))
}

fn methods() -> Vec<(VerifierKind, PolicyKind)> {
    let method = |verifier: &str, tree| (verifier.parse().unwrap(), tree);
    vec![
        method("block", PolicyKind::chain(3)),
        method("nested-priority", PolicyKind::paths(2, 3)),
        method("traversal", PolicyKind::levels(&[2, 2, 1], Drafting::WithoutReplacement)),
    ]
}

fn speculation((verifier, tree): &(VerifierKind, PolicyKind)) -> Speculation {
    let (verifier, policy) = (verifier.build().unwrap(), tree.build().unwrap());
    Speculation::new(verifier, policy).unwrap()
}

#[test]
fn same_output_as_plain_decoding_at_temperature_zero_for_any_batch() {
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    let Loaded { model, language, .. } = target();
    let mut plain = common::Pair { engine: Engine::new(Box::new(model), None), language };
    let prompts =
        ["a", "what a tree is", "x y z"].map(|text| plain.language.tokenizer.encode(text).unwrap());
    let expected: Vec<_> =
        prompts.iter().map(|prompt| plain.decode(prompt, greedy, None, None, 0).tokens).collect();
    for name in HEADS.into_iter().chain(BLOCKS) {
        for method in &methods() {
            let mut engine = engine(name);
            let request = |i: usize| {
                plain.request(&prompts[i], greedy, Some(speculation(method)), None, i as u64)
            };
            let mut sessions = vec![engine.open(request(0)).unwrap()];
            // Other sequences join one by one and leave when they are done.
            for step in 0.. {
                if step < 2 {
                    sessions.push(engine.open(request(step + 1)).unwrap());
                }
                if sessions.iter().all(|session| session.is_done()) {
                    break;
                }
                engine.step(&mut sessions.iter_mut().collect::<Vec<_>>()).unwrap();
            }
            for (session, expected) in sessions.into_iter().zip(&expected) {
                assert_eq!(engine.close(session).unwrap().tokens, *expected, "{name}, {method:?}");
            }
            // A cached prompt is reused together with its hidden states.
            let mut session = engine.open(request(1)).unwrap();
            while !session.is_done() {
                engine.step(&mut [&mut session]).unwrap();
            }
            assert_eq!(engine.close(session).unwrap().tokens, expected[1], "{name}, {method:?}");
        }
    }
}

#[test]
fn same_output_for_a_seed_in_any_batch() {
    let Loaded { language, .. } = target();
    let encode = |prompt: &str| language.tokenizer.encode(prompt).unwrap();
    let request = |prompt: &[Token], seed| {
        polydraft_engine::Request::new(prompt)
            .speculation(speculation(&methods()[1]))
            .limits(polydraft_engine::Limits::tokens(30))
            .rng(<rand_chacha::ChaCha12Rng as rand::SeedableRng>::seed_from_u64(seed))
    };
    for name in ["speculators", "eagle1", "dflash", "dspark", "dflash2"] {
        let alone = engine(name).generate(request(&encode("to be or"), 3), &mut |_| true).unwrap();
        let mut engine = engine(name);
        // A prompt with the same prefix is cached, and two other sequences are in the batch.
        engine.generate(request(&encode("to be or not to be"), 5), &mut |_| true).unwrap();
        let mut sessions = [("xyz", 1), ("to be or", 3), ("q", 2)]
            .map(|(prompt, seed)| engine.open(request(&encode(prompt), seed)).unwrap());
        while !sessions[1].is_done() {
            engine.step(&mut sessions.iter_mut().collect::<Vec<_>>()).unwrap();
        }
        let [_, session, _] = sessions;
        let found = engine.close(session).unwrap();
        assert_eq!(found.tokens, alone.tokens, "{name}");
        assert_eq!(found.statistics.target_calls, alone.statistics.target_calls, "{name}");
    }
}

/// Probability that a correct program with random seeds fails a test with this threshold.
const FALSE_ALARM_PROBABILITY: f64 = 1e-4;

/// Checks the distribution of two tokens. One test per method, because they take long and can run
/// in parallel.
fn check_distribution(method: &(VerifierKind, PolicyKind)) {
    let Loaded { language, .. } = target();
    let prompt = language.tokenizer.encode("to be or not").unwrap();
    // Few tokens, so that some outputs are much likelier than others.
    let sampling = Sampling { top_k: Some(8), ..Sampling::default() };
    for name in HEADS.into_iter().chain(["dflash", "dspark-speculators", "dflash2"]) {
        let mut engine = engine(name);
        let mut request = |run: usize| {
            let seed = 23_000 + run as u64;
            Ok::<_, polydraft_engine::Error>(
                polydraft_engine::Request::new(&prompt[..])
                    .sampling(sampling)
                    .speculation(speculation(method))
                    .rng(<rand_chacha::ChaCha12Rng as rand::SeedableRng>::seed_from_u64(seed)),
            )
        };
        let counts = count_sequences(&mut engine, 2, 2000, &mut request, &mut || true).unwrap();
        let test = compare(engine.target(), &sampling, &prompt, 2, &counts).unwrap();
        assert!(test.cells > 30, "{test:?}: too few to tell distributions apart");
        let p = test.p_value();
        assert!(p > FALSE_ALARM_PROBABILITY, "{name}, {method:?}: p = {p:e}");
    }
}

#[test]
fn targets_distribution_at_temperature_one_with_chains() {
    check_distribution(&methods()[0]);
}

#[test]
fn targets_distribution_at_temperature_one_with_paths() {
    check_distribution(&methods()[1]);
}

#[test]
fn targets_distribution_at_temperature_one_with_trees() {
    check_distribution(&methods()[2]);
}
