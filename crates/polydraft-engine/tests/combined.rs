//! Combined drafters in one tree: the emitted distribution is the target's.

use polydraft::{PolicyKind, Sampling, VerifierKind};
use polydraft_engine::{CombinedDrafter, Drafter, DrafterKind, Engine, Model, ModelDrafter};
use rand::SeedableRng;
use rand_chacha::ChaCha12Rng;

use crate::common::{Setup, random_model, setup};

/// Drafts of several models, or of a model and n-grams, in one tree: each node's children have
/// known source distributions.
#[test]
fn several_drafters_keep_distribution() {
    let mut rng = ChaCha12Rng::seed_from_u64(11);
    let plain = Sampling::default();
    let (mut worst, mut runs) = (0.0_f64, 0);
    for (tree, models) in [("distinct:2,2", 2), ("distinct:3,1", 3), ("distinct:2,2", 1)] {
        let tree: PolicyKind = tree.parse().unwrap();
        for kind in VerifierKind::all() {
            if kind.build().unwrap().supports(&tree.build().unwrap().form()).is_err() {
                continue;
            }
            for (vocabulary, target) in
                [(2, plain), (3, plain), (3, Sampling { top_k: Some(2), ..plain })]
            {
                let model = random_model(&mut rng, vocabulary, 2);
                let info = model.info().clone();
                let mut drafters: Vec<Box<dyn Drafter>> = Vec::new();
                for _ in 0..models {
                    let draft = random_model(&mut rng, vocabulary, 2);
                    let draft = ModelDrafter::new(Box::new(draft), &info.vocabulary).unwrap();
                    drafters.push(Box::new(draft));
                }
                if models == 1 {
                    let ngram: DrafterKind = "ngram".parse().unwrap();
                    drafters.push(ngram.build(&info).unwrap());
                }
                let combined = CombinedDrafter::new(drafters).unwrap();
                let mut engine = Engine::new(Box::new(model), Some(Box::new(combined)));
                let setup = Setup { kind: kind.clone(), tree: tree.clone(), target, draft: plain };
                worst = worst.max(setup.exact(&mut engine, &[1, 0, 1], 3));
                runs += 1;
            }
        }
    }
    assert!(worst < 1e-12 && runs >= 18, "{worst:e} in {runs} runs");
}

/// N-grams mixed into a draft's distribution, with every verifier and some trees.
#[test]
fn mixed_in_ngrams_keep_distribution() {
    let mut rng = ChaCha12Rng::seed_from_u64(17);
    let plain = Sampling::default();
    let (mut worst, mut runs) = (0.0_f64, 0);
    for tree in ["paths:1,2", "paths:2,2"] {
        let tree: PolicyKind = tree.parse().unwrap();
        for kind in VerifierKind::all() {
            if kind.build().unwrap().supports(&tree.build().unwrap().form()).is_err() {
                continue;
            }
            for draft_temperature in [1.0, 0.5, 0.0] {
                let model = random_model(&mut rng, 3, 2);
                let info = model.info().clone();
                let draft = random_model(&mut rng, 3, 2);
                let draft = ModelDrafter::new(Box::new(draft), &info.vocabulary).unwrap();
                let ngrams = "ngram".parse::<DrafterKind>().unwrap().build(&info).unwrap();
                let mixed = CombinedDrafter::with_ngrams(Box::new(draft), ngrams);
                let mut engine = Engine::new(Box::new(model), Some(Box::new(mixed)));
                let draft = Sampling { temperature: draft_temperature, ..plain };
                let setup = Setup { kind: kind.clone(), tree: tree.clone(), target: plain, draft };
                // A prompt that repeats itself, so that the n-grams are confident.
                worst = worst.max(setup.exact(&mut engine, &[1, 0, 2, 1, 0, 2, 1, 0], 3));
                runs += 1;
            }
        }
    }
    assert!(worst < 1e-12 && runs >= 18, "{worst:e} in {runs} runs");
}

#[test]
fn rejects_tree_with_other_number_of_drafts() {
    let mut rng = ChaCha12Rng::seed_from_u64(13);
    let target = random_model(&mut rng, 2, 1);
    let one = || -> Box<dyn Drafter> {
        let draft = Box::new(target.clone());
        Box::new(ModelDrafter::new(draft, &target.info().vocabulary).unwrap())
    };
    let error = CombinedDrafter::new(vec![one()]).err().unwrap();
    assert!(error.to_string().contains("at least two"), "{error}");
    let combined = CombinedDrafter::new(vec![one(), one()]).unwrap();
    let mut engine = Engine::new(Box::new(target.clone()), Some(Box::new(combined)));
    for tree in ["paths:2,2", "distinct:3,1"] {
        let setup = setup("specinfer", tree.parse().unwrap());
        let rng = ChaCha12Rng::seed_from_u64(1);
        let request = setup.request(setup.kind.build().unwrap(), &[1], 2, rng);
        let error = engine.open(request).err().unwrap().to_string();
        assert!(error.contains("a tree of 2 drafts"), "{error}");
    }
    let setup = setup("specinfer", "distinct:2,1".parse().unwrap());
    let request = setup.request(setup.kind.build().unwrap(), &[1], 2, rng);
    assert_eq!(engine.generate(request, &mut |_| true).unwrap().tokens.len(), 2);
}
