//! Limits, stop strings, seeds and statistics, on a model whose tokens are letters.

use std::collections::BTreeMap;

use polydraft::{PolicyKind, Token, VerifierKind};
use polydraft_engine::{
    Detokenizer, Engine, Finish, Generation, Limits, Model, ModelDrafter, Origin, OutputChunk,
    Request, Speculation, TableModel,
};
use rand::SeedableRng;
use rand_chacha::ChaCha12Rng;

/// Decodes tokens as the letters a, b, c, ...
struct Letters;

impl Detokenizer for Letters {
    fn push(&mut self, token: Token) -> polydraft::Result<String> {
        Ok(char::from(b'a' + token as u8).to_string())
    }

    fn finish(&mut self) -> polydraft::Result<String> {
        Ok(String::new())
    }
}

/// A model that repeats a, b, c, d.
fn cycle() -> TableModel {
    let one_hot = |hot: usize| (0..4).map(|i| if i == hot { 1.0 } else { 0.0 }).collect();
    let next =
        (0..4).map(|t| (vec![t], one_hot((t as usize + 1) % 4))).chain([(vec![], one_hot(0))]);
    TableModel::new("cycle", 4, next.collect()).unwrap()
}

fn even() -> TableModel {
    TableModel::new("even", 4, BTreeMap::from([(vec![], vec![0.25; 4])])).unwrap()
}

fn engine(target: TableModel, draft: TableModel) -> Engine {
    let drafter = ModelDrafter::new(Box::new(draft), &target.info().vocabulary).unwrap();
    Engine::new(Box::new(target), Some(Box::new(drafter)))
}

fn request(depth: usize, limits: &Limits, seed: u64) -> Request<'static> {
    let verifier = VerifierKind::Token(Default::default()).build().unwrap();
    let policy = PolicyKind::chain(depth).build().unwrap();
    Request::new([3])
        .speculation(Speculation::new(verifier, policy).unwrap())
        .limits(limits.clone())
        .detokenizer(Letters)
        .rng(ChaCha12Rng::seed_from_u64(seed))
}

fn run(
    target: TableModel,
    draft: TableModel,
    depth: usize,
    limits: &Limits,
    seed: u64,
) -> (Generation, Vec<OutputChunk>) {
    let mut chunks = Vec::new();
    let mut show = |chunk| {
        chunks.push(chunk);
        true
    };
    let generation =
        engine(target, draft).generate(request(depth, limits, seed), &mut show).unwrap();
    (generation, chunks)
}

fn limits(max_tokens: Option<usize>, end: &[Token], stop: &[&str]) -> Limits {
    Limits {
        max_tokens,
        end_tokens: end.to_vec(),
        stop: stop.iter().map(|s| s.to_string()).collect(),
        stop_outside: None,
    }
}

#[test]
fn reports_every_finish_reason() {
    let finish = |limits: &Limits, context: usize| {
        let (g, _) = run(cycle().with_context_length(context), cycle(), 3, limits, 0);
        (g.text, g.tokens.len(), g.finish)
    };
    assert_eq!(finish(&limits(Some(6), &[], &[]), 100), ("abcdab".into(), 6, Finish::MaxTokens));
    assert_eq!(finish(&limits(Some(0), &[], &[]), 100), ("".into(), 0, Finish::MaxTokens));
    assert_eq!(finish(&limits(None, &[], &[]), 8), ("abcdabc".into(), 7, Finish::Context));
    assert_eq!(finish(&limits(Some(50), &[], &["da"]), 100), ("abc".into(), 5, Finish::Stop));
    assert_eq!(finish(&limits(Some(50), &[], &["dx"]), 100).1, 50);
    // This detokenizer decodes the end token as a letter; a tokenizer would give it no text.
    assert_eq!(finish(&limits(Some(50), &[2], &[]), 100), ("ab".into(), 3, Finish::End));
    // Withheld text is shown if it does not become a stop string.
    assert_eq!(finish(&limits(Some(4), &[], &["dab"]), 100), ("abcd".into(), 4, Finish::MaxTokens));
}

#[test]
fn accepts_every_token_of_perfect_draft() {
    let (g, chunks) = run(cycle(), cycle(), 3, &limits(Some(10), &[], &[]), 0);
    assert_eq!(g.text, "abcdabcdab");
    assert_eq!(g.text, chunks.iter().map(|p| p.text.as_str()).collect::<String>());
    // 4 + 4 + 2: the last step drafts only one token, because two remain.
    let s = &g.statistics;
    assert_eq!((s.tokens, s.target_calls), (10, 3));
    assert_eq!((s.drafted.clone(), s.accepted.clone()), (vec![3, 2, 2], vec![3, 2, 2]));
    assert!((s.block_efficiency() - 10.0 / 3.0).abs() < 1e-12);
    assert_eq!(chunks.iter().filter(|p| p.origin == Origin::Bonus).count(), 3);
    assert!(chunks.iter().all(|p| p.origin != Origin::Correction));
}

#[test]
fn corrects_every_token_of_useless_draft() {
    let only_c = TableModel::new("c", 4, BTreeMap::from([(vec![], vec![0.0, 0.0, 1.0, 0.0])]));
    let (g, chunks) = run(cycle(), only_c.unwrap(), 2, &limits(Some(6), &[], &[]), 0);
    assert_eq!(g.text, "abcdab");
    // The draft is right once, after b. The last two steps draft one token and none, because of the
    // limit.
    let origins: Vec<Origin> = chunks.iter().map(|p| p.origin).collect();
    use Origin::{Accepted, Bonus, Correction};
    assert_eq!(origins, [Correction, Correction, Accepted, Correction, Correction, Bonus]);
    assert_eq!(g.statistics.accepted_by_position(), [0.25, 0.0]);
}

#[test]
fn seed_determines_output() {
    let limits = limits(Some(40), &[], &[]);
    let output = |seed| run(even(), cycle(), 3, &limits, seed).0.text;
    assert_eq!(output(5), output(5));
    assert_ne!(output(5), output(6));
}

#[test]
fn stops_when_callback_returns_false() {
    let mut engine = engine(cycle(), cycle());
    let g = engine.generate(request(1, &limits(None, &[], &[]), 0), &mut |_| false).unwrap();
    assert_eq!((g.tokens.len(), g.finish), (2, Finish::Stopped));
    // After it returns false, the callback is not called again.
    let mut shown = Vec::new();
    let mut show = |chunk: OutputChunk| {
        shown.push(chunk.text);
        shown.len() < 2
    };
    engine.generate(request(3, &limits(None, &[], &[]), 0), &mut show).unwrap();
    assert_eq!(shown, ["a", "b"]);
}

#[test]
fn session_is_polled_and_stopped() {
    let mut engine = engine(cycle(), cycle());
    let mut session = engine.open(request(3, &limits(Some(50), &[], &["zz"]), 0)).unwrap();
    assert_eq!((session.finish(), session.take_tokens().len()), (None, 0));
    engine.step(&mut [&mut session]).unwrap();
    assert_eq!(session.take_tokens().len(), 4);
    assert_eq!(session.take_chunks().iter().map(|p| p.text.as_str()).collect::<String>(), "abcd");
    assert!(session.take_tokens().is_empty() && session.take_chunks().is_empty());
    session.stop();
    assert_eq!(session.finish(), Some(Finish::Stopped));
    // A step does not change a session that is done.
    engine.step(&mut [&mut session]).unwrap();
    let generation = engine.close(session).unwrap();
    assert_eq!((generation.text.as_str(), generation.tokens.len()), ("abcd", 4));
}
