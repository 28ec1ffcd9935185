//! A small writer of GGUF files, which can also write invalid files.

#![allow(dead_code)] // each test uses a part

use std::io::Write as _;

/// Reports that a test was skipped. Writes to stderr directly, because the test harness hides the
/// output of tests that pass.
pub fn report_skipped(variable: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {variable} names no file");
}

/// Numbers of value types.
pub const U8: u32 = 0;
pub const U32: u32 = 4;
pub const I32: u32 = 5;
pub const F32: u32 = 6;
pub const BOOL: u32 = 7;
pub const STRING: u32 = 8;
pub const ARRAY: u32 = 9;

/// Builder of a file.
#[derive(Debug, Clone)]
pub struct Writer {
    pub magic: [u8; 4],
    pub version: u32,
    pub alignment: usize,
    /// Numbers of tensors and keys in the header, if they differ from the actual ones.
    pub counts: Option<[u64; 2]>,
    pub keys: Vec<Vec<u8>>,
    pub tensors: Vec<Tensor>,
    pub data: Vec<u8>,
}

/// Entry of a tensor in the header.
#[derive(Debug, Clone)]
pub struct Tensor {
    name: String,
    dimensions: Vec<u64>,
    kind: u32,
    offset: u64,
}

pub fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

impl Default for Writer {
    fn default() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            alignment: 32,
            counts: None,
            keys: Vec::new(),
            tensors: Vec::new(),
            data: Vec::new(),
        }
    }
}

impl Writer {
    /// Adds a key with the bytes of its value.
    pub fn raw(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        self.keys.push([&string(key), &kind.to_le_bytes()[..], value].concat());
        self
    }

    pub fn u32(self, key: &str, value: u32) -> Self {
        self.raw(key, U32, &value.to_le_bytes())
    }

    pub fn f32(self, key: &str, value: f32) -> Self {
        self.raw(key, F32, &value.to_le_bytes())
    }

    pub fn bool(self, key: &str, value: bool) -> Self {
        self.raw(key, BOOL, &[value.into()])
    }

    pub fn str(self, key: &str, value: &str) -> Self {
        self.raw(key, STRING, &string(value))
    }

    /// Adds an array of values, given as bytes.
    pub fn array(self, key: &str, kind: u32, values: &[Vec<u8>]) -> Self {
        let head = [&kind.to_le_bytes()[..], &(values.len() as u64).to_le_bytes()].concat();
        self.raw(key, ARRAY, &[head, values.concat()].concat())
    }

    pub fn strings(self, key: &str, values: &[&str]) -> Self {
        let values: Vec<_> = values.iter().map(|value| string(value)).collect();
        self.array(key, STRING, &values)
    }

    pub fn i32s(self, key: &str, values: &[i32]) -> Self {
        let values: Vec<_> = values.iter().map(|value| value.to_le_bytes().to_vec()).collect();
        self.array(key, I32, &values)
    }

    pub fn f32s(self, key: &str, values: &[f32]) -> Self {
        let values: Vec<_> = values.iter().map(|value| value.to_le_bytes().to_vec()).collect();
        self.array(key, F32, &values)
    }

    /// Adds a tensor with its blocks. Dimensions have the length of a row first.
    pub fn tensor(mut self, name: &str, kind: u32, dimensions: &[u64], blocks: &[u8]) -> Self {
        let offset = self.data.len().next_multiple_of(self.alignment);
        self.data.resize(offset, 0);
        self.data.extend(blocks);
        self.tensor_entry(name, kind, dimensions, offset as u64)
    }

    /// Adds a tensor of f32.
    pub fn f32_tensor(self, name: &str, dimensions: &[u64], values: &[f32]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(name, 0, dimensions, &bytes)
    }

    /// Adds an entry of a tensor without data.
    pub fn tensor_entry(mut self, name: &str, kind: u32, dimensions: &[u64], offset: u64) -> Self {
        let tensor =
            Tensor { name: name.to_owned(), dimensions: dimensions.to_vec(), kind, offset };
        self.tensors.push(tensor);
        self
    }

    pub fn finish(&self) -> Vec<u8> {
        let mut bytes = self.magic.to_vec();
        bytes.extend(self.version.to_le_bytes());
        let [tensors, keys] =
            self.counts.unwrap_or([self.tensors.len() as u64, self.keys.len() as u64]);
        bytes.extend(tensors.to_le_bytes());
        bytes.extend(keys.to_le_bytes());
        bytes.extend(self.keys.concat());
        for tensor in &self.tensors {
            bytes.extend(string(&tensor.name));
            bytes.extend((tensor.dimensions.len() as u32).to_le_bytes());
            bytes.extend(tensor.dimensions.iter().flat_map(|size| size.to_le_bytes()));
            bytes.extend(tensor.kind.to_le_bytes());
            bytes.extend(tensor.offset.to_le_bytes());
        }
        bytes.resize(bytes.len().next_multiple_of(self.alignment), 0);
        bytes.extend(&self.data);
        bytes
    }
}

/// Returns a model of two layers with all tensors of its architecture: two query heads and one key
/// head.
pub fn model(architecture: &str) -> Writer {
    let key = |name: &str| format!("{architecture}.{name}");
    let (hidden, head, inner, tokens) = (8_u64, 4_u64, 12_u64, 5_u64);
    let mut writer = Writer::default()
        .str("general.architecture", architecture)
        .str("general.name", "A test")
        .u32(&key("block_count"), 2)
        .u32(&key("context_length"), 64)
        .u32(&key("embedding_length"), hidden as u32)
        .u32(&key("feed_forward_length"), inner as u32)
        .u32(&key("attention.head_count"), 2)
        .u32(&key("attention.head_count_kv"), 1)
        .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5);
    let gemma = architecture.starts_with("gemma");
    let mut add = |name: String, dimensions: &[u64]| {
        let count = dimensions.iter().product::<u64>() as usize;
        let values: Vec<f32> = (0..count).map(|i| 1.0 + i as f32 / 8.0).collect();
        writer = std::mem::take(&mut writer).f32_tensor(&name, dimensions, &values);
    };
    add("token_embd.weight".into(), &[hidden, tokens]);
    add("output_norm.weight".into(), &[hidden]);
    for layer in 0..2 {
        let name = |base: &str| format!("blk.{layer}.{base}.weight");
        add(name("attn_norm"), &[hidden]);
        add(name("attn_q"), &[hidden, 2 * head]);
        add(name("attn_k"), &[hidden, head]);
        add(name("attn_v"), &[hidden, head]);
        add(name("attn_output"), &[2 * head, hidden]);
        add(name("ffn_norm"), &[hidden]);
        add(name("ffn_gate"), &[hidden, inner]);
        add(name("ffn_up"), &[hidden, inner]);
        add(name("ffn_down"), &[inner, hidden]);
        if architecture == "qwen2" {
            add(format!("blk.{layer}.attn_q.bias"), &[2 * head]);
            add(format!("blk.{layer}.attn_k.bias"), &[head]);
            add(format!("blk.{layer}.attn_v.bias"), &[head]);
        }
        if architecture == "qwen3" || architecture == "gemma3" {
            add(name("attn_q_norm"), &[head]);
            add(name("attn_k_norm"), &[head]);
        }
        if gemma {
            add(name("post_attention_norm"), &[hidden]);
            add(name("post_ffw_norm"), &[hidden]);
        }
    }
    writer
}
