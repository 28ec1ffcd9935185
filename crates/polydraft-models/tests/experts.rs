//! Models with experts: MXFP4 weights as in gpt-oss, quantised self-drafts, and descriptions of
//! their size.

use std::fs;
use std::path::Path;

use crate::common::*;
use crate::gguf_pair::{Pair, blocks as quantised, interleaved, renamed};
use polydraft::DraftTree;
use polydraft_engine::{KvCacheFollower, Model, Sequences};
use polydraft_gguf::TensorType;
use polydraft_models::{Description, LoadOptions, Precision, load};

use crate::gguf_pair::TOKENS;

fn fixture(name: &str) -> tempfile::TempDir {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    let directory = tempfile::tempdir().unwrap();
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        fs::copy(folder.join(file), directory.path().join(file)).unwrap();
    }
    directory
}

/// Twice the values of the FP4 codes.
const HALVES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Quantises experts' matrices `[experts, in, out]` in blocks of 32 along `in`; returns the codes,
/// the scales, and the tensor of the values that they represent.
fn blocks(tensor: &Tensor) -> [Tensor; 3] {
    let [count, columns, rows] = tensor.shape[..] else { panic!("{:?}", tensor.shape) };
    let values = tensor.values();
    let (mut numbers, mut scales, mut made) = (Vec::new(), Vec::new(), vec![0.0; values.len()]);
    for expert in 0..count {
        for row in 0..rows {
            for block in 0..columns / 32 {
                let at = |i: usize| (expert * columns + block * 32 + i) * rows + row;
                let largest = (0..32).fold(0f32, |most, i| most.max(values[at(i)].abs()));
                let power = (largest / 6.0).log2().ceil() as i32;
                let scale = 2f32.powi(power - 1);
                let nearest = |x: f32| {
                    let off = |n: &u8| (f32::from(HALVES[usize::from(*n)]) * scale - x).abs();
                    (0..16u8).min_by(|a, b| off(a).total_cmp(&off(b))).unwrap()
                };
                let codes: Vec<u8> = (0..32).map(|i| nearest(values[at(i)])).collect();
                for (i, code) in codes.iter().enumerate() {
                    made[at(i)] = f32::from(HALVES[usize::from(*code)]) * scale;
                }
                numbers.extend(codes.chunks(2).map(|pair| pair[0] | pair[1] << 4));
                scales.push((power + 127) as u8);
            }
        }
    }
    let shape = [count, rows, columns / 32];
    [
        Tensor::from_bytes(numbers, &[&shape[..], &[16]].concat()),
        Tensor::from_bytes(scales, &shape),
        Tensor::new(&made, &tensor.shape, Dtype::BF16),
    ]
}

#[test]
fn mxfp4_experts_equal_their_dequantised_values() {
    let [wide, narrow] = [fixture("gpt-oss"), fixture("gpt-oss")];
    let path = |directory: &tempfile::TempDir| directory.path().join("model.safetensors");
    let tensors = read_tensors(&path(&wide));
    let (mut made, mut stored) = (tensors.clone(), tensors.clone());
    for (name, tensor) in tensors.iter().filter(|(name, _)| name.ends_with("_proj")) {
        let [numbers, scales, values] = blocks(tensor);
        made.insert(name.clone(), values);
        stored.remove(name);
        stored.insert(format!("{name}_blocks"), numbers);
        stored.insert(format!("{name}_scales"), scales);
    }
    write_tensors(&made, &path(&wide));
    write_tensors(&stored, &path(&narrow));
    change_config(narrow.path(), |config| {
        config["quantization_config"] = serde_json::json!({"quant_method": "mxfp4"});
    });
    let logits = |directory: &tempfile::TempDir, precision: Precision| {
        alone(&mut open(directory.path(), precision), &TOKENS)
    };
    let expected = logits(&wide, Precision::F32);
    for precision in [Precision::F32, Precision::Bf16] {
        assert_eq!(logits(&narrow, precision), expected, "{precision}");
    }
    // Multiplied as stored, with inputs rounded to 8 bits.
    let off = distance(&logits(&narrow, Precision::File), &expected);
    assert!(off > 0.0 && off < 0.02, "{off}");
    let [read, other] = [&narrow, &wide].map(|d| Description::read(d.path()).unwrap());
    assert_eq!(read.parameters, other.parameters);
    assert!(read.stored.contains("MXFP4"), "{}", read.stored);
    let bytes = |description: &Description| description.weight_bytes(Precision::File);
    assert!(bytes(&read) < bytes(&other), "{} {}", bytes(&read), bytes(&other));
    // A scale that is out of range for the type in memory.
    let mut scales =
        vec![200; stored["model.layers.0.mlp.experts.down_proj_scales"].shape.iter().product()];
    scales[0] = 127;
    let shape = stored["model.layers.0.mlp.experts.down_proj_scales"].shape.clone();
    stored.insert(
        "model.layers.0.mlp.experts.down_proj_scales".to_owned(),
        Tensor::from_bytes(scales, &shape),
    );
    write_tensors(&stored, &path(&narrow));
    let error = load(narrow.path(), Precision::File.into()).unwrap_err().to_string();
    assert!(error.contains("2^73") && error.contains("weight types f32"), "{error}");
}

#[test]
fn active_parameters_count_the_experts_of_one_token() {
    for (name, expert_parameters, used, count) in [
        // Experts in two layers, or in the second of two, of three matrices each.
        ("mixtral", 2 * 4 * 3 * 32 * 32, 2, 4),
        ("qwen3-moe", 6 * 3 * 32 * 32, 3, 6),
        ("gpt-oss", 2 * 4 * (3 * 32 * 32 + 3 * 32), 2, 4),
        ("granite-moe", 4 * 3 * 32 * 32, 2, 4),
        ("deepseek-v2", 6 * 3 * 32 * 32, 2, 6),
    ] {
        let read = Description::read(fixture(name).path()).unwrap();
        let idle = expert_parameters / count * (count - used);
        assert_eq!(read.parameters - read.active_parameters, idle, "{name}");
        let model = open(fixture(name).path(), Precision::F32).model;
        assert!(model.bytes_per_pass() < model.weight_bytes(), "{name}");
    }
    let dense = Description::read(fixture("llama").path()).unwrap();
    assert_eq!(dense.active_parameters, dense.parameters);
}

/// A self-draft has every expert and every head of the compressed keys in fewer bits, and follows
/// its model's KV cache.
#[test]
fn quantised_self_drafts_have_all_experts_and_follow_the_kv_cache() {
    for name in ["qwen2-moe", "deepseek-v2", "gpt-oss"] {
        let directory = fixture(name);
        let options = LoadOptions { self_draft: Some(Precision::Q8_0), ..LoadOptions::default() };
        let loaded = load(directory.path(), options).unwrap();
        let (mut model, mut copy) =
            (SingleSequence::new(loaded.model), SingleSequence::new(loaded.self_draft.unwrap()));
        let (exact, rounded) = (alone(&mut model, &TOKENS), alone(&mut copy, &TOKENS));
        let off = distance(&exact, &rounded);
        assert!(off > 0.0 && off < 0.1, "{name}: {off}");
        // It follows the model's KV cache.
        assert!(copy.model.follow_kv_cache(&model.model), "{name}");
        let tree = DraftTree::new();
        let (copy_sequence, model_sequence) =
            (copy.model.open().unwrap(), model.model.open().unwrap());
        for (one, sequence) in [(&mut copy, copy_sequence), (&mut model, model_sequence)] {
            one.model.extend(sequence, &TOKENS).unwrap();
        }
        model.model.score(&[(model_sequence, &tree)]).unwrap();
        copy.model
            .sync_kv_cache(copy_sequence, &model.model, model_sequence, TOKENS.len() - 1)
            .unwrap();
        copy.model.score(&[(copy_sequence, &tree)]).unwrap();
        let off = distance(copy.model.logits(copy_sequence, 0), &exact);
        assert!(off < 0.1, "{name}: {off}");
    }
}

/// Writes Mixtral as a GGUF file like llama.cpp's converter: one tensor per part for all experts.
fn file_of_mixtral(pair: &Pair, kind: TensorType) -> std::path::PathBuf {
    let mut writer = pair.keys().u32("llama.expert_count", 4).u32("llama.expert_used_count", 2);
    let mut names: Vec<&String> = pair.tensors.keys().collect();
    names.sort();
    for name in names.iter().filter(|name| !name.contains("experts")) {
        let tensor = &pair.tensors[*name];
        let mut values = tensor.values();
        if name.contains("q_proj") || name.contains("k_proj") {
            values = interleaved(&values, tensor.shape[0], pair.head());
        }
        let is_router = name.contains("block_sparse_moe.gate");
        let tensor_kind = match is_router || tensor.shape.len() == 1 || name.contains("embed") {
            true => TensorType::F32,
            false => kind,
        };
        let dimensions: Vec<u64> = tensor.shape.iter().rev().map(|size| *size as u64).collect();
        let (number, bytes) = quantised(&values, tensor_kind);
        let name = match is_router {
            true => name
                .replace("model.layers.", "blk.")
                .replace("block_sparse_moe.gate", "ffn_gate_inp"),
            false => renamed(name, false),
        };
        writer = writer.tensor(&name, number, &dimensions, &bytes);
    }
    for layer in 0..2 {
        for (part, name) in
            [("w1", "ffn_gate_exps"), ("w3", "ffn_up_exps"), ("w2", "ffn_down_exps")]
        {
            let name_of = |expert| {
                format!("model.layers.{layer}.block_sparse_moe.experts.{expert}.{part}.weight")
            };
            let values: Vec<f32> =
                (0..4).flat_map(|expert| pair.tensors[&name_of(expert)].values()).collect();
            let (number, bytes) = quantised(&values, kind);
            let name = format!("blk.{layer}.{name}.weight");
            writer = writer.tensor(&name, number, &[32, 32, 4], &bytes);
        }
    }
    let path = pair.directory.path().join("model.gguf");
    fs::write(&path, writer.finish()).unwrap();
    path
}

/// The blocks in a file equal those to which the directory's weights are rounded on loading.
#[test]
fn expert_blocks_of_gguf_files_are_used_unchanged() {
    let pair = Pair::new("mixtral", |config| config["sliding_window"] = serde_json::Value::Null);
    for (kind, precision) in [
        (TensorType::F32, Precision::F32),
        (TensorType::Q8_0, Precision::Q8_0),
        (TensorType::Q4_0, Precision::Q4_0),
        (TensorType::Q4_1, Precision::Q4_1),
        (TensorType::Q5_1, Precision::Q5_1),
    ] {
        let path = file_of_mixtral(&pair, kind);
        change_config(pair.directory.path(), |config| {
            config["rms_norm_eps"] =
                f64::from(config["rms_norm_eps"].as_f64().unwrap() as f32).into();
        });
        let expected = alone(&mut open(pair.directory.path(), precision), &TOKENS);
        for precision in [Precision::File, precision] {
            assert_eq!(
                alone(&mut open(&path, precision), &TOKENS),
                expected,
                "{kind}, {precision}"
            );
        }
    }
}

#[test]
fn experts_in_one_tensor_equal_separate_experts() {
    for name in ["qwen3-5-moe", "qwen3-moe"] {
        let (separate, stacked) = (fixture(name), fixture(name));
        let path = stacked.path().join("model.safetensors");
        let mut tensors = read_tensors(&path);
        let mut layers = 0;
        for layer in 0..8 {
            let begin = format!("model.layers.{layer}.mlp.experts");
            let mut take = |expert: usize, part: &str| {
                tensors.remove(&format!("{begin}.{expert}.{part}_proj.weight"))
            };
            let (mut into, mut out, mut count) = (Vec::new(), Vec::new(), 0);
            while let Some(gate) = take(count, "gate") {
                into.extend(gate.values());
                into.extend(take(count, "up").unwrap().values());
                out.extend(take(count, "down").unwrap().values());
                count += 1;
            }
            if count == 0 {
                continue;
            }
            let inner = into.len() / (2 * count * 32);
            let into = Tensor::new(&into, &[count, 2 * inner, 32], Dtype::BF16);
            tensors.insert(format!("{begin}.gate_up_proj"), into);
            let out = Tensor::new(&out, &[count, 32, inner], Dtype::BF16);
            tensors.insert(format!("{begin}.down_proj"), out);
            layers += 1;
        }
        assert!(layers > 0, "{name}");
        write_tensors(&tensors, &path);
        let logits = |d: &Path| alone(&mut open(d, Precision::Bf16), &TOKENS[..6]);
        assert_eq!(logits(stacked.path()), logits(separate.path()), "{name}");
        let [stacked, separate] = [stacked, separate].map(|d| Description::read(d.path()).unwrap());
        assert_eq!(stacked.active_parameters, separate.active_parameters, "{name}");
    }
}
