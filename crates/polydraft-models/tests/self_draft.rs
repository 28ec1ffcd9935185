//! Self-drafts: a model's own weights in fewer bits.

use std::path::Path;

use crate::common::*;
use polydraft::{Distribution, DraftTree, PolicyKind, Sampling, Token, VerifierKind};
use polydraft_engine::{Engine, KvCacheFollower, Model, ModelDrafter, Sequences, Speculation};
use polydraft_models::{
    Description, Error, LoadOptions, Loaded, Opened, Precision, SelfDraftFile, TransformerModel,
    load,
};
use polydraft_text::Language;

fn load_with_self_draft(directory: &Path, precision: Precision, copy: Precision) -> Loaded {
    load(directory, LoadOptions { precision, self_draft: Some(copy), ..LoadOptions::default() })
        .unwrap()
}

const TOKENS: [Token; 9] = [5, 17, 3, 3, 40, 22, 9, 51, 60];

#[test]
fn self_draft_equals_the_model_loaded_in_its_precision() {
    let directory = tempfile::tempdir().unwrap();
    write_model(directory.path(), &tensors(3, Dtype::BF16));
    for copy in [Precision::Q8_0, Precision::Bf16] {
        // An untied embedding is in f32 beside quantised matrices in both cases.
        let mut loaded = load_with_self_draft(directory.path(), Precision::F32, copy);
        let mut quantised = open(directory.path(), copy);
        let mut self_draft_model = SingleSequence::new(loaded.self_draft.take().unwrap());
        assert_eq!(alone(&mut self_draft_model, &TOKENS), alone(&mut quantised, &TOKENS), "{copy}");
        assert_ne!(self_draft_model.model.info().name, loaded.model.info().name);
    }
    for copy in [Precision::Q4_0, Precision::Q4_1, Precision::Q5_1] {
        // Without a sample text weights are rounded without a search.
        let mut model = load(directory.path(), LoadOptions::default()).unwrap().model;
        let mut self_draft_model = SingleSequence::new(model.rounded(copy, &[]).unwrap());
        let mut quantised = open(directory.path(), copy);
        assert_eq!(alone(&mut self_draft_model, &TOKENS), alone(&mut quantised, &TOKENS), "{copy}");
    }
    // Rounds the numbers in memory, not those in the file: numbers on the grid of a type do not
    // change.
    let mut twice = SingleSequence::new(
        load_with_self_draft(directory.path(), Precision::Q4_0, Precision::Q4_0)
            .self_draft
            .unwrap(),
    );
    let mut once = open(directory.path(), Precision::Q4_0);
    let off = distance(&alone(&mut twice, &TOKENS), &alone(&mut once, &TOKENS));
    assert!(off < 1e-4, "{off}");
}

/// With weights from a sample text, the demo target's self-draft in 4 bits is closer to the target
/// than without.
#[test]
fn importance_weights_increase_acceptance_in_few_bits() {
    let prompts = include_str!("../../../bench/prompts.jsonl");
    let distributions = |model: &mut SingleSequence, language: &Language| -> Vec<Distribution> {
        let probs = |line: &str| {
            let prompt: serde_json::Value = serde_json::from_str(line).unwrap();
            let tokens = language.tokenizer.encode(prompt["prompt"].as_str().unwrap()).unwrap();
            let distributions = (2..tokens.len()).step_by(2).map(|end| {
                Distribution::from_logits(&alone(model, &tokens[..end]), &Sampling::default())
                    .unwrap()
            });
            distributions.collect::<Vec<_>>()
        };
        prompts.lines().flat_map(probs).collect()
    };
    for copy in [Precision::Q4_0, Precision::Q4_1, Precision::Q5_1] {
        let Loaded { model, self_draft, language, .. } =
            load_with_self_draft(&demo("target"), Precision::F32, copy);
        let [target, weighted, unweighted] = [
            SingleSequence::new(model),
            SingleSequence::new(self_draft.unwrap()),
            open(&demo("target"), copy),
        ]
        .map(|mut model| distributions(&mut model, &language));
        let acceptance = |draft: &[Distribution]| {
            let all: f64 =
                draft.iter().zip(&target).map(|(draft, target)| draft.overlap(target)).sum();
            all / target.len() as f64
        };
        let (weighted, unweighted) = (acceptance(&weighted), acceptance(&unweighted));
        assert!(
            target.len() > 100 && weighted > unweighted,
            "{copy}: {weighted}, {unweighted}, {}",
            target.len()
        );
    }
}

#[test]
fn tied_embedding_is_shared_but_the_output_matrix_is_rounded() {
    let directory = tempfile::tempdir().unwrap();
    let mut tensors = tensors(4, Dtype::F32);
    tensors.remove("lm_head.weight");
    write_model(directory.path(), &tensors);
    change_config(directory.path(), |config| config["tie_word_embeddings"] = true.into());
    let loaded = load_with_self_draft(directory.path(), Precision::F32, Precision::Q8_0);
    let (mut model, mut copy) =
        (SingleSequence::new(loaded.model), SingleSequence::new(loaded.self_draft.unwrap()));
    let off = distance(&alone(&mut model, &TOKENS), &alone(&mut copy, &TOKENS));
    assert!(off > 1e-5 && off < 0.2, "{off}");
    // The description gives the additional memory in advance.
    let description = Description::read(directory.path()).unwrap();
    assert_eq!(copy.model.bytes_per_pass() as u64, description.self_draft_bytes(Precision::Q8_0));
}

#[test]
fn same_output_with_self_draft_at_temperature_zero() {
    let directory = tempfile::tempdir().unwrap();
    write_model(directory.path(), &tensors(5, Dtype::F32));
    for (precision, copy) in [(Precision::F32, Precision::Q4_0), (Precision::Q8_0, Precision::Q4_1)]
    {
        let Loaded { model, self_draft: copy, language, .. } =
            load_with_self_draft(directory.path(), precision, copy);
        let drafter = ModelDrafter::new(Box::new(copy.unwrap()), &language.vocabulary).unwrap();
        let engine = Engine::new(Box::new(model), Some(Box::new(drafter)));
        let mut pair = Pair { engine, language };
        let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
        let plain = pair.decode(&TOKENS, sampling, None, Some(60), 1);
        let speculation = || {
            let verifier = "nested-priority".parse::<VerifierKind>().unwrap().build().unwrap();
            let policy = PolicyKind::paths(2, 3).build().unwrap();
            Speculation::new(verifier, policy).unwrap().with_sampling(sampling)
        };
        let drafted = pair.decode(&TOKENS, sampling, Some(speculation()), Some(60), 1);
        assert_eq!(drafted.tokens, plain.tokens);
        assert!(
            drafted.statistics.block_efficiency() > 2.0,
            "{}",
            drafted.statistics.block_efficiency()
        );
    }
}

/// A self-draft with the model's weights that follows its KV cache computes the model's logits, and
/// does not change the cache.
#[test]
fn follows_the_models_kv_cache() {
    let directory = tempfile::tempdir().unwrap();
    write_model(directory.path(), &tensors(7, Dtype::BF16));
    let loaded = load_with_self_draft(directory.path(), Precision::Bf16, Precision::Bf16);
    let (mut model, mut copy) = (loaded.model, loaded.self_draft.unwrap());
    let mut other = load(directory.path(), LoadOptions::default()).unwrap().model;
    assert!(!copy.follow_kv_cache(&other) && copy.follow_kv_cache(&model));
    // More than one page of tokens; both models write to the second page.
    let tokens: Vec<Token> = TOKENS.iter().copied().cycle().take(40).collect();
    let mut tree = DraftTree::new();
    let child = tree.add(DraftTree::ROOT, 7);
    tree.add(DraftTree::ROOT, 8);
    tree.add(child, 9);
    let logits = |model: &TransformerModel, sequence| -> Vec<Vec<f32>> {
        (0..tree.len()).map(|node| model.logits(sequence, node).to_vec()).collect()
    };
    let (model_sequence, copy_sequence) = (model.open().unwrap(), copy.open().unwrap());
    model.extend(model_sequence, &tokens).unwrap();
    copy.extend(copy_sequence, &tokens).unwrap();
    let left = model.prepare(model_sequence, 36).unwrap();
    assert_eq!(left, 3);
    // It computes tokens that the model has not computed.
    for known in [36, 20, 0] {
        copy.sync_kv_cache(copy_sequence, &model, model_sequence, known).unwrap();
        assert_eq!(copy.computed_tokens(copy_sequence), known);
        copy.score(&[(copy_sequence, &tree)]).unwrap();
    }
    let by_itself = logits(&copy, copy_sequence);
    model.prepare(model_sequence, 99).unwrap();
    copy.sync_kv_cache(copy_sequence, &model, model_sequence, 39).unwrap();
    assert_eq!(copy.computed_tokens(copy_sequence), 39);
    copy.score(&[(copy_sequence, &tree)]).unwrap();
    model.score(&[(model_sequence, &tree)]).unwrap();
    assert_eq!(logits(&copy, copy_sequence), logits(&model, model_sequence));
    assert_eq!(logits(&copy, copy_sequence), by_itself);

    // After different commits neither sees the other's tokens.
    model.commit(model_sequence, &tree, &[child, 3]).unwrap();
    copy.commit(copy_sequence, &tree, &[2]).unwrap();
    let mut alone =
        SingleSequence::new(load(directory.path(), LoadOptions::default()).unwrap().model);
    for (model, sequence, more) in
        [(&mut copy, copy_sequence, &[8, 1][..]), (&mut model, model_sequence, &[7, 9, 1])]
    {
        model.extend(sequence, &[1]).unwrap();
        model.score(&[(sequence, &DraftTree::new())]).unwrap();
        let quantised = [&tokens[..], more].concat();
        assert_eq!(model.logits(sequence, DraftTree::ROOT), self::alone(&mut alone, &quantised));
    }
    // It does not follow another model's cache.
    let another = other.open().unwrap();
    let computed = copy.computed_tokens(copy_sequence);
    copy.sync_kv_cache(copy_sequence, &other, another, 0).unwrap();
    assert_eq!(copy.computed_tokens(copy_sequence), computed);
    // Shared entries are not cached after closing: the model caches them.
    copy.close(copy_sequence);
    assert_eq!(copy.cache_bytes(), 0);
}

#[test]
fn needed_bytes_include_the_self_draft() {
    let directory = tempfile::tempdir().unwrap();
    write_model(directory.path(), &tensors(6, Dtype::F32));
    let description = Description::read(directory.path()).unwrap();
    let alone = LoadOptions::default();
    let both = LoadOptions { self_draft: Some(Precision::Q8_0), ..alone };
    let model_bytes = description.needed_bytes(alone);
    assert!(description.needed_bytes(both) > model_bytes);
    load(directory.path(), LoadOptions { memory: Some(model_bytes), ..alone }).unwrap();
    let error =
        load(directory.path(), LoadOptions { memory: Some(model_bytes), ..both }).unwrap_err();
    assert!(matches!(error, Error::Memory { .. }), "{error}");
}

/// Loads a model with its self-draft, which is read from a file in `folder` or else written there.
fn load_or_write(directory: &Path, folder: &Path, options: LoadOptions) -> (SelfDraftFile, Loaded) {
    let opened = Opened::new(directory).unwrap();
    let file = SelfDraftFile::new(folder, &opened.description, &options).unwrap();
    let loaded = opened.load_with(options, Some(&file)).unwrap();
    if !loaded.was_cached {
        file.write(loaded.self_draft.as_ref().unwrap()).unwrap();
    }
    (file, loaded)
}

#[test]
fn cached_self_draft_equals_the_written_one() {
    let (directory, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // The folder is created.
    let folder = &folder.path().join("copies");
    write_model(directory.path(), &tensors(7, Dtype::F32));
    let logits =
        |loaded: Loaded| alone(&mut SingleSequence::new(loaded.self_draft.unwrap()), &TOKENS);
    for (precision, copy) in [
        (Precision::F32, Precision::Q4_0),
        (Precision::F32, Precision::Q4_1),
        (Precision::Bf16, Precision::Q5_1),
        // Stored in q8_0: these matrices are too narrow for q4_k.
        (Precision::F32, Precision::Q4K),
    ] {
        let options = LoadOptions { precision, self_draft: Some(copy), ..LoadOptions::default() };
        let (file, made) = load_or_write(directory.path(), folder, options);
        let (again, read) = load_or_write(directory.path(), folder, options);
        assert_eq!((made.was_cached, read.was_cached), (false, true), "{copy}");
        assert_eq!(file, again);
        assert_eq!(
            read.self_draft.as_ref().unwrap().info(),
            made.self_draft.as_ref().unwrap().info()
        );
        assert_eq!(logits(read), logits(made), "{copy}");
    }
    // One file per combination of precisions.
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 4);
    // Self-drafts that are made as fast as read are not cached.
    let description = Description::read(directory.path()).unwrap();
    for copy in [None, Some(Precision::Q8_0)] {
        let options = LoadOptions { self_draft: copy, ..LoadOptions::default() };
        assert_eq!(SelfDraftFile::new(folder, &description, &options), None);
    }
}

#[test]
fn damaged_or_outdated_file_is_ignored() {
    let (directory, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_model(directory.path(), &tensors(8, Dtype::F32));
    let options = LoadOptions { self_draft: Some(Precision::Q5_1), ..LoadOptions::default() };
    let (file, made) = load_or_write(directory.path(), folder.path(), options);
    let expected = alone(&mut SingleSequence::new(made.self_draft.unwrap()), &TOKENS);
    let quantised = std::fs::read(file.path()).unwrap();
    let load = || {
        let opened = Opened::new(directory.path()).unwrap();
        let file = SelfDraftFile::new(folder.path(), &opened.description, &options).unwrap();
        opened.load_with(options, Some(&file)).unwrap()
    };
    // Any changed bit and any cut.
    let header = u64::from_le_bytes(quantised[..8].try_into().unwrap()) as usize;
    let mut damaged = 0;
    for (at, bit) in (0..quantised.len()).step_by(quantised.len() / 300).zip((0..8).cycle()) {
        let mut bytes = quantised.clone();
        bytes[at] ^= 1 << bit;
        std::fs::write(file.path(), &bytes).unwrap();
        let loaded = load();
        // White space in the header may change.
        assert!(!loaded.was_cached || at < 8 + header, "bit {bit} of byte {at}");
        damaged += usize::from(!loaded.was_cached);
        assert_eq!(
            alone(&mut SingleSequence::new(loaded.self_draft.unwrap()), &TOKENS),
            expected,
            "bit {bit} of byte {at}"
        );
    }
    assert!(damaged > 290, "{damaged}");
    for length in [0, 7, 8, header, 8 + header, quantised.len() - 1] {
        std::fs::write(file.path(), &quantised[..length]).unwrap();
        assert!(!load().was_cached, "{length} bytes");
    }
    std::fs::write(file.path(), &quantised).unwrap();
    assert!(load().was_cached);
    // Only the model's weights change.
    write_model(directory.path(), &tensors(9, Dtype::F32));
    let loaded = load();
    assert!(!loaded.was_cached);
    assert_ne!(alone(&mut SingleSequence::new(loaded.self_draft.unwrap()), &TOKENS), expected);
}
