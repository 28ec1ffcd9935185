//! Speculation on llama.cpp changes no token at temperature 0 and no probability at temperature 1.
//! Also with a published model, where POLYDRAFT_SMOLLM2 names its file (`bench/fetch_models.sh
//! smollm2 FOLDER`).
#![cfg(feature = "native")]

mod support;

use std::path::Path;

use polydraft::{Drafting, PolicyKind, Sampling, Token, VerifierKind};
use polydraft_engine::certify::{compare, count_sequences};
use polydraft_engine::{DrafterKind, Engine, Limits, ModelDrafter, Request, Speculation};
use polydraft_llama::{LlamaOptions, load, quantise};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use support::*;

type Method = (VerifierKind, PolicyKind);

/// Every verifier, with the first of a few trees that it supports.
fn methods() -> Vec<Method> {
    let levels = [Drafting::Iid, Drafting::WithoutReplacement, Drafting::Hub, Drafting::Greedy]
        .map(|drafting| PolicyKind::levels(&[2, 2, 1], drafting));
    let trees: Vec<PolicyKind> =
        [2, 1].map(|paths| PolicyKind::paths(paths, 3)).into_iter().chain(levels).collect();
    let fits = |verifier: &VerifierKind| {
        let built = verifier.build().unwrap();
        trees.iter().find(|tree| built.supports(&tree.build().unwrap().form()).is_ok()).cloned()
    };
    let methods: Vec<_> = VerifierKind::all().into_iter().map(|v| (fits(&v), v)).collect();
    assert!(methods.len() > 5);
    methods
        .into_iter()
        .map(|(tree, v)| (v.clone(), tree.unwrap_or_else(|| panic!("{v} has no tree"))))
        .collect()
}

fn request(
    prompt: &[Token],
    sampling: Sampling,
    method: Option<&Method>,
    length: usize,
    seed: u64,
) -> Request<'static> {
    let speculation = method.map(|(verifier, tree)| {
        Speculation::new(verifier.build().unwrap(), tree.build().unwrap()).unwrap()
    });
    Request::new(prompt)
        .sampling(sampling)
        .speculation(speculation)
        .limits(Limits::tokens(length))
        .rng(ChaCha8Rng::seed_from_u64(seed))
}

fn pair(target: &Path, draft: &Path, options: &LlamaOptions) -> Engine {
    let (target, draft) = (load(target, options).unwrap().0, load(draft, options).unwrap().0);
    let drafter = ModelDrafter::new(draft, &target.info().vocabulary).unwrap();
    Engine::new(target, Some(Box::new(drafter)))
}

const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: None, top_p: 1.0, min_p: 0.0 };

#[test]
fn same_tokens_as_plain_decoding_at_temperature_zero_for_every_kind_of_model() {
    // Every kind drafts for the one before it.
    for (kind, drafts) in Kind::ALL.into_iter().zip(Kind::ALL.into_iter().cycle().skip(1)) {
        let (target, draft) = (file(&writer(kind, 1, 2.0)), file(&writer(drafts, 2, 2.0)));
        let mut engine = pair(target.path(), draft.path(), &options());
        let prompt = random_tokens(&mut rand_chacha::ChaCha12Rng::seed_from_u64(3), 20);
        let mut generate = |method: Option<&Method>| {
            engine.generate(request(&prompt, GREEDY, method, 40, 0), &mut |_| true).unwrap().tokens
        };
        let plain = generate(None);
        assert_eq!(plain.len(), 40);
        let distinct: std::collections::BTreeSet<_> = plain.iter().collect();
        assert!(distinct.len() > 5, "{kind:?} writes {plain:?}");
        for method in methods() {
            assert_eq!(generate(Some(&method)), plain, "{kind:?}, {method:?}");
        }
    }
}

/// Probability that a correct program with random seeds fails a test with this threshold.
const FALSE_ALARM_PROBABILITY: f64 = 1e-4;
/// Scale of the logits with which some outputs are much likelier than others, and many are likely
/// enough to be counted.
const LOGIT_SCALE: f32 = 2.5;

#[test]
fn two_tokens_have_the_targets_distribution_at_temperature_one() {
    for kind in Kind::ALL {
        let (target, draft) =
            (file(&writer(kind, 4, LOGIT_SCALE)), file(&writer(Kind::Plain, 5, 1.0)));
        let mut engine = pair(target.path(), draft.path(), &options());
        let prompt = random_tokens(&mut rand_chacha::ChaCha12Rng::seed_from_u64(6), 12);
        let (sampling, method) =
            (Sampling::default(), ("nested-priority".parse().unwrap(), PolicyKind::paths(3, 2)));
        let mut requests: Vec<_> = (0..3000)
            .map(|run| Some(request(&prompt, sampling, Some(&method), 2, 17_000 + run)))
            .collect();
        let mut next = |run: usize| Ok::<_, polydraft_engine::Error>(requests[run].take().unwrap());
        let counts = count_sequences(&mut engine, 2, 3000, &mut next, &mut || true).unwrap();
        let test = compare(engine.target(), &sampling, &prompt, 2, &counts).unwrap();
        assert!(test.cells > 30, "{kind:?}, {test:?}: too few to tell distributions apart");
        let p = test.p_value();
        assert!(p > FALSE_ALARM_PROBABILITY, "{kind:?}: p = {p:e}");
    }
}

/// A published model with n-grams as drafter, and with a q4_0 copy of itself that llama.cpp makes:
/// outputs equal those of plain decoding, except for ties.
#[test]
fn published_model_generates_plain_decodings_output_with_drafts() {
    let Some(path) = std::env::var_os("POLYDRAFT_SMOLLM2") else {
        return gguf::report_skipped("POLYDRAFT_SMOLLM2");
    };
    let path = Path::new(&path);
    // llama.cpp's defaults for the cache and attention.
    let options = LlamaOptions {
        context: Some(512),
        threads: 1,
        batch_threads: 1,
        ..LlamaOptions::default()
    };
    let folder = tempfile::tempdir().unwrap();
    let small = folder.path().join("q4_0.gguf");
    quantise(path, &small, "q4_0").unwrap();
    assert!(quantise(path, &small, "q9").unwrap_err().to_string().contains("q8_0"));
    let mut engines = vec![pair(path, &small, &options)];
    let (target, language) = load(path, &options).unwrap();
    let ngram = "ngram".parse::<DrafterKind>().unwrap().build(target.info()).unwrap();
    engines.push(Engine::new(target, Some(ngram)));
    let method = ("nested-priority".parse().unwrap(), PolicyKind::paths(3, 3));
    let (mut same, mut all) = (0, 0);
    for (number, text) in ["Why is the sky blue?", "The old lighthouse had"].iter().enumerate() {
        let prompt = language.tokenizer.encode(text).unwrap();
        for engine in &mut engines {
            let mut generate = |method| {
                engine
                    .generate(request(&prompt, GREEDY, method, 32, 0), &mut |_| true)
                    .unwrap()
                    .tokens
            };
            let (plain, drafted) = (generate(None), generate(Some(&method)));
            all += 1;
            let first_difference = plain.iter().zip(&drafted).position(|(a, b)| a != b);
            let Some(first_difference) = first_difference else {
                same += 1;
                continue;
            };
            // Distance of the two tokens' logits for a target that reads the prefix at once.
            let target = engine.target();
            let sequence = target.open().unwrap();
            target.extend(sequence, &[&prompt[..], &plain[..first_difference]].concat()).unwrap();
            let logits = after(target, sequence);
            target.close(sequence);
            let gap = (logits[plain[first_difference] as usize]
                - logits[drafted[first_difference] as usize])
                .abs();
            eprintln!("prompt {number}: a tie at token {first_difference}, {gap} apart");
            assert!(gap < 0.3, "prompt {number}, token {first_difference}: {gap}");
        }
    }
    eprintln!("{same} of {all} outputs equal plain decoding's");
    assert!(2 * same > all, "{same} of {all}");
}
