//! Assistants as drafters: their drafts against those of transformers, which heads/assistant.py
//! made.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::steps::ExpectedSteps;
use crate::common::*;
use polydraft::{DraftTree, PolicyKind, Sampling, Token, VerifierKind};
use polydraft_engine::{Drafter, Engine, Limits, Request, Sequences, Speculation};
use polydraft_models::{
    Description, DraftHead, HeadDescription, HeadOptions, LoadOptions, Loaded, Precision,
    TransformerModel, is_head, load, load_head,
};
use rand::SeedableRng;
use rand_chacha::ChaCha12Rng;
use serde_json::{Value, json};

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

fn assistant() -> PathBuf {
    tests().join("heads/assistant")
}

fn target() -> Loaded {
    load(&tests().join("fixtures/gemma4"), LoadOptions::default()).unwrap()
}

fn opened(directory: &Path) -> (TransformerModel, DraftHead) {
    let mut model = target().model;
    let head = load_head(directory, &mut model, &HeadOptions::default()).unwrap();
    (model, head)
}

/// Copy of the directory with changes.
fn changed(
    config: impl FnOnce(&mut Value),
    tensors: impl FnOnce(&mut Tensors),
) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::copy(assistant().join("config.json"), directory.path().join("config.json")).unwrap();
    change_config(directory.path(), config);
    let mut all = read_tensors(&assistant().join("model.safetensors"));
    tensors(&mut all);
    write_tensors(&all, &directory.path().join("model.safetensors"));
    directory
}

/// Largest difference of log-probabilities from transformers', over all positions and steps.
fn worst(directory: &Path) -> f64 {
    let expected = ExpectedSteps::read(&assistant().join("expected.safetensors"));
    expected.distance(&mut opened(directory))
}

#[test]
fn drafts_equal_those_of_transformers() {
    assert!(is_head(&assistant()));
    let worst = worst(&assistant());
    assert!(worst < 1e-4, "{worst:e}");
}

/// Clusters of tokens are ignored, and so is a copy of the output matrix.
#[test]
fn token_clusters_and_copied_output_matrix_are_ignored() {
    let directory = changed(
        |config| config["use_ordered_embeddings"] = json!(true),
        |tensors| {
            let zeros = |shape: &[usize]| Tensor::zeros(shape, Dtype::F32);
            tensors.insert("masked_embedding.centroids.weight".into(), zeros(&[4, 16]));
            tensors
                .insert("masked_embedding.token_ordering".into(), Tensor::from_integers(&[0; 62]));
            let copy = tensors["model.embed_tokens.weight"].clone();
            tensors.insert("lm_head.weight".into(), copy);
        },
    );
    assert!(worst(directory.path()) < 1e-4);
}

/// Asserts that the comparison fails if a feature or a tensor is changed.
#[test]
fn comparison_notices_every_feature_and_tensor() {
    let mut unnoticed = Vec::new();
    for (field, value) in [
        ("/text_config/sliding_window", json!(4)),
        ("/text_config/sliding_window", json!(6)),
        ("/text_config/hidden_activation", json!("silu")),
        ("/text_config/rope_parameters/full_attention/rope_theta", json!(20.0)),
        ("/text_config/rope_parameters/full_attention/partial_rotary_factor", json!(0.25)),
        ("/text_config/rope_parameters/sliding_attention/rope_theta", json!(500.0)),
    ] {
        let directory =
            changed(|config| *config.pointer_mut(field).unwrap() = value.clone(), |_| ());
        let off = worst(directory.path());
        unnoticed.extend((off < 1e-3).then(|| format!("{field} = {value}: {off:e}")));
    }
    for name in read_tensors(&assistant().join("model.safetensors")).into_keys() {
        let directory = changed(
            |_| (),
            |tensors| {
                let old = &tensors[&name];
                let mut values = old.values();
                let half = values.len() / 2;
                match &mut values[..] {
                    [one] => *one *= 1.5,
                    several => several.rotate_left(half + 1),
                }
                let new = Tensor::new(&values, &old.shape, Dtype::BF16);
                tensors.insert(name.clone(), new);
            },
        );
        let off = worst(directory.path());
        // A norm follows the last layer's scale.
        let invisible = name == "model.layers.2.layer_scalar";
        unnoticed.extend((off < 1e-3 && !invisible).then(|| format!("{name}: {off:e}")));
    }
    assert!(unnoticed.is_empty(), "{unnoticed:#?}");
}

/// A GGUF file made by llama.cpp's converter (heads/to_gguf.py).
#[test]
fn gguf_file_drafts_like_its_directory() {
    let file = assistant().join("model.gguf");
    assert!(is_head(&file));
    let off = worst(&file);
    assert!(off < 1e-4, "{off:e}");
    let target = Description::read(&tests().join("fixtures/gemma4")).unwrap();
    let [of_file, of_directory] =
        [&file, &assistant()].map(|path| HeadDescription::read(path, &target.config, 62).unwrap());
    assert_eq!(of_file, of_directory);
    // Changing any tensor changes the drafts.
    with_each_tensor_changed(&file, |tensor, changed| {
        let off = worst(changed);
        // A norm follows the last layer's scale.
        let counts = tensor != "blk.2.layer_output_scale.weight";
        assert_eq!(off > 1e-3, counts, "{tensor}: {off:e}");
    });
    let bytes = fs::read(&file).unwrap();
    let temporary = tempfile::tempdir().unwrap();
    let changed = temporary.path().join("model.gguf");
    let mut model = load(&tests().join("fixtures/gemma4"), LoadOptions::default()).unwrap().model;
    for (from, to, expected) in [
        ("embedding_length_out", "embedding_length_oux", "embedding_length_out: expected a number"),
        ("blk.0.attn_q_norm", "blk.0.attn_q_norx", "tensor blk.0.attn_q_norm.weight"),
        ("nextn.pre_projection", "nextn.pre_projectiox", "tensor nextn.pre_projection.weight"),
        ("attention.head_count_kv", "attention.head_count_kx", "head_count_kv: expected a number"),
    ] {
        let mut other = bytes.clone();
        let at = other.windows(from.len()).rposition(|window| window == from.as_bytes()).unwrap();
        other[at..at + from.len()].copy_from_slice(to.as_bytes());
        fs::write(&changed, other).unwrap();
        let error = load_head(&changed, &mut model, &HeadOptions::default()).unwrap_err();
        assert!(error.to_string().contains(expected), "{from}: {error}");
    }
    let error = load(&file, LoadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("general.architecture: expected a model, got"), "{error}");
}

/// With one chain and with several paths, for several sequences in turn, at temperature 0.
#[test]
fn same_output_as_plain_decoding_at_temperature_zero() {
    let engine = || {
        let Loaded { mut model, language, .. } = target();
        let options = HeadOptions { precision: Precision::Q8_0, ..HeadOptions::default() };
        let head = load_head(&assistant(), &mut model, &options).unwrap();
        (Engine::new(Box::new(model), Some(Box::new(head))), language)
    };
    let decode =
        |engine: &mut Engine, language: &polydraft_text::Language, paths: Option<usize>| {
            let mut all = Vec::new();
            for prompt in [&[5, 17, 3, 40][..], &[5, 17, 3, 40, 9, 22, 31, 8, 50, 2], &[5, 17, 4]] {
                let speculation = paths.map(|paths| {
                    let verifier = "nested-priority".parse::<VerifierKind>().unwrap();
                    let tree = PolicyKind::paths(paths, 3).build().unwrap();
                    Speculation::new(verifier.build().unwrap(), tree).unwrap()
                });
                let request = Request::new(prompt)
                    .sampling(Sampling { temperature: 0.0, ..Sampling::default() })
                    .speculation(speculation)
                    .limits(Limits { max_tokens: Some(40), ..Limits::default() })
                    .detokenizer(language.tokenizer.stream(prompt))
                    .rng(ChaCha12Rng::seed_from_u64(1));
                all.push(engine.generate(request, &mut |_| true).unwrap().tokens);
            }
            all
        };
    let (mut plain, language) = engine();
    let expected = decode(&mut plain, &language, None);
    assert_eq!(expected[0].len(), 40);
    for paths in [1, 2, 4] {
        let (mut engine, language) = engine();
        assert_eq!(decode(&mut engine, &language, Some(paths)), expected, "{paths} paths");
    }
}

/// A truncated sequence drafts like one that was never longer.
#[test]
fn truncated_sequence_drafts_like_a_new_one() {
    let tokens: Vec<Token> = (0..40).map(|i| (7 * i * i + 3) % 60 + 2).collect();
    let q = |target: &mut TransformerModel,
             head: &mut DraftHead,
             target_sequence,
             head_sequence| {
        target.prepare(target_sequence, usize::MAX).unwrap();
        head.sync_target(head_sequence, target, target_sequence, target.len(target_sequence) - 1)
            .unwrap();
        let mut tree = DraftTree::new();
        let node = tree.add(DraftTree::ROOT, 11);
        head.score(&[(head_sequence, &tree)]).unwrap();
        [DraftTree::ROOT, node].map(|node| {
            let q = head.distribution(head_sequence, node, &Sampling::default(), None).unwrap();
            (0..62).map(|token| q.probability(token)).collect::<Vec<f64>>()
        })
    };
    let (mut target, mut head) = opened(&assistant());
    let (target_sequence, head_sequence) = (target.open().unwrap(), head.open().unwrap());
    for prefix in [&tokens[..30], &tokens[..31], &tokens[..18], &tokens[..5]] {
        let begin = target.len(target_sequence).min(prefix.len());
        target.truncate(target_sequence, prefix.len());
        head.truncate(head_sequence, prefix.len());
        target.extend(target_sequence, &prefix[begin..]).unwrap();
        head.extend(head_sequence, &prefix[begin..]).unwrap();
        let found = q(&mut target, &mut head, target_sequence, head_sequence);
        let (mut fresh, mut fresh_head) = opened(&assistant());
        let (new, head_sequence) = (fresh.open().unwrap(), fresh_head.open().unwrap());
        fresh.extend(new, prefix).unwrap();
        fresh_head.extend(head_sequence, prefix).unwrap();
        assert_eq!(found, q(&mut fresh, &mut fresh_head, new, head_sequence), "{}", prefix.len());
    }
    assert_eq!(head.cache_bytes(), 0);
}

/// Sequences of different lengths in one pass, each with a tree of its own.
#[test]
fn sequences_in_a_batch_draft_as_alone() {
    let prompts: [&[Token]; 3] = [&[5, 17], &[9, 8, 7, 30, 31, 32, 33, 4, 60, 3, 2, 11], &[40; 7]];
    let mut rng = ChaCha12Rng::seed_from_u64(4);
    let trees = prompts.map(|_| {
        let mut tree = DraftTree::new();
        grow(&mut tree, &mut rng, 7);
        tree
    });
    let all = |alone: bool| {
        let (mut target, mut head) = opened(&assistant());
        let open: Vec<_> = prompts
            .iter()
            .map(|prompt| {
                let (target_sequence, head_sequence) =
                    (target.open().unwrap(), head.open().unwrap());
                target.extend(target_sequence, prompt).unwrap();
                head.extend(head_sequence, prompt).unwrap();
                target.prepare(target_sequence, usize::MAX).unwrap();
                head.sync_target(head_sequence, &target, target_sequence, prompt.len() - 1)
                    .unwrap();
                head_sequence
            })
            .collect();
        let batch: Vec<_> = open.iter().copied().zip(&trees).collect();
        for one in batch.chunks(if alone { 1 } else { 3 }) {
            head.score(one).unwrap();
        }
        let mut found = Vec::new();
        for (head_sequence, tree) in batch {
            for node in 0..tree.len() {
                let q = head.distribution(head_sequence, node, &Sampling::default(), None).unwrap();
                found.extend((0..62).map(|token| q.probability(token)));
            }
        }
        found
    };
    assert_eq!(all(true), all(false));
}

#[test]
fn tokens_option_limits_the_drafted_vocabulary() {
    let mut model = target().model;
    let four_tokens = HeadOptions { tokens: Some(vec![3, 4, 9, 50]), ..HeadOptions::default() };
    let head = load_head(&assistant(), &mut model, &four_tokens).unwrap();
    assert_eq!(head.tokens(), [3, 4, 9, 50]);
}

#[test]
fn description_counts_layers_tokens_and_parameters() {
    let target = Description::read(&tests().join("fixtures/gemma4")).unwrap();
    let read = HeadDescription::read(&assistant(), &target.config, 62).unwrap();
    let tensors = read_tensors(&assistant().join("model.safetensors"));
    let numbers: usize = tensors.values().map(|t| t.shape.iter().product::<usize>()).sum();
    assert_eq!((read.layers, read.tokens, read.parameters), (3, 62, numbers as u64));
    assert!(read.kind.contains("assistant"));
}

#[test]
fn errors_name_the_field_that_contradicts_the_target() {
    let load_error = |directory: &Path, target: &str| {
        let mut model = load(&tests().join(target), LoadOptions::default()).unwrap().model;
        load_head(directory, &mut model, &HeadOptions::default()).unwrap_err().to_string()
    };
    let with_field = |field: &'static str, value: Value| {
        changed(|config| *config.pointer_mut(field).unwrap() = value, |_| ())
    };
    let other = load_error(&assistant(), "fixtures/gemma3");
    assert!(other.contains("num_key_value_heads: expected, in layers with a window"), "{other}");
    for (directory, expected) in [
        (
            with_field("/backbone_hidden_size", json!(64)),
            "backbone_hidden_size: expected the target's 32",
        ),
        (with_field("/text_config/vocab_size", json!(61)), "vocab_size: expected the target's 62"),
        (
            with_field("/text_config/head_dim", json!(16)),
            "expected, in layers with a window, the target's",
        ),
        (with_field("/text_config/enable_moe_block", json!(true)), "num_experts"),
        (
            with_field("/text_config/use_double_wide_mlp", json!(true)),
            "use_double_wide_mlp: expected none",
        ),
        (with_field("/text_config/hidden_size_per_layer_input", json!(8)), "size_per_layer_input"),
        (with_field("/text_config/intermediate_size", json!(32)), "gate_proj"),
        (changed(|_| (), |all| drop(all.remove("post_projection.weight"))), "post_projection"),
    ] {
        let error = load_error(directory.path(), "fixtures/gemma4");
        assert!(error.contains(expected), "{error}");
    }
    let mut model = target().model;
    let error = load(&assistant(), LoadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("architectures: expected a model, got the assistant"), "{error}");
    let layers = HeadOptions { layers: Some(vec![1]), ..HeadOptions::default() };
    let error = load_head(&assistant(), &mut model, &layers).unwrap_err().to_string();
    assert!(error.contains("no option for layers of the target"), "{error}");
}
