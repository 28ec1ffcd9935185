//! N-grams learned while decoding: exact, and close to the target's distribution.

use std::collections::BTreeMap;
use std::sync::Mutex;

use polydraft::random::Outcomes;
use polydraft::{Drafting, PolicyKind, RandomSource, Sampling, Token, enumerate};
use polydraft_engine::drafter::ngram::{LearningNgrams, NgramLearner, Settings, SharedNgrams};
use polydraft_engine::{Drafter, DrafterKind, Engine, Limits, Model, Request, Session, TableModel};
use rand::SeedableRng;
use rand_chacha::ChaCha12Rng;

use crate::common::{Setup, random_model, setup, target_distribution};

/// Creates an engine whose n-grams have learned nothing.
fn learning(target: &TableModel) -> (Engine, LearningNgrams) {
    let ngrams = LearningNgrams::new(NgramLearner::new(&target.info().vocabulary));
    let shared = Some(SharedNgrams::Learning(ngrams.clone()));
    let kind = DrafterKind::Ngram(Settings { shared, ..Settings::default() });
    let drafter = kind.build(target.info()).unwrap();
    (Engine::new(Box::new(target.clone()), Some(drafter)), ngrams)
}

/// One rng shared by several sessions.
struct SharedRng<'m, 'r, R>(&'m Mutex<&'r mut R>);

impl<R: RandomSource> RandomSource for SharedRng<'_, '_, R> {
    fn coin(&mut self, probability: f64) -> bool {
        self.0.lock().unwrap().coin(probability)
    }

    fn choose(&mut self, outcomes: &dyn Outcomes) -> usize {
        self.0.lock().unwrap().choose(outcomes)
    }

    fn shared_key(&mut self) -> Option<[u64; 2]> {
        self.0.lock().unwrap().shared_key()
    }
}

/// Returns the outputs of two sequences of one engine; the second begins after a step of the first.
fn both<R: RandomSource + Send>(
    setup: &Setup,
    target: &TableModel,
    prompts: [&[Token]; 2],
    count: usize,
    rng: &mut R,
) -> [Vec<Token>; 2] {
    let (mut engine, ngrams) = learning(target);
    let rng = Mutex::new(rng);
    let open = |engine: &mut Engine, prompt| {
        let verifier = setup.kind.build().unwrap();
        engine.open(setup.request(verifier, prompt, count, SharedRng(&rng))).unwrap()
    };
    let mut sessions = vec![open(&mut engine, prompts[0])];
    engine.step(&mut [&mut sessions[0]]).unwrap();
    sessions.push(open(&mut engine, prompts[1]));
    while sessions.iter().any(|session| !session.is_done()) {
        let mut batch: Vec<&mut Session> = sessions.iter_mut().collect();
        engine.step(&mut batch).unwrap();
    }
    assert_eq!(ngrams.learned() as usize, 2 * count);
    let mut done = sessions.into_iter().map(|session| engine.close(session).unwrap().tokens);
    [done.next().unwrap(), done.next().unwrap()]
}

/// The drafts of one sequence depend on the other's output. Their joint distribution is still the
/// product of the target's distributions.
#[test]
fn sequences_sharing_ngrams_stay_independent() {
    let mut rng = ChaCha12Rng::seed_from_u64(19);
    let plain = Sampling::default();
    let mut worst = 0.0_f64;
    for (kind, tree) in [
        ("token", PolicyKind::chain(1)),
        ("block", PolicyKind::chain(2)),
        ("nested-priority", PolicyKind::paths(2, 1)),
        ("specinfer", PolicyKind::levels(&[2], Drafting::WithoutReplacement)),
    ] {
        for target in [plain, Sampling { temperature: 0.6, ..plain }] {
            let model = random_model(&mut rng, 2, 2);
            let setup = Setup { target, ..setup(kind, tree.clone()) };
            let prompts: [&[Token]; 2] = [&[1, 0, 1], &[0]];
            let single =
                prompts.map(|prompt| target_distribution(&mut model.clone(), &target, prompt, 2));
            let mut expected = BTreeMap::new();
            for (first, p) in &single[0] {
                for (second, q) in &single[1] {
                    expected.insert([first.clone(), second.clone()], p * q);
                }
            }
            for (probability, tokens) in enumerate(|rng| both(&setup, &model, prompts, 2, rng)) {
                *expected.entry(tokens).or_insert(0.0) -= probability;
            }
            worst = expected.values().fold(worst, |worst, d| worst.max(d.abs()));
        }
    }
    assert!(worst < 1e-12, "{worst:e}");
}

/// After a long output the drafts match the target's distribution at temperature 1, whatever
/// temperature the output was drawn at.
#[test]
fn learns_target_distribution_at_any_temperature() {
    let mut rng = ChaCha12Rng::seed_from_u64(23);
    let target = random_model(&mut rng, 4, 2);
    for temperature in [0.0, 1.5] {
        let (mut engine, ngrams) = learning(&target);
        let mut last = 0;
        for seed in 0..20 {
            let sampling = Sampling { temperature, ..Sampling::default() };
            let request = Request::new([seed as Token % 4])
                .sampling(sampling)
                .limits(Limits::tokens(100))
                .rng(ChaCha12Rng::seed_from_u64(seed));
            let generation = engine.generate(request, &mut |_| true).unwrap();
            assert_eq!(generation.tokens.len(), 100);
            assert_eq!(ngrams.learned(), last + 100);
            last += 100;
        }
        let shared = Some(SharedNgrams::Table(ngrams.table().into()));
        let table = DrafterKind::Ngram(Settings { shared, ..Settings::default() });
        let mut fixed = table.build(target.info()).unwrap();
        // The context in which the greedy output ends was certainly learned.
        let context = [0, 0, 0, 0];
        let greedy = Request::new(context)
            .sampling(Sampling { temperature: 0.0, ..Sampling::default() })
            .limits(Limits::tokens(60));
        let mut generated = context.to_vec();
        generated.extend(engine.generate(greedy, &mut |_| true).unwrap().tokens);
        let sampling = Sampling::default();
        let expected = target_distribution(&mut target.clone(), &sampling, &generated, 1);
        let probs = next(fixed.as_mut(), &generated[generated.len() - 4..]);
        // The draft distribution is sharpened.
        let sharper = |p: f64| p.powf(1.4);
        let sum: f64 = expected.values().copied().map(sharper).sum();
        for (token, p) in expected {
            let (p, q) = (sharper(p) / sum, probs[token[0] as usize]);
            assert!((p - q).abs() < 0.1, "at {temperature}: {p} {probs:?}");
        }
    }
}

fn next(drafter: &mut dyn Drafter, context: &[Token]) -> Vec<f64> {
    let sequence = drafter.open().unwrap();
    drafter.extend(sequence, context).unwrap();
    drafter.score(&[(sequence, &polydraft::DraftTree::new())]).unwrap();
    drafter.distribution(sequence, 0, &Sampling::default(), None).unwrap().to_vec()
}

/// The steps of a cost measurement are not learned.
#[test]
fn measuring_costs_does_not_teach_ngrams() {
    let mut rng = ChaCha12Rng::seed_from_u64(29);
    let target = random_model(&mut rng, 3, 1);
    let (mut engine, ngrams) = learning(&target);
    let setup = setup("token", PolicyKind::chain(2));
    let mut request = |prompt: Vec<Token>, policy: PolicyKind| {
        let setup = Setup { tree: policy, ..setup.clone() };
        let rng = ChaCha12Rng::seed_from_u64(1);
        Ok(setup.request(setup.kind.build()?, &prompt, 40, rng))
    };
    engine.measure_costs(&[], &mut request).unwrap();
    assert_eq!(ngrams.learned(), 0);
}
