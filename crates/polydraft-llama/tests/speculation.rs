//! Speculation on llama.cpp: no token changes at temperature 0 and no probability at temperature 1.
//! Of a published model too, where POLYDRAFT_SMOLLM2 names its file (`bench/fetch_models.sh smollm2
//! FOLDER`).
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

type Way = (VerifierKind, PolicyKind);

/// Every verifier, with the first of a few trees that it takes.
fn ways() -> Vec<Way> {
    let levels = [Drafting::Iid, Drafting::WithoutReplacement, Drafting::Hub, Drafting::Greedy]
        .map(|drafting| PolicyKind::levels(&[2, 2, 1], drafting));
    let trees: Vec<PolicyKind> =
        [2, 1].map(|paths| PolicyKind::paths(paths, 3)).into_iter().chain(levels).collect();
    let fits = |verifier: &VerifierKind| {
        let working = verifier.build().unwrap();
        trees.iter().find(|tree| working.supports(&tree.build().unwrap().form()).is_ok()).cloned()
    };
    let ways: Vec<_> = VerifierKind::all().into_iter().map(|v| (fits(&v), v)).collect();
    assert!(ways.len() > 5);
    ways.into_iter()
        .map(|(tree, v)| (v.clone(), tree.unwrap_or_else(|| panic!("{v} has no tree"))))
        .collect()
}

fn request(
    prompt: &[Token],
    sampling: Sampling,
    way: Option<&Way>,
    length: usize,
    seed: u64,
) -> Request<'static> {
    let speculation = way.map(|(verifier, tree)| {
        Speculation::new(verifier.build().unwrap(), tree.build().unwrap()).unwrap()
    });
    Request::new(prompt)
        .sampling(sampling)
        .speculation(speculation)
        .limits(Limits::tokens(length))
        .rng(ChaCha8Rng::seed_from_u64(seed))
}

fn pair(target: &Path, draft: &Path, options: &LlamaOptions) -> Engine {
    let (target, draft) =
        (load(target, options).unwrap().model, load(draft, options).unwrap().model);
    let drafter = ModelDrafter::new(draft, &target.info().vocabulary).unwrap();
    Engine::new(target, Some(Box::new(drafter)))
}

const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: None, top_p: 1.0, min_p: 0.0 };

#[test]
fn temperature_zero_gives_the_tokens_of_plain_decoding_of_every_kind() {
    // Every kind drafts for the next.
    for (kind, drafts) in Kind::ALL.into_iter().zip(Kind::ALL.into_iter().cycle().skip(1)) {
        let (target, draft) = (file(&writer(kind, 1, 2.0)), file(&writer(drafts, 2, 2.0)));
        let mut engine = pair(target.path(), draft.path(), &options());
        let prompt = random_text(&mut rand_chacha::ChaCha12Rng::seed_from_u64(3), 20);
        let mut write = |way: Option<&Way>| {
            engine.generate(request(&prompt, GREEDY, way, 40, 0), &mut |_| true).unwrap().tokens
        };
        let plain = write(None);
        assert_eq!(plain.len(), 40);
        let distinct: std::collections::BTreeSet<_> = plain.iter().collect();
        assert!(distinct.len() > 5, "{kind:?} writes {plain:?}");
        for way in ways() {
            assert_eq!(write(Some(&way)), plain, "{kind:?}, {way:?}");
        }
    }
}

/// Of correct programs with random seeds, one in so many would fail a test against this.
const FALSE_ALARM: f64 = 1e-4;
/// Some texts are much likelier than others, and many are likely enough to be counted.
const STRETCH: f32 = 2.5;

#[test]
fn temperature_one_gives_the_targets_distribution_of_two_tokens() {
    for kind in Kind::ALL {
        let (target, draft) = (file(&writer(kind, 4, STRETCH)), file(&writer(Kind::Plain, 5, 1.0)));
        let mut engine = pair(target.path(), draft.path(), &options());
        let prompt = random_text(&mut rand_chacha::ChaCha12Rng::seed_from_u64(6), 12);
        let (sampling, way) =
            (Sampling::default(), ("nested-priority".parse().unwrap(), PolicyKind::paths(3, 2)));
        let mut requests: Vec<_> = (0..3000)
            .map(|run| Some(request(&prompt, sampling, Some(&way), 2, 17_000 + run)))
            .collect();
        let mut next = |run: usize| Ok::<_, polydraft_engine::Error>(requests[run].take().unwrap());
        let counts = count_sequences(&mut engine, 2, 3000, &mut next, &mut || true).unwrap();
        let test = compare(engine.target(), &sampling, &prompt, 2, &counts).unwrap();
        assert!(test.cells > 30, "{kind:?}, {test:?}: too few to tell distributions apart");
        let p = test.p_value();
        assert!(p > FALSE_ALARM, "{kind:?}: p = {p:e}");
    }
}

/// A published model with n-grams, and with its own copies of 8 and 4 bits, which llama.cpp makes:
/// texts of plain decoding, but for ties.
#[test]
fn a_published_model_writes_plain_decodings_text_with_drafts() {
    let Some(path) = std::env::var_os("POLYDRAFT_SMOLLM2") else {
        return gguf::skipped("POLYDRAFT_SMOLLM2");
    };
    let path = Path::new(&path);
    // As llama.cpp computes where nothing is said.
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
    let target = load(path, &options).unwrap();
    let ngram = "ngram".parse::<DrafterKind>().unwrap().build(target.model.info()).unwrap();
    engines.push(Engine::new(target.model, Some(ngram)));
    let way = ("nested-priority".parse().unwrap(), PolicyKind::paths(3, 3));
    let (mut same, mut all) = (0, 0);
    for (number, text) in ["Why is the sky blue?", "The old lighthouse had"].iter().enumerate() {
        let prompt = target.language.tokenizer.encode(text).unwrap();
        for engine in &mut engines {
            let mut write = |way| {
                engine.generate(request(&prompt, GREEDY, way, 32, 0), &mut |_| true).unwrap().tokens
            };
            let (plain, drafted) = (write(None), write(Some(&way)));
            all += 1;
            let parted = plain.iter().zip(&drafted).position(|(a, b)| a != b);
            let Some(parted) = parted else {
                same += 1;
                continue;
            };
            // How far the two tokens are apart for a target that reads the text at once.
            let target = engine.target();
            let sequence = target.open().unwrap();
            target.extend(sequence, &[&prompt[..], &plain[..parted]].concat()).unwrap();
            let logits = after(target, sequence);
            target.close(sequence);
            let gap = (logits[plain[parted] as usize] - logits[drafted[parted] as usize]).abs();
            eprintln!("prompt {number}: a tie at token {parted}, {gap} apart");
            assert!(gap < 0.3, "prompt {number}, token {parted}: {gap}");
        }
    }
    eprintln!("{same} of {all} texts are plain decoding's to the last token");
    assert!(2 * same > all, "{same} of {all}");
}
