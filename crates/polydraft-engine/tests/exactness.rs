//! The emitted law of the whole decode loop, by exact enumeration on table models.

use std::collections::BTreeMap;

use std::sync::Arc;

use polydraft::conformance::planted::WrongResidual;
use polydraft::{
    Chance, DraftTree, Drafting, Laws, Outcome, Result as LawResult, Sampling, Shape, Token, Topology,
    Verifier, VerifierKind, enumerate,
};
use polydraft_engine::{Decoder, Model, Settings, Speculation, TableModel};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;

/// A random model of all contexts up to `memory` tokens; every third law has zeros or a tie.
fn random_model(rng: &mut ChaCha12Rng, vocabulary: usize, memory: usize) -> TableModel {
    let mut contexts: Vec<Vec<Token>> = vec![Vec::new()];
    let mut next = BTreeMap::new();
    for _ in 0..=memory {
        for context in &contexts {
            let mut law: Vec<f64> = (0..vocabulary).map(|_| -rng.random::<f64>().ln()).collect();
            match rng.random_range(0..6) {
                0 if vocabulary > 1 => law[rng.random_range(0..vocabulary)] = 0.0,
                1 => law = vec![1.0; vocabulary],
                _ => {}
            }
            let sum: f64 = law.iter().sum();
            let law = law.iter().map(|p| p / sum).collect();
            next.insert(context.clone(), law);
        }
        contexts = contexts
            .iter()
            .flat_map(|c| (0..vocabulary as Token).map(move |t| [&[t][..], c].concat()))
            .collect();
    }
    TableModel::new("random", vocabulary, next).unwrap()
}

/// The target's own law of the next `count` tokens after `prompt`, from its logits.
fn own_law(
    model: &mut TableModel,
    sampling: &Sampling,
    prompt: &[Token],
    count: usize,
) -> BTreeMap<Vec<Token>, f64> {
    let mut all = BTreeMap::from([(Vec::new(), 1.0)]);
    for _ in 0..count {
        let mut longer = BTreeMap::new();
        for (text, probability) in all {
            model.reset();
            model.extend(&[prompt, &text].concat()).unwrap();
            model.score(&DraftTree::new()).unwrap();
            let law = polydraft::Distribution::from_logits(model.logits(0), sampling).unwrap();
            for (token, p) in law.support() {
                longer.insert([&text[..], &[token]].concat(), probability * p);
            }
        }
        all = longer;
    }
    all
}

/// The largest deviation of the loop's law of the next `count` tokens from the target's.
fn deviation(
    target: &mut TableModel,
    draft: &mut TableModel,
    settings: Settings,
    verifier: Box<dyn Verifier>,
    prompt: &[Token],
    count: usize,
) -> f64 {
    let mut expected = own_law(target, &settings.sampling, prompt, count);
    let mut decoder = Decoder::with_verifier(target, Some(draft), settings, verifier).unwrap();
    let mut total = 0.0;
    for (probability, text) in enumerate(|chance| {
        decoder.start(prompt).unwrap();
        let mut text = Vec::new();
        while text.len() < count {
            // The limit, too, must not bend the law: let it bite in the last step.
            let step = decoder.step(count - text.len(), chance).unwrap();
            text.extend(step.emitted.iter().map(|e| e.token));
        }
        text
    }) {
        total += probability;
        *expected.entry(text).or_insert(0.0) -= probability;
    }
    assert!((total - 1.0).abs() < 1e-12, "{total}");
    expected.values().fold(0.0, |worst, d| worst.max(d.abs()))
}

fn speculate(depth: usize, target: Sampling, draft: Sampling) -> Settings {
    let shape = Shape::chain(depth);
    Settings {
        sampling: target,
        speculation: Some(Speculation { verifier: VerifierKind::Token, shape, sampling: draft }),
    }
}

fn token() -> Box<dyn Verifier> {
    VerifierKind::Token.build(&Shape::chain(1)).unwrap()
}

#[test]
fn the_law_is_the_targets() {
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
            for (target_sampling, draft_sampling) in samplings {
                for _ in 0..3 {
                    let mut target = random_model(&mut rng, vocabulary, 2);
                    let mut draft = random_model(&mut rng, vocabulary, 1);
                    let prompt: Vec<Token> = (0..rng.random_range(0..3))
                        .map(|_| rng.random_range(0..vocabulary as Token))
                        .collect();
                    let settings = speculate(depth, target_sampling, draft_sampling);
                    let verifier = token();
                    worst = worst.max(deviation(&mut target, &mut draft, settings, verifier, &prompt, 3));
                }
            }
        }
    }
    assert!(worst < 1e-12, "{worst:e}");
}

/// Every verifier on every kind of tree it supports, through the whole loop: merged paths, commits of branches, the cut
/// at the last token.
#[test]
fn the_law_is_the_targets_with_trees_too() {
    let mut rng = ChaCha12Rng::seed_from_u64(10);
    let plain = Sampling::default();
    let topology = Arc::new(Topology::from_parents(&[0, 0, 1]).unwrap());
    let levels = |counts: &[usize], drafting| Shape::Levels { counts: counts.to_vec(), drafting };
    let shapes = [
        Shape::chain(2),
        Shape::Paths { paths: 2, depth: 2 },
        Shape::Paths { paths: 3, depth: 1 },
        levels(&[2, 1], Drafting::Iid),
        levels(&[2, 2], Drafting::WithoutReplacement),
        levels(&[2], Drafting::Hub),
        levels(&[2, 1], Drafting::TopK),
        Shape::Fixed { topology, drafting: Drafting::WithoutReplacement },
    ];
    let (mut worst, mut runs) = (0.0_f64, 0);
    for shape in shapes {
        for kind in VerifierKind::all() {
            let Ok(_) = kind.build(&shape) else { continue };
            for (target_sampling, draft_sampling) in [
                (plain, plain),
                (Sampling { top_k: Some(2), ..plain }, Sampling { temperature: 1.6, ..plain }),
            ] {
                let (mut target, mut draft) = (random_model(&mut rng, 2, 2), random_model(&mut rng, 2, 2));
                let (verifier, shape) = (kind.clone(), shape.clone());
                let speculation =
                    Some(Speculation { verifier, shape: shape.clone(), sampling: draft_sampling });
                let settings = Settings { sampling: target_sampling, speculation };
                let verifier = kind.build(&shape).unwrap();
                worst = worst.max(deviation(&mut target, &mut draft, settings, verifier, &[1], 3));
                runs += 1;
            }
        }
    }
    assert!(worst < 1e-12 && runs > 80, "{worst:e} in {runs} runs");
}

#[test]
fn near_the_contexts_end_too() {
    let mut rng = ChaCha12Rng::seed_from_u64(8);
    for (target_room, draft_room) in [(5, 100), (100, 4), (5, 4), (4, 2), (100, 1)] {
        let mut target = random_model(&mut rng, 2, 2).with_context_length(target_room);
        let mut draft = random_model(&mut rng, 2, 2).with_context_length(draft_room);
        let settings = speculate(3, Sampling::default(), Sampling::default());
        let count = 3.min(target_room - 2);
        let verifier = token();
        let found = deviation(&mut target, &mut draft, settings, verifier, &[0, 1], count);
        assert!(found < 1e-12, "{target_room} {draft_room}: {found:e}");
    }
}

/// Accepts a little more often than it may.
struct TooEager;

impl Verifier for TooEager {
    fn verify(&mut self, tree: &DraftTree, laws: &dyn Laws, chance: &mut dyn Chance) -> LawResult<Outcome> {
        let Some(child) = tree.children(DraftTree::ROOT).next() else {
            return token().verify(tree, laws, chance);
        };
        let (target, draft, token) = (laws.target(0)?, laws.draft(0)?, tree.token(child));
        if chance.coin(1.000_001 * target.probability(token) / draft.probability(token)) {
            let token = laws.target(child)?.sample(chance);
            return Ok(Outcome { accepted: vec![child], token });
        }
        Ok(Outcome { accepted: Vec::new(), token: target.sample_residual(1.0, draft, 1.0, chance) })
    }
}

#[test]
fn planted_faults_are_found() {
    let mut rng = ChaCha12Rng::seed_from_u64(9);
    let (mut target, mut draft) = (random_model(&mut rng, 3, 1), random_model(&mut rng, 3, 1));
    let settings = speculate(2, Sampling::default(), Sampling::default());
    let mut found = |verifier| deviation(&mut target, &mut draft, settings.clone(), verifier, &[], 2);
    assert!(found(token()) < 1e-12);
    assert!(found(Box::new(WrongResidual(token()))) > 1e-3);
    assert!(found(Box::new(TooEager)) > 1e-9);
}

#[test]
fn expected_block_efficiency_has_its_closed_form() {
    // With laws that do not depend on the context, a drafted token is accepted with probability a = sum(min(p, q)),
    // and the expected number of tokens per call is 1 + a + .. + a^L (Leviathan et al. 2023, equation 1).
    let law = |p: [f64; 3]| TableModel::new("fixed", 3, BTreeMap::from([(vec![], p.to_vec())])).unwrap();
    let (mut target, mut draft) = (law([0.5, 0.3, 0.2]), law([0.2, 0.2, 0.6]));
    let (a, depth) = (0.2 + 0.2 + 0.2, 4);
    let settings = speculate(depth, Sampling::default(), Sampling::default());
    let mut decoder = Decoder::new(&mut target, Some(&mut draft), settings).unwrap();
    let runs = enumerate(|chance| {
        decoder.start(&[]).unwrap();
        decoder.step(100, chance).unwrap().emitted.len()
    });
    let mean: f64 = runs.iter().map(|(p, n)| p * *n as f64).sum();
    let expected: f64 = (0..=depth).map(|i| f64::powi(a, i as i32)).sum();
    assert!((mean - expected).abs() < 1e-6, "{mean} {expected}");
}

#[test]
fn mismatches_are_refused() {
    let model = |vocabulary: usize| {
        let law = vec![1.0 / vocabulary as f64; vocabulary];
        TableModel::new("even", vocabulary, BTreeMap::from([(vec![], law)])).unwrap()
    };
    let settings = speculate(2, Sampling::default(), Sampling::default());
    let message =
        Decoder::new(&mut model(3), Some(&mut model(2)), settings.clone()).err().unwrap().to_string();
    assert!(message.contains("target has 3 tokens, the draft 2"), "{message}");
    assert!(Decoder::new(&mut model(3), None, settings).is_err());
    let flat = speculate(0, Sampling::default(), Sampling::default());
    assert!(Decoder::new(&mut model(3), Some(&mut model(3)), flat).is_err());
    let cold =
        Settings { sampling: Sampling { temperature: -1.0, ..Sampling::default() }, speculation: None };
    assert!(Decoder::new(&mut model(3), None, cold).is_err());
    let mut short = model(3).with_context_length(2);
    let mut decoder = Decoder::new(&mut short, None, Settings::default()).unwrap();
    assert!(decoder.start(&[0, 1]).unwrap_err().to_string().contains("2 tokens"));
    assert!(decoder.start(&[7]).is_err());
}
