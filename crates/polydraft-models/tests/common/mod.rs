//! Tiny random models on disk, and helpers for their logits.

pub mod heads;
pub mod steps;
pub mod tensors;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use polydraft::{DraftTree, NodeId, Token};
use polydraft_engine::{Model, Sequence, Sequences};
use polydraft_gguf::Gguf;
use polydraft_models::{LoadOptions, Precision, TransformerModel, load};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;
use serde_json::{Value, json};
#[allow(unused_imports)] // each test file uses its part
pub use tensors::{Dtype, Tensor, Tensors, read_tensors, write_tensors};

pub const VOCABULARY: usize = 96;
const HIDDEN: usize = 32;
const HEADS: usize = 4;
const KEY_VALUE_HEADS: usize = 2;
const HEAD: usize = 16;
const INTERMEDIATE: usize = 64;
const LAYERS: usize = 3;

/// Folder of a shipped model.
pub fn demo(role: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo").join(role)
}

pub fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "head_dim": HEAD,
        "max_position_embeddings": 640,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000.0,
        "eos_token_id": [3, 5],
    })
}

/// Random tensors for [`config`], with untied embedding and output matrix.
pub fn tensors(seed: u64, dtype: Dtype) -> Tensors {
    let mut rng = ChaCha12Rng::seed_from_u64(seed);
    let mut random = |dims: &[usize]| {
        let scale = if dims.len() == 1 { 0.3 } else { 3.0 / (dims[1] as f32).sqrt() };
        let base = if dims.len() == 1 { 1.0 } else { 0.0 };
        let count = dims.iter().product();
        let values: Vec<f32> =
            (0..count).map(|_| base + scale * (rng.random::<f32>() - 0.5)).collect();
        Tensor::new(&values, dims, dtype)
    };
    let mut all = HashMap::new();
    all.insert("model.embed_tokens.weight".to_owned(), random(&[VOCABULARY, HIDDEN]));
    all.insert("lm_head.weight".to_owned(), random(&[VOCABULARY, HIDDEN]));
    all.insert("model.norm.weight".to_owned(), random(&[HIDDEN]));
    for i in 0..LAYERS {
        for (part, dims) in [
            ("input_layernorm", vec![HIDDEN]),
            ("post_attention_layernorm", vec![HIDDEN]),
            ("self_attn.q_proj", vec![HEADS * HEAD, HIDDEN]),
            ("self_attn.k_proj", vec![KEY_VALUE_HEADS * HEAD, HIDDEN]),
            ("self_attn.v_proj", vec![KEY_VALUE_HEADS * HEAD, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, HEADS * HEAD]),
            ("mlp.gate_proj", vec![INTERMEDIATE, HIDDEN]),
            ("mlp.up_proj", vec![INTERMEDIATE, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, INTERMEDIATE]),
        ] {
            all.insert(format!("model.layers.{i}.{part}.weight"), random(&dims));
        }
    }
    all
}

/// Tokenizer of single characters: token i is the character 32 + i.
pub fn tokenizer(tokens: usize) -> Value {
    let character = |i: usize| char::from_u32(32 + i as u32).unwrap().to_string();
    let vocabulary: HashMap<String, usize> = (0..tokens).map(|i| (character(i), i)).collect();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": { "type": "Fuse" },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "vocab": vocabulary, "merges": []
        }
    })
}

/// Folders of fixtures/ that are models.
pub fn fixtures() -> Vec<PathBuf> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let folders = fs::read_dir(all).unwrap().map(|entry| entry.unwrap().path());
    let mut models: Vec<PathBuf> =
        folders.filter(|f| f.join("expected.safetensors").exists()).collect();
    models.sort();
    models
}

/// Changes the config.json of a directory.
pub fn change_config(directory: &Path, change: impl FnOnce(&mut Value)) {
    let path = directory.join("config.json");
    let mut config = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut config);
    write_json(directory, "config.json", &config);
}

pub fn write_json(directory: &Path, name: &str, value: &Value) {
    fs::write(directory.join(name), value.to_string()).unwrap();
}

/// Copy of a model's directory with changed tensors, in one file.
pub fn changed_copy(folder: &Path, change: impl FnOnce(&mut Tensors)) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for file in ["config.json", "tokenizer.json"] {
        fs::copy(folder.join(file), directory.path().join(file)).unwrap();
    }
    let mut tensors = read_tensors(&folder.join("model.safetensors"));
    change(&mut tensors);
    write_tensors(&tensors, &directory.path().join("model.safetensors"));
    directory
}

/// Writes a complete model directory.
pub fn write_model(directory: &Path, tensors: &Tensors) {
    fs::create_dir_all(directory).unwrap();
    write_json(directory, "config.json", &config());
    write_json(directory, "tokenizer.json", &tokenizer(VOCABULARY));
    write_tensors(tensors, &directory.join("model.safetensors"));
}

/// A model with one sequence.
pub struct SingleSequence {
    pub model: TransformerModel,
    sequence: Sequence,
}

impl SingleSequence {
    pub fn new(mut model: TransformerModel) -> Self {
        let sequence = model.open().unwrap();
        Self { model, sequence }
    }

    pub fn reset(&mut self) {
        self.model.close(self.sequence);
        self.sequence = self.model.open().unwrap();
    }

    pub fn extend(&mut self, tokens: &[Token]) -> polydraft_engine::Result<()> {
        self.model.extend(self.sequence, tokens)
    }

    pub fn score(&mut self, tree: &DraftTree) -> polydraft_engine::Result<()> {
        self.model.score(&[(self.sequence, tree)])
    }

    pub fn logits(&self, node: NodeId) -> &[f32] {
        self.model.logits(self.sequence, node)
    }

    pub fn commit(&mut self, tree: &DraftTree, path: &[NodeId]) -> polydraft_engine::Result<()> {
        self.model.commit(self.sequence, tree, path)
    }

    pub fn len(&self) -> usize {
        self.model.len(self.sequence)
    }

    pub fn vocabulary(&self) -> &polydraft_engine::Vocabulary {
        &self.model.info().vocabulary
    }
}

pub fn open(directory: &Path, options: impl Into<LoadOptions>) -> SingleSequence {
    SingleSequence::new(load(directory, options.into()).unwrap().model)
}

pub fn random_model(seed: u64, precision: Precision) -> SingleSequence {
    let directory = tempfile::tempdir().unwrap();
    write_model(directory.path(), &tensors(seed, Dtype::F32));
    open(directory.path(), precision)
}

/// Logits after `tokens`, read at once by an empty sequence.
pub fn alone(model: &mut SingleSequence, tokens: &[Token]) -> Vec<f32> {
    model.reset();
    model.extend(tokens).unwrap();
    model.score(&DraftTree::new()).unwrap();
    model.logits(DraftTree::ROOT).to_vec()
}

pub fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).fold(0.0, |worst, (a, b)| worst.max((a - b).abs()))
}

pub fn random_tokens(rng: &mut ChaCha12Rng, length: usize) -> Vec<Token> {
    (0..length).map(|_| rng.random_range(0..VOCABULARY as Token)).collect()
}

/// Adds `count` random nodes to a tree; few different tokens, so that children are shared and
/// repeat elsewhere.
pub fn grow(tree: &mut DraftTree, rng: &mut ChaCha12Rng, count: usize) {
    for _ in 0..count {
        let parent: NodeId = rng.random_range(0..tree.len());
        tree.add(parent, rng.random_range(0..5));
    }
}

/// Tokens from the root to a node.
pub fn tokens_to(tree: &DraftTree, node: NodeId) -> Vec<Token> {
    tree.path(node).into_iter().map(|n| tree.token(n)).collect()
}

/// An engine with target and draft, and the target's tokenizer.
pub struct Pair {
    pub engine: polydraft_engine::Engine,
    pub language: polydraft_text::Language,
}

pub fn open_pair(target: &Path, draft: &Path, precision: Precision) -> Pair {
    let options = LoadOptions { precision, ..LoadOptions::default() };
    let [target, draft] = [target, draft].map(|folder| load(folder, options).unwrap());
    let vocabulary = target.language.vocabulary.clone();
    let drafter = polydraft_engine::ModelDrafter::new(Box::new(draft.model), &vocabulary).unwrap();
    let engine = polydraft_engine::Engine::new(Box::new(target.model), Some(Box::new(drafter)));
    Pair { engine, language: target.language }
}

impl Pair {
    /// Generates after a prompt; without a limit up to the end of the context.
    pub fn decode(
        &mut self,
        prompt: &[Token],
        sampling: polydraft::Sampling,
        speculation: Option<polydraft_engine::Speculation>,
        max_tokens: Option<usize>,
        seed: u64,
    ) -> polydraft_engine::Generation {
        let request = self.request(prompt, sampling, speculation, max_tokens, seed);
        self.engine.generate(request, &mut |_| true).unwrap()
    }

    pub fn request(
        &self,
        prompt: &[Token],
        sampling: polydraft::Sampling,
        speculation: Option<polydraft_engine::Speculation>,
        max_tokens: Option<usize>,
        seed: u64,
    ) -> polydraft_engine::Request<'static> {
        polydraft_engine::Request::new(prompt)
            .sampling(sampling)
            .speculation(speculation)
            .limits(polydraft_engine::Limits { max_tokens, ..Default::default() })
            .detokenizer(self.language.tokenizer.stream(prompt))
            .rng(ChaCha12Rng::seed_from_u64(seed))
    }
}

/// Calls `check` with the name of each tensor of a GGUF file and a copy of the file in which the
/// tensor has other values. Reordering keeps sizes and means, and integers stay valid.
pub fn with_each_tensor_changed(file: &Path, mut check: impl FnMut(&str, &Path)) {
    let (bytes, gguf) = (fs::read(file).unwrap(), Gguf::open(file).unwrap());
    let temporary = tempfile::tempdir().unwrap();
    let changed = temporary.path().join("model.gguf");
    for tensor in gguf.tensors() {
        let at = tensor.offset() as usize..tensor.offset() as usize + tensor.bytes();
        let mut other = bytes.clone();
        match tensor.columns() * tensor.rows() {
            // Halves or doubles a single f32.
            1 => other[at][2] ^= 0x80,
            count => other[at].rotate_left(tensor.bytes() / count * (tensor.columns() / 2 + 1)),
        }
        fs::write(&changed, other).unwrap();
        check(tensor.name(), &changed);
    }
}
