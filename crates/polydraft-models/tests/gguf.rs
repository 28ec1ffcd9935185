//! Models in GGUF files: the fixtures' weights, written as llama.cpp's converter writes them, give
//! what they give from safetensors, which families.rs compares with transformers.

mod common;
#[path = "../../polydraft-gguf/tests/support/mod.rs"]
mod gguf;
#[path = "../../polydraft-kernels/tests/support/reference.rs"]
mod reference;

use std::fs;
use std::path::{Path, PathBuf};

use common::*;
use gguf::Writer;
use polydraft_gguf::{Gguf, TensorType};
use polydraft_models::{Description, LoadOptions, Precision, load};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;
use serde_json::{Value, json};

const GEMMA_NORMS: [(&str, &str); 3] = [
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];
const NAMES: [(&str, &str); 11] = [
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.o_proj", "attn_output"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// A fixture whose config.json says what a GGUF file can say too, and the same as such a file.
struct Pair {
    directory: tempfile::TempDir,
    config: Value,
    tensors: Tensors,
}

/// How a tensor is written, by its name in the file.
type Kinds<'a> = &'a dyn Fn(&str) -> TensorType;

impl Pair {
    fn new(fixture: &str, change: impl FnOnce(&mut Value)) -> Self {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(fixture);
        let directory = tempfile::tempdir().unwrap();
        for file in ["config.json", "tokenizer.json", "model.safetensors"] {
            fs::copy(from.join(file), directory.path().join(file)).unwrap();
        }
        change_config(directory.path(), change);
        let config =
            serde_json::from_slice(&fs::read(directory.path().join("config.json")).unwrap())
                .unwrap();
        let tensors = read_tensors(&directory.path().join("model.safetensors"));
        Self { directory, config, tensors }
    }

    fn number(&self, field: &str) -> Option<u32> {
        self.config.get(field)?.as_u64().map(|n| n as u32)
    }

    fn head(&self) -> usize {
        let number = |field| self.number(field);
        let plain = || number("hidden_size").unwrap() / number("num_attention_heads").unwrap();
        number("head_dim").unwrap_or_else(plain) as usize
    }

    fn architecture(&self) -> &'static str {
        match self.config["architectures"][0].as_str().unwrap() {
            "Qwen2ForCausalLM" => "qwen2",
            "Qwen3ForCausalLM" => "qwen3",
            "Gemma2ForCausalLM" => "gemma2",
            "Gemma3ForCausalLM" => "gemma3",
            _ => "llama",
        }
    }

    /// Keys of the model and of its tokenizer.
    fn keys(&self) -> Writer {
        let name = self.architecture();
        let key = |field: &str| format!("{name}.{field}");
        let number = |field| self.number(field).unwrap();
        let mut writer = Writer::default()
            .str("general.architecture", name)
            .u32(&key("block_count"), number("num_hidden_layers"))
            .u32(&key("context_length"), number("max_position_embeddings"))
            .u32(&key("embedding_length"), number("hidden_size"))
            .u32(&key("feed_forward_length"), number("intermediate_size"))
            .u32(&key("attention.head_count"), number("num_attention_heads"))
            .u32(&key("attention.head_count_kv"), number("num_key_value_heads"))
            .u32(&key("attention.key_length"), self.head() as u32)
            .u32(&key("attention.value_length"), self.head() as u32)
            .f32(
                &key("attention.layer_norm_rms_epsilon"),
                self.config["rms_norm_eps"].as_f64().unwrap() as f32,
            )
            .f32(&key("rope.freq_base"), self.theta() as f32);
        if name == "gemma2" {
            writer = writer
                .u32(&key("attention.sliding_window"), number("sliding_window"))
                .f32(&key("attn_logit_softcapping"), 2.0)
                .f32(&key("final_logit_softcapping"), 0.5);
        }
        if name == "gemma3" {
            let theta =
                self.config["rope_parameters"]["sliding_attention"]["rope_theta"].as_f64().unwrap();
            writer = writer
                .u32(&key("attention.sliding_window"), number("sliding_window"))
                .u32(&key("attention.sliding_window_pattern"), 3)
                .f32(&key("rope.freq_base_swa"), theta as f32)
                .str(&key("rope.scaling.type"), "linear")
                .f32(&key("rope.scaling.factor"), 4.0);
        }
        let tokenizer: Value = serde_json::from_slice(
            &fs::read(self.directory.path().join("tokenizer.json")).unwrap(),
        )
        .unwrap();
        let rows = number("vocab_size") as usize;
        let mut tokens: Vec<String> = (0..rows).map(|id| format!("[PAD{id}]")).collect();
        let mut types = vec![5; rows];
        for (token, id) in tokenizer["model"]["vocab"].as_object().unwrap() {
            let id = id.as_u64().unwrap() as usize;
            tokens[id] = token.replace(' ', "\u{120}");
            types[id] = if id < 2 { 3 } else { 1 };
        }
        let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
        writer
            .str("tokenizer.ggml.model", "gpt2")
            .str("tokenizer.ggml.pre", "gpt-2")
            .strings("tokenizer.ggml.tokens", &tokens)
            .i32s("tokenizer.ggml.token_type", &types)
            .strings("tokenizer.ggml.merges", &[])
            .u32("tokenizer.ggml.bos_token_id", 0)
            .u32("tokenizer.ggml.eos_token_id", 1)
            .str(
                "tokenizer.chat_template",
                "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}",
            )
    }

    fn theta(&self) -> f64 {
        let inner = &self.config["rope_parameters"];
        let found = [&self.config, inner, &inner["full_attention"]]
            .map(|fields| fields["rope_theta"].as_f64());
        found.into_iter().flatten().next().unwrap()
    }

    /// With all tensors.
    fn write(&self, mut writer: Writer, kinds: Kinds) -> PathBuf {
        let gemma = self.architecture().starts_with("gemma");
        let tied = self.config["tie_word_embeddings"].as_bool().unwrap_or(false);
        let mut all: Vec<_> = self.tensors.iter().collect();
        all.sort_by_key(|(name, _)| name.to_owned());
        for (name, tensor) in all {
            if tied && name == "lm_head.weight" {
                continue;
            }
            let name = renamed(name, gemma);
            let mut values = tensor.values();
            if gemma && name.contains("norm") {
                values.iter_mut().for_each(|value| *value += 1.0);
            }
            if self.architecture() == "llama"
                && (name.contains("attn_q.") || name.contains("attn_k."))
            {
                values = interleaved(&values, tensor.shape[0], self.head());
            }
            let dimensions: Vec<u64> = tensor.shape.iter().rev().map(|size| *size as u64).collect();
            let kind = if dimensions.len() == 1 { TensorType::F32 } else { kinds(&name) };
            let (number, blocks) = blocks(&values, kind);
            writer = writer.tensor(&name, number, &dimensions, &blocks);
        }
        let path = self.directory.path().join("model.gguf");
        fs::write(&path, writer.finish()).unwrap();
        path
    }

    fn plain(&self) -> PathBuf {
        self.write(self.keys(), &|_| TensorType::F32)
    }
}

fn renamed(name: &str, gemma: bool) -> String {
    match name {
        "model.embed_tokens.weight" => return "token_embd.weight".to_owned(),
        "model.norm.weight" => return "output_norm.weight".to_owned(),
        "lm_head.weight" => return "output.weight".to_owned(),
        _ => {}
    }
    let name = name.replace("model.layers.", "blk.");
    let norms = if gemma { &GEMMA_NORMS[..] } else { &[] };
    let (from, to) = norms.iter().chain(&NAMES).find(|(from, _)| name.contains(from)).unwrap();
    name.replace(from, to)
}

/// As llama.cpp's converter permutes queries and keys: of every head reshaped to `[2, head / 2,
/// ..]` the first two dimensions change places.
fn interleaved(values: &[f32], rows: usize, head: usize) -> Vec<f32> {
    let row = |at: usize| {
        // Of its head, and of it the pair and which of the two.
        let (first, pair, second) = (at / head * head, at % head / 2, at % 2);
        let from = first + second * (head / 2) + pair;
        &values[from * values.len() / rows..][..values.len() / rows]
    };
    (0..rows).flat_map(row).copied().collect()
}

/// The number of the type, and the bytes.
fn blocks(values: &[f32], kind: TensorType) -> (u32, Vec<u8>) {
    let number = match kind {
        TensorType::F32 => return (0, values.iter().flat_map(|v| v.to_le_bytes()).collect()),
        TensorType::BF16 => {
            let halves = values.iter().map(|v| half::bf16::from_f32(*v));
            return (30, halves.flat_map(half::bf16::to_le_bytes).collect());
        }
        TensorType::Q4_0 => 2,
        TensorType::Q4_1 => 3,
        TensorType::Q5_0 => 6,
        TensorType::Q5_1 => 7,
        TensorType::Q8_0 => 8,
        other => panic!("{other:?}"),
    };
    (number, reference::quantised(kind, values))
}

const TEXT: [u32; 14] = [5, 17, 3, 3, 40, 22, 9, 51, 60, 2, 33, 17, 8, 4];

fn logits(path: &Path, precision: Precision) -> Vec<Vec<f32>> {
    let mut model = open(path, precision);
    (1..=TEXT.len()).map(|length| alone(&mut model, &TEXT[..length])).collect()
}

/// What can be said in both forms: no window but Gemma's, whose scale is that of the head.
fn pair(fixture: &str) -> Pair {
    Pair::new(fixture, |config| match fixture {
        "mistral" => config["sliding_window"] = Value::Null,
        "qwen2" => config["use_sliding_window"] = json!(false),
        "gemma3" => config["query_pre_attn_scalar"] = config["head_dim"].clone(),
        "gemma2" => {
            config["query_pre_attn_scalar"] = config["head_dim"].clone();
            // A number of f32.
            config["final_logit_softcapping"] = json!(0.5);
        }
        _ => {}
    })
}

const FAMILIES: [&str; 7] =
    ["llama", "llama-biases", "mistral", "qwen2", "qwen3", "gemma2", "gemma3"];

#[test]
fn every_family_gives_what_its_safetensors_give() {
    for fixture in FAMILIES {
        let mut pair = pair(fixture);
        // In the file these are f32.
        let epsilon = pair.config["rms_norm_eps"].as_f64().unwrap() as f32;
        change_config(pair.directory.path(), |config| {
            config["rms_norm_eps"] = json!(f64::from(epsilon))
        });
        pair.config["rms_norm_eps"] = json!(f64::from(epsilon));
        let expected = logits(pair.directory.path(), Precision::F32);
        for precision in [Precision::F32, Precision::File] {
            assert_eq!(logits(&pair.plain(), precision), expected, "{fixture}, {precision}");
        }
        // Bytes of bf16, of which the fixtures' weights are.
        let half = pair.write(pair.keys(), &|_| TensorType::BF16);
        for precision in [Precision::F32, Precision::Bf16, Precision::File] {
            assert_eq!(logits(&half, precision), expected, "{fixture} in bf16, {precision}");
        }
        // Each way to hold them in one stack.
        let mixed = pair.write(pair.keys(), &|name| match name.contains("attn_k")
            || name.contains("ffn_up")
        {
            true => TensorType::BF16,
            false => TensorType::F32,
        });
        assert_eq!(logits(&mixed, Precision::File), expected, "{fixture}, mixed");
    }
}

#[test]
fn rows_in_another_order_are_noticed() {
    // The same file, said to be of an architecture whose rows need no order.
    let pair = pair("llama");
    let expected = logits(pair.directory.path(), Precision::F32);
    let path = pair.plain();
    let mut bytes = fs::read(&path).unwrap();
    for at in 0..bytes.len() - 5 {
        if &bytes[at..at + 5] == b"llama" {
            bytes[at..at + 5].copy_from_slice(b"qwen2");
        }
    }
    fs::write(&path, bytes).unwrap();
    let worst = logits(&path, Precision::F32)
        .iter()
        .zip(&expected)
        .fold(0f32, |w, (a, b)| w.max(distance(a, b)));
    assert!(worst > 1e-2, "{worst:e}");
}

#[test]
fn stretched_rotations_are_those_of_the_config() {
    let scaled = |scaling: Value| Pair::new("llama", |config| config["rope_scaling"] = scaling);
    let linear = scaled(json!({"type": "linear", "factor": 3.0}));
    let keys = linear
        .keys()
        .str("llama.rope.scaling.type", "linear")
        .f32("llama.rope.scaling.factor", 3.0);
    let yarn = scaled(json!({
        "type": "yarn", "factor": 4.0, "beta_fast": 4.0, "original_max_position_embeddings": 400
    }));
    let yarn_keys =
        (yarn.keys().str("llama.rope.scaling.type", "yarn").f32("llama.rope.scaling.factor", 4.0))
            .f32("llama.rope.scaling.yarn_beta_fast", 4.0)
            .u32("llama.rope.scaling.original_context_length", 400);
    for (pair, keys) in [(linear, keys), (yarn, yarn_keys)] {
        let expected = logits(pair.directory.path(), Precision::F32);
        let path = pair.write(keys, &|_| TensorType::F32);
        let found = logits(&path, Precision::F32);
        let worst = found.iter().zip(&expected).fold(0f32, |w, (a, b)| w.max(distance(a, b)));
        assert!(worst < 1e-5, "{worst:e}");
    }
    // Llama 3's is a tensor of divisors.
    let (factor, low, high, original) = (8.0, 1.0, 4.0, 32.0);
    let pair = scaled(json!({
        "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
        "original_max_position_embeddings": original
    }));
    let head = pair.head();
    let divisors: Vec<f32> = (0..head / 2)
        .map(|i| {
            let plain = pair.theta().powf(-2.0 * i as f64 / head as f64);
            let kept: f64 =
                ((original * plain / std::f64::consts::TAU - low) / (high - low)).clamp(0.0, 1.0);
            (1.0 / (kept + (1.0 - kept) / factor)) as f32
        })
        .collect();
    let keys = pair.keys().f32_tensor("rope_freqs.weight", &[divisors.len() as u64], &divisors);
    let expected = logits(pair.directory.path(), Precision::F32);
    let found = logits(&pair.write(keys, &|_| TensorType::F32), Precision::F32);
    let worst = found.iter().zip(&expected).fold(0f32, |w, (a, b)| w.max(distance(a, b)));
    assert!(worst < 1e-4, "{worst:e}");
}

#[test]
fn blocks_are_held_as_they_are() {
    for (kind, precision) in [
        (TensorType::Q8_0, Precision::Q8_0),
        (TensorType::Q4_0, Precision::Q4_0),
        (TensorType::Q4_1, Precision::Q4_1),
        (TensorType::Q5_1, Precision::Q5_1),
    ] {
        for fixture in ["llama", "llama-biases", "qwen3"] {
            let pair = pair(fixture);
            // An embedding of its own is held in f32 beside quantised matrices.
            let tied = pair.config["tie_word_embeddings"].as_bool().unwrap();
            let kinds = |name: &str| {
                if !tied && name.contains("token_embd") { TensorType::F32 } else { kind }
            };
            let path = pair.write(pair.keys(), &kinds);
            // The same blocks, made of the directory's weights on loading.
            let expected = logits(pair.directory.path(), precision);
            assert_eq!(logits(&path, Precision::File), expected, "{fixture}, {kind:?}");
            assert_eq!(logits(&path, precision), expected, "{fixture}, {kind:?}");
            let model = open(&path, Precision::File).model;
            let stored = Description::read(&path).unwrap().weight_bytes(Precision::File);
            // Tiles are whole, here of few rows.
            assert!(
                model.weight_bytes() < 3 * stored as usize,
                "{} {stored}",
                model.weight_bytes()
            );
            // In f32 they are what the file says: as a directory of those numbers.
            let mut tensors = pair.tensors.clone();
            for (name, tensor) in tensors.iter_mut().filter(|(_, tensor)| tensor.shape.len() == 2) {
                let held = match kinds(&renamed(name, false)) {
                    TensorType::F32 => tensor.values(),
                    kind => reference::widened(kind, &reference::quantised(kind, &tensor.values())),
                };
                *tensor = Tensor::new(&held, &tensor.shape, Dtype::F32);
            }
            write_tensors(&tensors, &pair.directory.path().join("model.safetensors"));
            let expected = logits(pair.directory.path(), Precision::F32);
            assert_eq!(logits(&path, Precision::F32), expected, "{fixture}, {kind:?} in f32");
        }
    }
    // The numbers of f32, but for inputs rounded to 8 bits; of a type too that nothing is rounded
    // to.
    let pair = pair("llama");
    for kind in [TensorType::Q5_0, TensorType::Q5_1] {
        let path = pair.write(pair.keys(), &|_| kind);
        let [file, wide] = [Precision::File, Precision::F32].map(|p| logits(&path, p));
        let worst = file.iter().zip(&wide).fold(0f32, |w, (a, b)| w.max(distance(a, b)));
        assert!(worst > 0.0 && worst < 0.02, "{kind:?}: {worst:e}");
        let [file, wide] =
            [Precision::File, Precision::F32].map(|p| open(&path, p).model.weight_bytes());
        assert!(file * 5 < wide, "{file} {wide}");
    }
}

#[test]
fn the_text_side_comes_from_the_file() {
    let pair = pair("qwen2");
    let path = pair.plain();
    let description = Description::read(&path).unwrap();
    let language = &description.language;
    // Padding rows with tokens of the converter's are none.
    assert_eq!((description.config.vocabulary, language.vocabulary.size()), (80, 62));
    assert_eq!((language.name.as_str(), &language.end_tokens[..]), ("model", &[1][..]));
    assert_eq!(description.stored, "F32");
    let template = language.chat.as_ref().unwrap();
    assert_eq!(template.render(&[polydraft_text::Message::user("ab c")]).unwrap(), "<s>ab c");
    let tokens = language.tokenizer.encode_plain("ab c").unwrap();
    assert_eq!(language.tokenizer.decode(&tokens).unwrap(), "ab c");
    let loaded = load(&path, LoadOptions::default()).unwrap();
    assert_eq!(loaded.language.vocabulary.size(), 62);
    // A memory that is too small is named with what would fit.
    let options =
        LoadOptions { precision: Precision::F32, memory: Some(60_000), ..LoadOptions::default() };
    let message = load(&path, options).unwrap_err().to_string();
    assert!(message.contains("as f32 this model needs"), "{message}");
}

#[test]
fn what_is_wrong_is_named() {
    let message = |path: &Path| load(path, LoadOptions::default()).unwrap_err().to_string();
    let folder = tempfile::tempdir().unwrap();
    let missing = message(&folder.path().join("none.gguf"));
    assert!(missing.contains("none.gguf"), "{missing}");
    let other = folder.path().join("other.gguf");
    fs::write(&other, gguf::model("mamba").finish()).unwrap();
    let other = message(&other);
    assert!(other.contains("llama, qwen2") && other.contains("mamba"), "{other}");
    let pair = pair("llama");
    let path = pair.plain();
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 100]).unwrap();
    let cut = message(&path);
    assert!(cut.contains("model.gguf") && cut.contains("expected"), "{cut}");
    // A scale that is none.
    let path = pair.write(pair.keys(), &|_| TensorType::Q8_0);
    let mut broken = fs::read(&path).unwrap();
    let at = Gguf::open(&path).unwrap().tensor("blk.1.ffn_up.weight").unwrap().offset() as usize;
    broken[at..at + 2].copy_from_slice(&[0, 0x7c]);
    fs::write(&path, broken).unwrap();
    for precision in [Precision::File, Precision::F32] {
        let options = LoadOptions { precision, ..LoadOptions::default() };
        let found = load(&path, options).unwrap_err().to_string();
        assert!(
            found.contains("tensor blk.1.ffn_up.weight") && found.contains("finite"),
            "{found}"
        );
    }
}

#[test]
fn types_that_cannot_be_read_are_named() {
    let pair = pair("llama");
    let path = pair.plain();
    let (mut bytes, name) = (fs::read(&path).unwrap(), b"blk.0.attn_q.weight");
    let at = bytes.windows(name.len()).position(|window| window == name).unwrap() + name.len();
    // Behind the name: the number of dimensions, two of them, the type; I32 takes as many bytes as
    // F32.
    bytes[at + 20..at + 24].copy_from_slice(&26u32.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let found = load(&path, LoadOptions::default()).unwrap_err().to_string();
    assert!(
        found.contains("tensor blk.0.attn_q.weight: expected type F32, F16")
            && found.contains("I32"),
        "{found}"
    );
}

/// Damaged headers: refused with the file's name, or a model that can be asked; never a panic,
/// never memory for nothing.
#[test]
fn files_that_lie_are_refused_or_work() {
    let mut rng = ChaCha12Rng::seed_from_u64(7);
    let (mut refused, mut worked) = (0, 0);
    for fixture in ["llama", "gemma3"] {
        let pair = pair(fixture);
        let path = pair.write(pair.keys(), &|_| TensorType::Q8_0);
        let bytes = fs::read(&path).unwrap();
        let header =
            Gguf::open(&path).unwrap().tensors().map(|tensor| tensor.offset()).min().unwrap()
                as usize;
        for round in 0..400 {
            let mut mutant = bytes.clone();
            for _ in 0..1 + round % 3 {
                let at = rng.random_range(8..header);
                mutant[at] = match rng.random_range(0..4) {
                    0 => rng.random(),
                    1 => 0,
                    2 => 0xff,
                    _ => mutant[at] ^ 1 << rng.random_range(0..8),
                };
            }
            fs::write(&path, mutant).unwrap();
            let precision = [Precision::File, Precision::F32, Precision::Q4_0][round % 3];
            match load(
                &path,
                LoadOptions { precision, memory: Some(1 << 28), ..LoadOptions::default() },
            ) {
                Err(error) => {
                    assert!(error.to_string().contains("model"), "{error}");
                    refused += 1;
                }
                Ok(loaded) => {
                    let tokens = loaded.language.vocabulary.size() as u32;
                    let text: Vec<u32> =
                        TEXT.iter().copied().filter(|token| *token < tokens).collect();
                    if !text.is_empty() {
                        alone(&mut Single::new(loaded.model), &text);
                        worked += 1;
                    }
                }
            }
        }
    }
    // Most damage is found before anything is computed.
    assert!(refused > 100 && worked > 50, "{refused} refused, {worked} worked");
}
