//! Every family against Hugging Face transformers: the logits of fixtures/, which make.py made.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::*;
use polydraft::{DraftTree, NodeId, Token};
use polydraft_models::{Precision, architectures};
use serde_json::{Value, json};

/// A model directory, and what transformers gives for it.
struct Case {
    name: String,
    /// With the variant's config.json, if it is one.
    directory: tempfile::TempDir,
    tokens: Vec<Token>,
    logits: Vec<Vec<f32>>,
    logits_bf16: Vec<Vec<f32>>,
    tree: DraftTree,
    /// The text that the tree is behind.
    context: usize,
    tree_logits: Vec<Vec<f32>>,
}

/// As in make.py.
const CONTEXT: usize = 12;

impl Case {
    fn read(folder: &Path, variant: Option<&Path>) -> Self {
        let mut name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let directory = tempfile::tempdir().unwrap();
        for file in ["config.json", "tokenizer.json", "model.safetensors"] {
            fs::copy(folder.join(file), directory.path().join(file)).unwrap();
        }
        let mut expected = folder.join("expected.safetensors");
        if let Some(variant) = variant {
            name = format!("{name}/{}", variant.file_stem().unwrap().to_string_lossy());
            let changes: Value = serde_json::from_slice(&fs::read(variant).unwrap()).unwrap();
            change_config(directory.path(), |config| {
                for (field, value) in changes.as_object().unwrap() {
                    config[field] = value.clone();
                }
            });
            expected = variant.with_extension("safetensors");
        }
        let found = read_tensors(&expected);
        let integers = |name: &str| found[name].integers();
        let rows = |name: &str| found[name].rows();
        let mut tree = DraftTree::new();
        for (parent, token) in integers("tree_parents").into_iter().zip(integers("tree_tokens")) {
            // Equal siblings are one node in our trees; the fixtures have none.
            let count = tree.len();
            assert_eq!(tree.add((parent + 1) as NodeId, token as Token), count);
        }
        Self {
            name,
            directory,
            tokens: integers("tokens").into_iter().map(|t| t as Token).collect(),
            logits: rows("logits"),
            logits_bf16: rows("logits_bf16"),
            tree,
            context: CONTEXT,
            tree_logits: rows("tree_logits"),
        }
    }

    fn all() -> Vec<Self> {
        let mut cases = Vec::new();
        for folder in fixtures() {
            cases.push(Self::read(&folder, None));
            let variants = fs::read_dir(folder.join("variants")).into_iter().flatten().flatten();
            let mut variants: Vec<PathBuf> = variants.map(|entry| entry.path()).collect();
            variants.sort();
            for variant in
                variants.iter().filter(|path| path.extension().is_some_and(|e| e == "json"))
            {
                cases.push(Self::read(&folder, Some(variant)));
            }
        }
        cases
    }

    fn named(name: &str) -> Self {
        Self::all().into_iter().find(|case| case.name == name).unwrap()
    }

    fn open(&self, precision: Precision) -> Single {
        open(self.directory.path(), precision)
    }

    /// The largest distance from transformers' logits, in every way that a text can be computed.
    fn worst(&self, model: &mut Single) -> f32 {
        let (text, mut worst) = (&self.tokens, 0f32);
        let mut attach =
            |found: &[f32], expected: &[f32]| worst = worst.max(distance(found, expected));
        // As a prompt, of every length.
        for (length, expected) in (1..).zip(&self.logits) {
            attach(&alone(model, &text[..length]), expected);
        }
        // Token by token.
        model.reset();
        for (token, expected) in text.iter().zip(&self.logits) {
            model.extend(&[*token]).unwrap();
            model.score(&DraftTree::new()).unwrap();
            attach(model.logits(DraftTree::ROOT), expected);
        }
        // A tree at once, and what is left of the prompt with it; then level by level.
        for known in [0, self.context - 1] {
            model.reset();
            if known > 0 {
                model.extend(&text[..known]).unwrap();
                model.score(&DraftTree::new()).unwrap();
            }
            model.extend(&text[known..self.context]).unwrap();
            let mut tree = DraftTree::new();
            for node in 1..self.tree.len() {
                tree.add(self.tree.parent(node), self.tree.token(node));
                if known > 0 {
                    model.score(&tree).unwrap();
                }
            }
            model.score(&tree).unwrap();
            attach(model.logits(DraftTree::ROOT), &self.logits[self.context - 1]);
            for (node, expected) in (1..).zip(&self.tree_logits) {
                attach(model.logits(node), expected);
            }
        }
        // A committed path: the text behind it as if it had been read alone.
        let mut tree = DraftTree::new();
        let wrong = tree.add(DraftTree::ROOT, (text[self.context] + 1) % 60);
        tree.add(wrong, text[self.context]);
        let right = tree.add(DraftTree::ROOT, text[self.context]);
        let next = tree.add(right, text[self.context + 1]);
        model.reset();
        model.extend(&text[..self.context]).unwrap();
        model.score(&tree).unwrap();
        model.commit(&tree, &[right, next]).unwrap();
        model.extend(&text[self.context + 2..]).unwrap();
        model.score(&DraftTree::new()).unwrap();
        attach(model.logits(DraftTree::ROOT), self.logits.last().unwrap());
        worst
    }
}

const TOLERANCE: f32 = 1e-4;
const TOLERANCE_BF16: f32 = 2e-2;

#[test]
fn every_family_gives_the_logits_of_transformers() {
    let cases = Case::all();
    for case in &cases {
        let worst = case.worst(&mut case.open(Precision::F32));
        assert!(worst < TOLERANCE, "{}: {worst:e}", case.name);
        // Not trivially: the logits are far from equal.
        let last = case.logits.last().unwrap();
        let spread = last.iter().fold(f32::MIN, |m, x| m.max(*x))
            - last.iter().fold(f32::MAX, |m, x| m.min(*x));
        assert!(spread > 0.4, "{}: {spread}", case.name);
    }
    // Each family has a case.
    let read = |case: &Case| Config::of(case.directory.path());
    let tested: Vec<String> = cases.iter().map(read).collect();
    for known in architectures() {
        assert!(tested.iter().any(|t| t == known), "{known} has no fixture");
    }
    assert!(cases.len() >= 15, "{}", cases.len());
}

/// The architecture in a directory's config.json.
struct Config;

impl Config {
    fn of(directory: &Path) -> String {
        let config: Value =
            serde_json::from_slice(&fs::read(directory.join("config.json")).unwrap()).unwrap();
        config["architectures"][0].as_str().unwrap().to_owned()
    }
}

#[test]
fn sixteen_bits_on_a_processor_are_exact_and_near_transformers_own() {
    for case in Case::all() {
        // The fixtures are stored in bf16: nothing is lost.
        let mut model = case.open(Precision::Bf16);
        let worst = case.worst(&mut model);
        assert!(worst < TOLERANCE, "{}: {worst:e}", case.name);
        let first = case.tokens.len() - case.logits_bf16.len();
        for (length, expected) in (first + 1..).zip(&case.logits_bf16) {
            let worst = distance(&alone(&mut model, &case.tokens[..length]), expected);
            assert!(worst < TOLERANCE_BF16, "{}: {worst:e}", case.name);
        }
        let worst = case.worst(&mut case.open(Precision::F16));
        assert!(worst < TOLERANCE_BF16, "{}: {worst:e}", case.name);
    }
}

#[test]
fn quantised_families_are_near() {
    for case in Case::all() {
        let worst = case.worst(&mut case.open(Precision::Q8_0));
        assert!(worst > 0.0 && worst < 0.1, "{}: {worst:e}", case.name);
    }
}

/// Changes of config.json that transformers would notice, and so must the comparison.
#[test]
fn every_feature_is_compared() {
    let plans: &[(&str, &[(&str, Value)])] = &[
        ("llama", &[("rms_norm_eps", json!(1e-6)), ("rope_theta", json!(90.0))]),
        ("llama/linear", &[("rope_scaling", json!(null))]),
        (
            "llama/llama3",
            &[("rope_scaling", json!(null)), ("/rope_scaling/high_freq_factor", json!(3.0))],
        ),
        (
            "llama/yarn",
            &[
                ("rope_scaling", json!(null)),
                ("/rope_scaling/attention_factor", json!(1.0)),
                ("/rope_scaling/beta_fast", json!(2.0)),
                ("/rope_scaling/original_max_position_embeddings", json!(100)),
            ],
        ),
        (
            "llama/yarn-mscale",
            &[("/rope_scaling/mscale", json!(null)), ("/rope_scaling/truncate", json!(true))],
        ),
        ("mistral", &[("sliding_window", json!(null)), ("sliding_window", json!(6))]),
        ("mistral/no-window", &[("sliding_window", json!(8))]),
        (
            "qwen2",
            &[
                ("use_sliding_window", json!(false)),
                ("max_window_layers", json!(0)),
                ("max_window_layers", json!(2)),
                ("sliding_window", json!(7)),
            ],
        ),
        ("qwen3", &[("/rope_parameters/rope_theta", json!(900.0))]),
        (
            "gemma2",
            &[
                ("attn_logit_softcapping", json!(null)),
                ("final_logit_softcapping", json!(null)),
                ("query_pre_attn_scalar", json!(16)),
                ("sliding_window", json!(6)),
                ("layer_types", json!(["full_attention", "sliding_attention", "full_attention"])),
                ("hidden_activation", json!("silu")),
            ],
        ),
        (
            "gemma3",
            &[
                ("query_pre_attn_scalar", json!(16)),
                ("sliding_window", json!(6)),
                ("layer_types", json!(["full_attention", "sliding_attention", "full_attention"])),
                ("hidden_activation", json!("silu")),
                ("/rope_parameters/full_attention/rope_theta", json!(900.0)),
                ("/rope_parameters/full_attention/factor", json!(3.0)),
                ("/rope_parameters/sliding_attention/rope_theta", json!(90.0)),
            ],
        ),
        ("gemma3/cap", &[("final_logit_softcapping", json!(null))]),
        (
            "gemma3/old",
            &[
                ("rope_scaling", json!(null)),
                ("rope_local_base_freq", json!(null)),
                ("sliding_window_pattern", json!(2)),
            ],
        ),
        ("opt", &[("activation_function", json!("gelu"))]),
        (
            "opt-plain",
            &[("activation_function", json!("gelu_new")), ("activation_function", json!("relu"))],
        ),
    ];
    for (name, changes) in plans {
        for (field, value) in *changes {
            let case = Case::named(name);
            change_config(case.directory.path(), |config| match field.strip_prefix('/') {
                Some(_) => {
                    let (parent, inner) = field.rsplit_once('/').unwrap();
                    config.pointer_mut(parent).unwrap()[inner] = value.clone();
                }
                None => config[*field] = value.clone(),
            });
            let worst = case.worst(&mut case.open(Precision::F32));
            // The two forms of gelu differ by little themselves.
            let least = if value == "gelu_new" { TOLERANCE } else { 5.0 * TOLERANCE };
            assert!(worst > least, "{name}: {field} = {value} goes unnoticed: {worst:e}");
        }
    }
}

/// A tensor that is left out of the computation, or taken for another, shows.
#[test]
fn every_tensor_is_compared() {
    for folder in fixtures() {
        let case = Case::read(&folder, None);
        let path = case.directory.path().join("model.safetensors");
        let tensors = read_tensors(&path);
        for name in tensors.keys() {
            let mut changed = tensors.clone();
            let old = &tensors[name];
            // Another order keeps sizes and means: only a comparison of what belongs where can
            // tell.
            let values = old.values();
            let rotated: Vec<f32> = values
                .iter()
                .cycle()
                .skip(values.len() / 2 + 1)
                .take(values.len())
                .copied()
                .collect();
            changed.insert(name.clone(), Tensor::new(&rotated, &old.shape, Dtype::BF16));
            write_tensors(&changed, &path);
            let last = case.logits.last().unwrap();
            let worst = distance(&alone(&mut case.open(Precision::F32), &case.tokens), last);
            // Softmax takes no notice of what all keys have in common.
            let invisible = name.ends_with("k_proj.bias") && case.name.starts_with("opt");
            assert!(
                invisible || worst > 10.0 * TOLERANCE,
                "{}: {name} goes unnoticed: {worst:e}",
                case.name
            );
        }
    }
}

#[test]
fn files_that_leave_out_a_prefix_are_read() {
    let case = Case::named("opt");
    let path = case.directory.path().join("model.safetensors");
    let tensors = read_tensors(&path);
    let renamed: Tensors = tensors
        .into_iter()
        .map(|(name, t)| (name.trim_start_matches("model.").to_owned(), t))
        .collect();
    write_tensors(&renamed, &path);
    assert!(case.worst(&mut case.open(Precision::F32)) < TOLERANCE);
}

#[test]
fn padding_rows_are_cut_off() {
    let case = Case::named("qwen2");
    let model = case.open(Precision::F32);
    assert_eq!((model.model.config().vocabulary, model.vocabulary().size()), (80, 62));
    // A draft with another number of them fits.
    let other = Case::named("qwen3").open(Precision::F32);
    model.vocabulary().check_draft(other.vocabulary()).unwrap();
}
