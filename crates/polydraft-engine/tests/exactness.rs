//! Emitted distribution of the whole decode loop, by exact enumeration on table models.

use std::collections::BTreeMap;

use polydraft::{
    Draft, DraftTree, Drafting, Form, Outcome, PolicyKind, RandomSource, Result as ProbsResult,
    Sampling, TargetDistributions, Token, Verifier, VerifierKind, enumerate,
};
use polydraft_engine::certify::WrongResidual;
use polydraft_engine::{
    DrafterKind, Engine, Error, Limits, Model, ModelDrafter, Request, Speculation, TableModel,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;

use crate::common::{Setup, engine, random_model, setup, target_distribution};

#[test]
fn token_verifier_keeps_distribution_on_chains() {
    let mut rng = ChaCha12Rng::seed_from_u64(7);
    let plain = Sampling::default();
    let samplings = [
        (plain, plain),
        (Sampling { temperature: 0.7, ..plain }, Sampling { temperature: 1.6, ..plain }),
        (Sampling { top_k: Some(2), ..plain }, plain),
        (plain, Sampling { top_p: 0.6, ..plain }),
        (Sampling { min_p: 0.3, ..plain }, Sampling { temperature: 0.0, ..plain }),
        (Sampling { temperature: 0.0, ..plain }, plain),
    ];
    let mut worst = 0.0_f64;
    for vocabulary in 1..=3 {
        for depth in 1..=3 {
            for (target, draft) in samplings {
                for _ in 0..3 {
                    let setup = Setup { target, draft, ..setup("token", PolicyKind::chain(depth)) };
                    let mut engine = engine(
                        &random_model(&mut rng, vocabulary, 2),
                        &random_model(&mut rng, vocabulary, 1),
                    );
                    let prompt: Vec<Token> = (0..rng.random_range(0..3))
                        .map(|_| rng.random_range(0..vocabulary as Token))
                        .collect();
                    worst = worst.max(setup.exact(&mut engine, &prompt, 3));
                }
            }
        }
    }
    assert!(worst < 1e-12, "{worst:e}");
}

/// Runs every verifier on every kind of tree it supports through the whole loop: merged paths,
/// commits of branches, the cut at the last token.
#[test]
fn every_verifier_keeps_distribution_on_its_trees() {
    let mut rng = ChaCha12Rng::seed_from_u64(10);
    let plain = Sampling::default();
    let levels = |counts: &[usize], drafting| PolicyKind::levels(counts, drafting);
    let tree = |name: &str| name.parse::<PolicyKind>().unwrap();
    let trees = [
        PolicyKind::chain(2),
        PolicyKind::paths(2, 2),
        PolicyKind::paths(3, 1),
        levels(&[2, 1], Drafting::Iid),
        levels(&[2, 2], Drafting::WithoutReplacement),
        levels(&[2], Drafting::Hub),
        levels(&[2, 1], Drafting::TopK),
        tree("fixed:0,0,1"),
        tree("fixed:0,0,1/iid"),
        tree("fixed:0,0,1/hub"),
        tree("distinct:2,2"),
        tree("distinct:3,1"),
        tree("delayed:1,2,1"),
        tree("stop-below:0.75,paths:2,2"),
    ];
    let (mut worst, mut runs) = (0.0_f64, 0);
    for tree in trees {
        for kind in VerifierKind::all() {
            if kind.build().unwrap().supports(&tree.build().unwrap().form()).is_err() {
                continue;
            }
            for (target, draft) in [
                (plain, plain),
                (Sampling { top_k: Some(2), ..plain }, Sampling { temperature: 1.6, ..plain }),
            ] {
                let mut engine =
                    engine(&random_model(&mut rng, 2, 2), &random_model(&mut rng, 2, 2));
                let setup = Setup { kind: kind.clone(), tree: tree.clone(), target, draft };
                worst = worst.max(setup.exact(&mut engine, &[1], 3));
                runs += 1;
            }
        }
    }
    assert!(worst < 1e-12 && runs > 110, "{worst:e} in {runs} runs");
}

#[test]
fn keeps_distribution_near_the_end_of_the_context() {
    let mut rng = ChaCha12Rng::seed_from_u64(8);
    for (target_context, draft_context) in [(5, 100), (100, 4), (5, 4), (4, 2), (100, 1)] {
        let target = random_model(&mut rng, 2, 2).with_context_length(target_context);
        let draft = random_model(&mut rng, 2, 2).with_context_length(draft_context);
        let setup = setup("token", PolicyKind::chain(3));
        let count = 3.min(target_context - 2);
        let found = setup.exact(&mut engine(&target, &draft), &[0, 1], count);
        assert!(found < 1e-12, "{target_context} {draft_context}: {found:e}");
    }
}

/// Counts of the sequence's n-grams, and with them the trees, change with every token.
#[test]
fn every_registered_drafter_keeps_the_distribution() {
    let mut rng = ChaCha12Rng::seed_from_u64(11);
    let mut worst = 0.0_f64;
    for (kind, tree) in [
        ("token", PolicyKind::chain(3)),
        ("block", PolicyKind::chain(2)),
        ("nested-priority", PolicyKind::paths(2, 2)),
        ("nested-priority", "stop-below:0.6,paths:2,2".parse().unwrap()),
        ("specinfer", PolicyKind::levels(&[2, 1], Drafting::WithoutReplacement)),
        ("walk:naive", PolicyKind::levels(&[2, 1], Drafting::TopK)),
    ] {
        for vocabulary in 2..=3 {
            let target = random_model(&mut rng, vocabulary, 2);
            for prompt in [&[][..], &[1, 0, 1, 1, 0, 1]] {
                for drafter in DrafterKind::all() {
                    let drafter = drafter.build(target.info()).unwrap();
                    let mut engine = Engine::new(Box::new(target.clone()), Some(drafter));
                    worst = worst.max(setup(kind, tree.clone()).exact(&mut engine, prompt, 3));
                }
            }
        }
    }
    assert!(worst < 1e-12, "{worst:e}");
}

/// Accepts slightly more often than allowed.
struct TooEager;

impl Verifier for TooEager {
    fn supports(&self, _: &Form) -> ProbsResult<()> {
        Ok(())
    }

    fn verify(
        &mut self,
        draft: &Draft,
        target: &dyn TargetDistributions,
        rng: &mut dyn RandomSource,
    ) -> ProbsResult<Outcome> {
        let probs = target.target(0)?;
        let Some(child) = draft.tree().children(DraftTree::ROOT).next() else {
            return Ok(Outcome { accepted: Vec::new(), token: probs.sample(rng) });
        };
        let (q, token) = (draft.drawn_from(0)?, draft.tree().token(child));
        if rng.coin(1.000_001 * probs.probability(token) / q.probability(token)) {
            let token = target.target(child)?.sample(rng);
            return Ok(Outcome { accepted: vec![child], token });
        }
        Ok(Outcome { accepted: Vec::new(), token: probs.sample_residual(1.0, q, 1.0, rng) })
    }
}

#[test]
fn test_detects_planted_faults() {
    let mut rng = ChaCha12Rng::seed_from_u64(9);
    let mut engine = engine(&random_model(&mut rng, 3, 1), &random_model(&mut rng, 3, 1));
    let setup = setup("token", PolicyKind::chain(2));
    let token = || setup.kind.build().unwrap();
    let mut found =
        |verifier: &dyn Fn() -> Box<dyn Verifier>| setup.deviation(&mut engine, verifier, &[], 2);
    assert!(found(&token) < 1e-12);
    assert!(found(&|| Box::new(WrongResidual(token()))) > 1e-3);
    assert!(found(&|| Box::new(TooEager)) > 1e-9);
}

#[test]
fn expected_block_efficiency_has_its_closed_form() {
    // With distributions that do not depend on the context, a drafted token is accepted with
    // probability a = sum(min(p, q)), and the expected number of tokens per call is 1 + a + .. +
    // a^L (Leviathan et al. 2023, equation 1).
    let probs =
        |p: [f64; 3]| TableModel::new("fixed", 3, BTreeMap::from([(vec![], p.to_vec())])).unwrap();
    let (a, depth) = (0.2 + 0.2 + 0.2, 4);
    let mut engine = engine(&probs([0.5, 0.3, 0.2]), &probs([0.2, 0.2, 0.6]));
    let setup = setup("token", PolicyKind::chain(depth));
    let runs = enumerate(|rng| {
        let request = setup.request(setup.kind.build().unwrap(), &[], 100, rng);
        let mut session = engine.open(request).unwrap();
        engine.step(&mut [&mut session]).unwrap();
        engine.close(session).unwrap().tokens.len()
    });
    let mean: f64 = runs.iter().map(|(p, n)| p * *n as f64).sum();
    let expected: f64 = (0..=depth).map(|i| f64::powi(a, i as i32)).sum();
    assert!((mean - expected).abs() < 1e-6, "{mean} {expected}");
}

fn even(vocabulary: usize) -> TableModel {
    let probs = vec![1.0 / vocabulary as f64; vocabulary];
    TableModel::new("even", vocabulary, BTreeMap::from([(vec![], probs)])).unwrap()
}

#[test]
fn rejects_draft_with_another_vocabulary() {
    let message =
        ModelDrafter::new(Box::new(even(2)), &even(3).info().vocabulary).err().unwrap().to_string();
    assert!(message.contains("target has 3 tokens, the draft 2"), "{message}");
}

fn open(engine: &mut Engine, setup: &Setup, prompt: &[Token]) -> Result<(), Error> {
    let rng = ChaCha12Rng::seed_from_u64(0);
    let request = setup.request(setup.kind.build().unwrap(), prompt, 5, rng);
    engine.open(request).map(|session| engine.close(session)).map(drop)
}

#[test]
fn rejects_speculation_without_a_drafter() {
    let plain = setup("token", PolicyKind::chain(2));
    let mut target_only = Engine::new(Box::new(even(3)), None);
    assert!(open(&mut target_only, &plain, &[]).unwrap_err().to_string().contains("a drafter"));
    assert!(open(&mut engine(&even(3), &even(3)), &plain, &[]).is_ok());
}

#[test]
fn rejects_tree_that_the_verifier_is_not_exact_for() {
    let verifier = setup("token", PolicyKind::chain(2)).kind.build().unwrap();
    let policy = PolicyKind::paths(2, 2).build().unwrap();
    let error = Speculation::new(verifier, policy).err().unwrap();
    assert!(error.to_string().contains("single path"));
}

#[test]
fn rejects_another_number_of_draft_samplings_than_drafts() {
    for (tree, settings) in [("distinct:2,1", 1), ("paths:2,1", 2), ("distinct:2,1", 0)] {
        let policy = tree.parse::<PolicyKind>().unwrap().build().unwrap();
        let walk = setup("specinfer", PolicyKind::chain(1)).kind.build().unwrap();
        let speculation = Speculation::new(walk, policy).unwrap();
        let error = speculation.with_draft_samplings(vec![Sampling::default(); settings]).err();
        assert!(error.unwrap().to_string().contains("drafts"), "{tree}");
    }
}

#[test]
fn rejects_negative_temperature() {
    let plain = setup("token", PolicyKind::chain(2));
    let target = Sampling { temperature: -1.0, ..Sampling::default() };
    assert!(open(&mut engine(&even(3), &even(3)), &Setup { target, ..plain }, &[]).is_err());
}

#[test]
fn rejects_prompt_that_fills_the_context_or_leaves_the_vocabulary() {
    let plain = setup("token", PolicyKind::chain(2));
    let mut short = engine(&even(3).with_context_length(2), &even(3));
    assert!(open(&mut short, &plain, &[0, 1]).unwrap_err().to_string().contains("2 tokens"));
    assert!(open(&mut short, &plain, &[7]).is_err());
}

/// A session's output does not depend on the other sessions of its batch.
#[test]
fn same_output_alone_and_in_a_batch() {
    let mut rng = ChaCha12Rng::seed_from_u64(12);
    let mut engine = engine(&random_model(&mut rng, 3, 2), &random_model(&mut rng, 3, 2));
    let setups: Vec<Setup> = [
        ("nested-priority", PolicyKind::paths(2, 3)),
        ("traversal", PolicyKind::levels(&[2, 2], Drafting::WithoutReplacement)),
        ("block", PolicyKind::chain(4)),
        ("specinfer", "delayed:1,2,2".parse().unwrap()),
    ]
    .map(|(kind, tree)| setup(kind, tree))
    .to_vec();
    let request = |setup: &Setup, seed: u64| {
        let rng = ChaCha12Rng::seed_from_u64(seed);
        setup.request(setup.kind.build().unwrap(), &[1], 40 + seed as usize, rng)
    };
    let alone: Vec<Vec<Token>> = (0..8)
        .map(|i| engine.generate(request(&setups[i % 4], i as u64), &mut |_| true).unwrap().tokens)
        .collect();
    // Sessions join one after the other and leave when they are done.
    let mut sessions = Vec::new();
    for i in 0..8 {
        sessions.push(engine.open(request(&setups[i % 4], i as u64)).unwrap());
        let mut batch: Vec<_> = sessions.iter_mut().rev().collect();
        engine.step(&mut batch).unwrap();
    }
    while sessions.iter().any(|session| !session.is_done()) {
        let mut batch: Vec<_> = sessions.iter_mut().collect();
        engine.step(&mut batch).unwrap();
    }
    for (session, alone) in sessions.into_iter().zip(alone) {
        assert_eq!(engine.close(session).unwrap().tokens, alone);
    }
}

/// For a given seed the output is the same with every draft and tree, and without speculation; only
/// the number of target passes differs.
#[test]
fn invariant_output_does_not_depend_on_the_draft() {
    let mut rng = ChaCha12Rng::seed_from_u64(13);
    let target = random_model(&mut rng, 6, 2);
    let drafts: Vec<TableModel> = [2, 1, 0]
        .into_iter()
        .map(|memory| random_model(&mut rng, 6, memory))
        .chain([even(6), target.clone()])
        .collect();
    let sampling = Sampling { temperature: 0.9, top_p: 0.95, ..Sampling::default() };
    let trees = [
        "paths:1,4",
        "paths:3,3",
        "3,2,1",
        "fixed:0,0,1,1,2",
        "delayed:1,2,2",
        "auto:4",
        "3,1/top-k",
        "budget:2,1.5",
    ];
    let mut calls = std::collections::BTreeSet::new();
    for seed in 0..6 {
        let rng = || ChaCha12Rng::seed_from_u64(seed);
        let prompt = vec![1, 4];
        let mut plain = Engine::new(Box::new(target.clone()), None);
        let request =
            Request::new(&prompt[..]).sampling(sampling).limits(Limits::tokens(60)).rng(rng());
        let mut session = plain.open(request).unwrap();
        session.share_randomness();
        let expected = plain.complete(session, &mut |_| true).unwrap();
        assert_eq!((expected.tokens.len(), expected.statistics.target_calls), (60, 60));
        for draft in &drafts {
            let mut engine = engine(&target, draft);
            for tree in trees {
                let kind = setup("invariant", tree.parse().unwrap());
                let request =
                    kind.request(kind.kind.build().unwrap(), &prompt, 60, rng()).sampling(sampling);
                let generation = engine.generate(request, &mut |_| true).unwrap();
                assert_eq!(generation.tokens, expected.tokens, "{tree}, seed {seed}");
                calls.insert(generation.statistics.target_calls);
            }
        }
    }
    // Drafts of all kinds were accepted, and rejected.
    assert!(calls.len() > 10 && calls.first() < Some(&25), "{calls:?}");
}

/// Drawing with shared randomness does not change the distribution of plain decoding.
#[test]
fn plain_decoding_with_shared_randomness_keeps_distribution() {
    let mut rng = ChaCha12Rng::seed_from_u64(14);
    for vocabulary in 1..=3 {
        let mut engine = Engine::new(Box::new(random_model(&mut rng, vocabulary, 2)), None);
        let sampling = Sampling::default();
        let mut expected = target_distribution(engine.target(), &sampling, &[0], 3);
        for (probability, tokens) in enumerate(|rng| {
            let request = Request::new([0]).sampling(sampling).limits(Limits::tokens(3)).rng(rng);
            let mut session = engine.open(request).unwrap();
            session.share_randomness();
            engine.complete(session, &mut |_| true).unwrap().tokens
        }) {
            *expected.entry(tokens).or_insert(0.0) -= probability;
        }
        assert!(expected.values().all(|left| left.abs() < 1e-12), "{expected:?}");
    }
}
