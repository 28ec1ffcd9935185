//! Small random models in GGUF files, of architectures with different caches.
#![allow(dead_code)] // each test file uses its part

#[path = "../../../polydraft-gguf/tests/support/mod.rs"]
pub mod gguf;

use std::io::Write as _;

use gguf::Writer;
use polydraft::{DraftTree, NodeId, Token};
use polydraft_engine::{Model, Sequence, Sequences};
use polydraft_llama::{CacheType, FlashAttention, LlamaOptions};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;
use tempfile::NamedTempFile;

pub const CONTEXT: u32 = 640;
/// Sliding window of [`Kind::Window`], shorter than the sequences.
pub const WINDOW: u32 = 8;
const HIDDEN: u64 = 64;
const INNER: u64 = 96;
const HEADS: u64 = 4;
const KEY_VALUE_HEADS: u64 = 2;
const HEAD: u64 = 32;
const LAYERS: u64 = 2;

/// How a model caches its sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Keys and values of all tokens.
    Plain,
    /// A sliding window in some layers.
    Window,
    /// A recurrent state.
    State,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Plain, Self::Window, Self::State];

    fn architecture(self) -> &'static str {
        match self {
            Self::Plain => "llama",
            Self::Window => "gemma3",
            Self::State => "mamba",
        }
    }
}

/// Tokens and their types: three special tokens, the bytes, a space and the letters.
fn tokens() -> (Vec<String>, Vec<i32>) {
    let special = ["<unk>", "<s>", "</s>"].map(str::to_owned);
    let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
    let letters = ["\u{2581}".to_owned()].into_iter().chain(('a'..='z').map(|c| c.to_string()));
    let strings: Vec<String> = special.into_iter().chain(bytes).chain(letters).collect();
    let kinds = (0..strings.len()).map(|id| match id {
        0 => 2,
        1 | 2 => 3,
        3..259 => 6,
        _ => 1,
    });
    let kinds = kinds.collect();
    (strings, kinds)
}

pub fn vocabulary() -> usize {
    tokens().0.len()
}

/// Model with random weights. A larger `logit_scale` makes some tokens much likelier than others.
pub fn writer(kind: Kind, seed: u64, logit_scale: f32) -> Writer {
    let architecture = kind.architecture();
    let key = |name: &str| format!("{architecture}.{name}");
    let (strings, kinds) = tokens();
    let count = strings.len() as u64;
    let strings: Vec<&str> = strings.iter().map(String::as_str).collect();
    let mut writer = Writer::default()
        .str("general.architecture", architecture)
        .str("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", &strings)
        .f32s("tokenizer.ggml.scores", &vec![0.0; strings.len()])
        .i32s("tokenizer.ggml.token_type", &kinds)
        .u32("tokenizer.ggml.bos_token_id", 1)
        .u32("tokenizer.ggml.eos_token_id", 2)
        .u32("tokenizer.ggml.unknown_token_id", 0)
        .u32(&key("block_count"), LAYERS as u32)
        .u32(&key("context_length"), CONTEXT)
        .u32(&key("embedding_length"), HIDDEN as u32)
        .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5);
    let mut rng = ChaCha12Rng::seed_from_u64(seed);
    let mut add = |writer: Writer, name: String, dimensions: &[u64], base: f32, scale: f32| {
        let values: Vec<f32> = (0..dimensions.iter().product::<u64>())
            .map(|_| base + scale * (rng.random::<f32>() - 0.5))
            .collect();
        writer.f32_tensor(&name, dimensions, &values)
    };
    let wide = |inputs: u64| 3.0 / (inputs as f32).sqrt();
    writer = add(writer, "token_embd.weight".into(), &[HIDDEN, count], 0.0, 2.0);
    // With a tied embedding each token would be followed by itself.
    writer = add(writer, "output.weight".into(), &[HIDDEN, count], 0.0, 0.5);
    writer = add(writer, "output_norm.weight".into(), &[HIDDEN], logit_scale, 0.3);
    if kind == Kind::State {
        let (inner, state, rank, kernel) = (2 * HIDDEN, 8, 4, 4);
        writer = writer
            .u32(&key("feed_forward_length"), 0)
            .u32(&key("attention.head_count"), 0)
            .u32(&key("ssm.conv_kernel"), kernel as u32)
            .u32(&key("ssm.inner_size"), inner as u32)
            .u32(&key("ssm.state_size"), state as u32)
            .u32(&key("ssm.time_step_rank"), rank as u32);
        for layer in 0..LAYERS {
            let name = |base: &str| format!("blk.{layer}.{base}");
            writer = add(writer, name("attn_norm.weight"), &[HIDDEN], 1.0, 0.3);
            writer = add(writer, name("ssm_in.weight"), &[HIDDEN, 2 * inner], 0.0, wide(HIDDEN));
            writer = add(writer, name("ssm_conv1d.weight"), &[kernel, inner], 0.0, 1.0);
            writer = add(writer, name("ssm_conv1d.bias"), &[inner], 0.0, 0.2);
            writer =
                add(writer, name("ssm_x.weight"), &[inner, rank + 2 * state], 0.0, wide(inner));
            writer = add(writer, name("ssm_dt.weight"), &[rank, inner], 0.0, wide(rank));
            writer = add(writer, name("ssm_dt.bias"), &[inner], 0.0, 0.5);
            // Negative: states fade.
            writer = add(writer, name("ssm_a"), &[state, inner], -1.0, 0.5);
            writer = add(writer, name("ssm_d"), &[inner], 1.0, 0.3);
            writer = add(writer, name("ssm_out.weight"), &[inner, HIDDEN], 0.0, wide(inner));
        }
        return writer;
    }
    writer = writer
        .u32(&key("feed_forward_length"), INNER as u32)
        .u32(&key("attention.head_count"), HEADS as u32)
        .u32(&key("attention.head_count_kv"), KEY_VALUE_HEADS as u32)
        .u32(&key("attention.key_length"), HEAD as u32)
        .u32(&key("attention.value_length"), HEAD as u32)
        .f32(&key("rope.freq_base"), 1000.0);
    if kind == Kind::Window {
        // The first of two layers.
        writer = writer
            .u32(&key("attention.sliding_window"), WINDOW)
            .u32(&key("attention.sliding_window_pattern"), 2);
    }
    for layer in 0..LAYERS {
        let name = |base: &str| format!("blk.{layer}.{base}.weight");
        for norm in ["attn_norm", "ffn_norm"] {
            writer = add(writer, name(norm), &[HIDDEN], 1.0, 0.3);
        }
        if kind == Kind::Window {
            for norm in ["post_attention_norm", "post_ffw_norm"] {
                writer = add(writer, name(norm), &[HIDDEN], 1.0, 0.3);
            }
            for norm in ["attn_q_norm", "attn_k_norm"] {
                writer = add(writer, name(norm), &[HEAD], 1.0, 0.3);
            }
        }
        for (base, inputs, outputs) in [
            ("attn_q", HIDDEN, HEADS * HEAD),
            ("attn_k", HIDDEN, KEY_VALUE_HEADS * HEAD),
            ("attn_v", HIDDEN, KEY_VALUE_HEADS * HEAD),
            ("attn_output", HEADS * HEAD, HIDDEN),
            ("ffn_gate", HIDDEN, INNER),
            ("ffn_up", HIDDEN, INNER),
            ("ffn_down", INNER, HIDDEN),
        ] {
            writer = add(writer, name(base), &[inputs, outputs], 0.0, wide(inputs));
        }
    }
    writer
}

pub fn file(writer: &Writer) -> NamedTempFile {
    let mut file = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
    file.write_all(&writer.finish()).unwrap();
    file.flush().unwrap();
    file
}

/// One thread, so that tests can run in parallel; keys and values in f32, to make comparisons as
/// exact as possible.
pub fn options() -> LlamaOptions {
    LlamaOptions {
        threads: 1,
        batch_threads: 1,
        cache_type: CacheType::F32,
        flash_attention: FlashAttention::Off,
        ..LlamaOptions::default()
    }
}

pub fn random_tokens(rng: &mut ChaCha12Rng, length: usize) -> Vec<Token> {
    (0..length).map(|_| rng.random_range(3..vocabulary() as Token)).collect()
}

/// Adds up to `count` random nodes.
pub fn grow(tree: &mut DraftTree, rng: &mut ChaCha12Rng, count: usize) {
    for _ in 0..count {
        let parent: NodeId = rng.random_range(0..tree.len());
        tree.add(parent, rng.random_range(3..vocabulary() as Token));
    }
}

pub fn tokens_to(tree: &DraftTree, node: NodeId) -> Vec<Token> {
    tree.path(node).into_iter().map(|node| tree.token(node)).collect()
}

/// Logits after a sequence that is read at once, without reuse of another sequence's cache.
#[cfg(feature = "native")]
pub fn alone(model: &mut polydraft_llama::LlamaModel, tokens: &[Token]) -> Vec<f32> {
    model.forget_closed();
    let sequence = model.open().unwrap();
    model.extend(sequence, tokens).unwrap();
    let logits = after(model, sequence);
    model.close(sequence);
    logits
}

pub fn after(model: &mut dyn Model, sequence: Sequence) -> Vec<f32> {
    model.score(&[(sequence, &DraftTree::new())]).unwrap();
    model.logits(sequence, DraftTree::ROOT).to_vec()
}

/// Largest absolute difference; NaN if any value is NaN.
pub fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |most, d| if d.is_nan() || d > most { d } else { most })
}

/// Command that runs an ignored test of the same file in a process of its own, in which llama.cpp
/// may abort.
pub fn child_test(test: &str, variables: &[(&str, &str)]) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "--nocapture", test]);
    command.envs(variables.iter().copied());
    command
}
