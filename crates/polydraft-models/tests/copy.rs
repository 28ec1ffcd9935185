//! A model's own weights once more, in fewer bits.

use std::path::Path;

use crate::common::*;
use polydraft::{Distribution, DraftTree, PolicyKind, Sampling, Token, VerifierKind};
use polydraft_engine::{Engine, KvCacheFollower, Model, ModelDrafter, Sequences, Speculation};
use polydraft_models::{
    Description, Error, LoadOptions, Loaded, Opened, Precision, SelfDraftFile, TransformerModel,
    load,
};
use polydraft_text::Language;

fn with_copy(directory: &Path, precision: Precision, copy: Precision) -> Loaded {
    load(directory, LoadOptions { precision, self_draft: Some(copy), ..LoadOptions::default() })
        .unwrap()
}

const TEXT: [Token; 9] = [5, 17, 3, 3, 40, 22, 9, 51, 60];

#[test]
fn a_copy_is_the_model_loaded_in_fewer_bits() {
    let directory = tempfile::tempdir().unwrap();
    write_model(directory.path(), &tensors(3, Dtype::BF16));
    for copy in [Precision::Q8_0, Precision::Bf16] {
        // An embedding of its own is in f32 beside quantised matrices either way.
        let mut loaded = with_copy(directory.path(), Precision::F32, copy);
        let mut whole = open(directory.path(), copy);
        let mut copied = Single::new(loaded.self_draft.take().unwrap());
        assert_eq!(alone(&mut copied, &TEXT), alone(&mut whole, &TEXT), "{copy}");
        assert_ne!(copied.model.info().name, loaded.model.info().name);
    }
    for copy in [Precision::Q4_0, Precision::Q4_1, Precision::Q5_1] {
        // Without a text that shows what counts, as they come.
        let mut model = load(directory.path(), LoadOptions::default()).unwrap().model;
        let mut copied = Single::new(model.rounded(copy, &[]).unwrap());
        let mut whole = open(directory.path(), copy);
        assert_eq!(alone(&mut copied, &TEXT), alone(&mut whole, &TEXT), "{copy}");
    }
    // Of the numbers that the model holds, not of those in the file; what lies on a grid stays
    // there.
    let mut twice = Single::new(
        with_copy(directory.path(), Precision::Q4_0, Precision::Q4_0).self_draft.unwrap(),
    );
    let mut held = open(directory.path(), Precision::Q4_0);
    let off = distance(&alone(&mut twice, &TEXT), &alone(&mut held, &TEXT));
    assert!(off < 1e-4, "{off}");
}

/// Rounded for what its inputs are, the demo target in 4 bits is nearer to itself than as its
/// weights come.
#[test]
fn what_counts_is_kept_in_four_bits() {
    let prompts = include_str!("../../../bench/prompts.jsonl");
    let distributions = |model: &mut Single, language: &Language| -> Vec<Distribution> {
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
        let Loaded { model, self_draft: found, language, .. } =
            with_copy(&demo("target"), Precision::F32, copy);
        let [target, found, as_it_comes] =
            [Single::new(model), Single::new(found.unwrap()), open(&demo("target"), copy)]
                .map(|mut model| distributions(&mut model, &language));
        let acceptance = |draft: &[Distribution]| {
            let all: f64 =
                draft.iter().zip(&target).map(|(draft, target)| draft.overlap(target)).sum();
            all / target.len() as f64
        };
        let (found, as_it_comes) = (acceptance(&found), acceptance(&as_it_comes));
        assert!(
            target.len() > 100 && found > as_it_comes,
            "{copy}: {found}, {as_it_comes}, {}",
            target.len()
        );
    }
}

#[test]
fn a_tied_embedding_is_shared_and_its_head_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let mut tensors = tensors(4, Dtype::F32);
    tensors.remove("lm_head.weight");
    write_model(directory.path(), &tensors);
    change_config(directory.path(), |config| config["tie_word_embeddings"] = true.into());
    let loaded = with_copy(directory.path(), Precision::F32, Precision::Q8_0);
    let (mut model, mut copy) =
        (Single::new(loaded.model), Single::new(loaded.self_draft.unwrap()));
    let off = distance(&alone(&mut model, &TEXT), &alone(&mut copy, &TEXT));
    assert!(off > 1e-5 && off < 0.2, "{off}");
    // What it takes besides is known before.
    let description = Description::read(directory.path()).unwrap();
    assert_eq!(copy.model.bytes_per_pass() as u64, description.self_draft_bytes(Precision::Q8_0));
}

#[test]
fn it_drafts_without_changing_the_text() {
    let directory = tempfile::tempdir().unwrap();
    write_model(directory.path(), &tensors(5, Dtype::F32));
    for (precision, copy) in [(Precision::F32, Precision::Q4_0), (Precision::Q8_0, Precision::Q4_1)]
    {
        let Loaded { model, self_draft: copy, language, .. } =
            with_copy(directory.path(), precision, copy);
        let drafter = ModelDrafter::new(Box::new(copy.unwrap()), &language.vocabulary).unwrap();
        let engine = Engine::new(Box::new(model), Some(Box::new(drafter)));
        let mut pair = Pair { engine, language };
        let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
        let plain = pair.decode(&TEXT, sampling, None, Some(60), 1);
        let speculation = || {
            let verifier = "nested-priority".parse::<VerifierKind>().unwrap().build().unwrap();
            let policy = PolicyKind::paths(2, 3).build().unwrap();
            Speculation::new(verifier, policy).unwrap().with_sampling(sampling)
        };
        let drafted = pair.decode(&TEXT, sampling, Some(speculation()), Some(60), 1);
        assert_eq!(drafted.tokens, plain.tokens);
        assert!(
            drafted.statistics.block_efficiency() > 2.0,
            "{}",
            drafted.statistics.block_efficiency()
        );
    }
}

/// One with the same weights computes behind what the model computed what the model itself does,
/// and changes nothing there.
#[test]
fn it_goes_on_behind_what_the_model_computed() {
    let directory = tempfile::tempdir().unwrap();
    write_model(directory.path(), &tensors(7, Dtype::BF16));
    let loaded = with_copy(directory.path(), Precision::Bf16, Precision::Bf16);
    let (mut model, mut copy) = (loaded.model, loaded.self_draft.unwrap());
    let mut other = load(directory.path(), LoadOptions::default()).unwrap().model;
    assert!(!copy.follow_kv_cache(&other) && copy.follow_kv_cache(&model));
    // More than a page of tokens, and some of another one, to which both write.
    let text: Vec<Token> = TEXT.iter().copied().cycle().take(40).collect();
    let mut tree = DraftTree::new();
    let child = tree.add(DraftTree::ROOT, 7);
    tree.add(DraftTree::ROOT, 8);
    tree.add(child, 9);
    let logits = |model: &TransformerModel, sequence| -> Vec<Vec<f32>> {
        (0..tree.len()).map(|node| model.logits(sequence, node).to_vec()).collect()
    };
    let (own, its) = (model.open().unwrap(), copy.open().unwrap());
    model.extend(own, &text).unwrap();
    copy.extend(its, &text).unwrap();
    let left = model.prepare(own, 36).unwrap();
    assert_eq!(left, 3);
    // What is not computed there it computes.
    for known in [36, 20, 0] {
        copy.sync_kv_cache(its, &model, own, known).unwrap();
        assert_eq!(copy.computed(its), known);
        copy.score(&[(its, &tree)]).unwrap();
    }
    let by_itself = logits(&copy, its);
    model.prepare(own, 99).unwrap();
    copy.sync_kv_cache(its, &model, own, 39).unwrap();
    assert_eq!(copy.computed(its), 39);
    copy.score(&[(its, &tree)]).unwrap();
    model.score(&[(own, &tree)]).unwrap();
    assert_eq!(logits(&copy, its), logits(&model, own));
    assert_eq!(logits(&copy, its), by_itself);

    // Texts that go different ways: neither sees what the other one writes.
    model.commit(own, &tree, &[child, 3]).unwrap();
    copy.commit(its, &tree, &[2]).unwrap();
    let mut alone = Single::new(load(directory.path(), LoadOptions::default()).unwrap().model);
    for (model, sequence, more) in [(&mut copy, its, &[8, 1][..]), (&mut model, own, &[7, 9, 1])] {
        model.extend(sequence, &[1]).unwrap();
        model.score(&[(sequence, &DraftTree::new())]).unwrap();
        let whole = [&text[..], more].concat();
        assert_eq!(model.logits(sequence, DraftTree::ROOT), self::alone(&mut alone, &whole));
    }
    // Behind another model it computes everything itself.
    let another = other.open().unwrap();
    let computed = copy.computed(its);
    copy.sync_kv_cache(its, &other, another, 0).unwrap();
    assert_eq!(copy.computed(its), computed);
    // What it was given is not kept for later texts: the model keeps it.
    copy.close(its);
    assert_eq!(copy.cache_bytes(), 0);
}

#[test]
fn its_memory_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    write_model(directory.path(), &tensors(6, Dtype::F32));
    let description = Description::read(directory.path()).unwrap();
    let alone = LoadOptions::default();
    let both = LoadOptions { self_draft: Some(Precision::Q8_0), ..alone };
    let most = description.needed_bytes(alone);
    assert!(description.needed_bytes(both) > most);
    load(directory.path(), LoadOptions { memory: Some(most), ..alone }).unwrap();
    let error = load(directory.path(), LoadOptions { memory: Some(most), ..both }).unwrap_err();
    assert!(matches!(error, Error::Memory { .. }), "{error}");
}

/// Loads with a copy that is kept in `folder`, or that is then written there; and whether it was
/// there.
fn kept(directory: &Path, folder: &Path, options: LoadOptions) -> (SelfDraftFile, Loaded) {
    let opened = Opened::new(directory).unwrap();
    let file = SelfDraftFile::new(folder, &opened.description, &options).unwrap();
    let loaded = opened.load_with(options, Some(&file)).unwrap();
    if !loaded.was_cached {
        file.write(loaded.self_draft.as_ref().unwrap()).unwrap();
    }
    (file, loaded)
}

#[test]
fn a_copy_that_was_kept_is_the_one_that_was_made() {
    let (directory, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // Nobody has to make the folder.
    let folder = &folder.path().join("copies");
    write_model(directory.path(), &tensors(7, Dtype::F32));
    let logits = |loaded: Loaded| alone(&mut Single::new(loaded.self_draft.unwrap()), &TEXT);
    for (precision, copy) in [
        (Precision::F32, Precision::Q4_0),
        (Precision::F32, Precision::Q4_1),
        (Precision::Bf16, Precision::Q5_1),
        // Held in q8_0: these matrices are too narrow.
        (Precision::F32, Precision::Q4K),
    ] {
        let options = LoadOptions { precision, self_draft: Some(copy), ..LoadOptions::default() };
        let (file, made) = kept(directory.path(), folder, options);
        let (again, read) = kept(directory.path(), folder, options);
        assert_eq!((made.was_cached, read.was_cached), (false, true), "{copy}");
        assert_eq!(file, again);
        assert_eq!(
            read.self_draft.as_ref().unwrap().info(),
            made.self_draft.as_ref().unwrap().info()
        );
        assert_eq!(logits(read), logits(made), "{copy}");
    }
    // Of each way to hold them one.
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 4);
    // What is as fast made as read is not kept, nor what nobody asked for.
    let description = Description::read(directory.path()).unwrap();
    for copy in [None, Some(Precision::Q8_0)] {
        let options = LoadOptions { self_draft: copy, ..LoadOptions::default() };
        assert_eq!(SelfDraftFile::new(folder, &description, &options), None);
    }
}

#[test]
fn a_copy_of_another_model_or_with_other_bytes_is_made_anew() {
    let (directory, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_model(directory.path(), &tensors(8, Dtype::F32));
    let options = LoadOptions { self_draft: Some(Precision::Q5_1), ..LoadOptions::default() };
    let (file, made) = kept(directory.path(), folder.path(), options);
    let expected = alone(&mut Single::new(made.self_draft.unwrap()), &TEXT);
    let whole = std::fs::read(file.path()).unwrap();
    let load = || {
        let opened = Opened::new(directory.path()).unwrap();
        let file = SelfDraftFile::new(folder.path(), &opened.description, &options).unwrap();
        opened.load_with(options, Some(&file)).unwrap()
    };
    // Any bit of it, and any end.
    let header = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let mut damaged = 0;
    for (at, bit) in (0..whole.len()).step_by(whole.len() / 300).zip((0..8).cycle()) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << bit;
        std::fs::write(file.path(), &bytes).unwrap();
        let loaded = load();
        // White space in the header may be other white space.
        assert!(!loaded.was_cached || at < 8 + header, "bit {bit} of byte {at}");
        damaged += usize::from(!loaded.was_cached);
        assert_eq!(
            alone(&mut Single::new(loaded.self_draft.unwrap()), &TEXT),
            expected,
            "bit {bit} of byte {at}"
        );
    }
    assert!(damaged > 290, "{damaged}");
    for length in [0, 7, 8, header, 8 + header, whole.len() - 1] {
        std::fs::write(file.path(), &whole[..length]).unwrap();
        assert!(!load().was_cached, "{length} bytes");
    }
    std::fs::write(file.path(), &whole).unwrap();
    assert!(load().was_cached);
    // The model's weights change, and nothing else.
    write_model(directory.path(), &tensors(9, Dtype::F32));
    let loaded = load();
    assert!(!loaded.was_cached);
    assert_ne!(alone(&mut Single::new(loaded.self_draft.unwrap()), &TEXT), expected);
}
