//! Fixtures, and the same models in GGUF files, in the layout of llama.cpp's converter.

#[path = "../../../polydraft-gguf/tests/support/mod.rs"]
pub mod gguf;
#[path = "../../../polydraft-kernels/tests/support/reference.rs"]
pub mod reference;

use std::fs;
use std::path::{Path, PathBuf};

use gguf::Writer;
use polydraft_gguf::TensorType;
use serde_json::{Value, json};

use crate::common::{Tensors, change_config, read_tensors};

pub const TOKENS: [u32; 14] = [5, 17, 3, 3, 40, 22, 9, 51, 60, 2, 33, 17, 8, 4];

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

/// A fixture with a configuration that a GGUF file can express too.
pub struct Pair {
    pub directory: tempfile::TempDir,
    pub config: Value,
    pub tensors: Tensors,
}

/// Type in which a tensor is written, by its name in the file.
pub type Kinds<'a> = &'a dyn Fn(&str) -> TensorType;

impl Pair {
    pub fn new(fixture: &str, change: impl FnOnce(&mut Value)) -> Self {
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

    pub fn head(&self) -> usize {
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
    pub fn keys(&self) -> Writer {
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

    pub fn theta(&self) -> f64 {
        let inner = &self.config["rope_parameters"];
        let found = [&self.config, inner, &inner["full_attention"]]
            .map(|fields| fields["rope_theta"].as_f64());
        found.into_iter().flatten().next().unwrap()
    }

    /// Writes the file with all tensors.
    pub fn write(&self, mut writer: Writer, kinds: Kinds) -> PathBuf {
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

    pub fn plain(&self) -> PathBuf {
        self.write(self.keys(), &|_| TensorType::F32)
    }
}

pub fn renamed(name: &str, gemma: bool) -> String {
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

/// Permutes the rows of queries and keys like llama.cpp's converter: the rows of each head are
/// reshaped to `[2, head / 2, ..]` and the first two dimensions exchanged.
pub fn interleaved(values: &[f32], rows: usize, head: usize) -> Vec<f32> {
    let row = |at: usize| {
        // First row of the head, index of the pair, and which of the two.
        let (first, pair, second) = (at / head * head, at % head / 2, at % 2);
        let from = first + second * (head / 2) + pair;
        &values[from * values.len() / rows..][..values.len() / rows]
    };
    (0..rows).flat_map(row).copied().collect()
}

/// GGUF type number and bytes of quantised values.
pub fn blocks(values: &[f32], kind: TensorType) -> (u32, Vec<u8>) {
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

/// A fixture changed so that both formats can express it: no sliding window except Gemma's, and
/// attention scaled by the head size.
pub fn pair(fixture: &str) -> Pair {
    Pair::new(fixture, |config| match fixture {
        "mistral" => config["sliding_window"] = Value::Null,
        "qwen2" => config["use_sliding_window"] = json!(false),
        "gemma3" => config["query_pre_attn_scalar"] = config["head_dim"].clone(),
        "gemma2" => {
            config["query_pre_attn_scalar"] = config["head_dim"].clone();
            // Representable in f32.
            config["final_logit_softcapping"] = json!(0.5);
        }
        _ => {}
    })
}
