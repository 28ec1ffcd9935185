//! Directories with packed integer weights, as GPTQ, AWQ and compressed-tensors write them, or with
//! codebooks (NVFP4, MXFP4, bitsandbytes): each gives the log-probabilities that transformers
//! computes from the weights as other programs unpack them, and errors name invalid parts.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::*;
use polydraft_models::{Description, LoadOptions, Precision, load};
use serde_json::{Value, json};

const MODELS: [&str; 14] = [
    "ct-group",
    "ct-bytes",
    "ct-experts",
    "gptq",
    "gptq-v2",
    "gptq-symmetric",
    "awq",
    "nvfp4",
    "nvfp4-modelopt",
    "mxfp4",
    "mxfp8",
    "bnb-nf4",
    "bnb-fp4",
    "bnb-int8",
];
const TOLERANCE: f32 = 1e-4;
const TOKENS: usize = 62;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packed").join(name)
}

fn log_probabilities(logits: &[f32]) -> Vec<f32> {
    let sum: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
    logits.iter().map(|x| (f64::from(*x) - sum.ln()) as f32).collect()
}

/// Tokens of a fixture, and the log-probabilities after each of them.
fn expected(name: &str) -> (Vec<u32>, Vec<Vec<f32>>) {
    let found = read_tensors(&fixture(name).join("expected.safetensors"));
    let tokens = found["tokens"].integers().into_iter().map(|token| token as u32).collect();
    // Rows beyond the tokenizer's are padding.
    let logits = found["logits"].rows();
    (tokens, logits.iter().map(|row| log_probabilities(&row[..TOKENS])).collect())
}

fn scored(directory: &Path, precision: Precision, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut model = open(directory, precision);
    (1..=tokens.len())
        .map(|length| log_probabilities(&alone(&mut model, &tokens[..length])))
        .collect()
}

fn largest_difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    a.iter().zip(b).map(|(a, b)| distance(a, b)).fold(0.0, f32::max)
}

#[test]
fn log_probabilities_equal_those_of_reference_unpacking() {
    for name in MODELS {
        let (tokens, theirs) = expected(name);
        for (precision, most) in [
            (Precision::F32, TOLERANCE),
            // MXFP4 blocks are multiplied directly, with inputs quantised to 8 bits.
            (Precision::File, if name == "mxfp4" { 0.5 } else { TOLERANCE }),
            (Precision::Bf16, 0.1),
            (Precision::Q8_0, 0.5),
        ] {
            let largest_difference =
                largest_difference(&scored(&fixture(name), precision, &tokens), &theirs);
            assert!(largest_difference <= most, "{name} in {precision}: {largest_difference}");
        }
    }
}

/// Copy of a fixture with changed tensors.
fn changed(name: &str, change: impl FnOnce(&mut Tensors)) -> tempfile::TempDir {
    changed_copy(&fixture(name), change)
}

/// Suffixes of the names of scales.
const SCALES: [&str; 5] = ["scale", "scales", "_scale_2", "absmax", "SCB"];

/// The tensor with one bit changed, or with two groups exchanged.
fn disturbed(name: &str, tensor: &Tensor) -> Tensor {
    let mut bytes = tensor.bytes().to_vec();
    if name.ends_with("g_idx") {
        let words: Vec<[u8; 4]> = bytes.as_chunks::<4>().0.to_vec();
        let other = words.iter().position(|word| *word != words[0]).unwrap();
        bytes[..4].copy_from_slice(&words[other]);
        bytes[4 * other..4 * other + 4].copy_from_slice(&words[0]);
    } else if SCALES.iter().any(|end| name.ends_with(end)) {
        // The highest byte of the first scale.
        let width = bytes.len() / tensor.shape.iter().product::<usize>();
        bytes[width - 1] ^= 1;
    } else if name.ends_with("quant_map") {
        // All entries, because some are not used in the fixture.
        bytes.iter_mut().skip(3).step_by(4).for_each(|byte| *byte ^= 1);
    } else {
        bytes[0] ^= 1;
    }
    Tensor::from_raw(bytes, &tensor.shape, tensor.dtype)
}

#[test]
fn every_packed_tensor_changes_the_output() {
    let ends = ["weight_packed", "qweight", "qzeros", "g_idx", "_zero_point", "quant_map"];
    for name in MODELS {
        let (tokens, _) = expected(name);
        let before = scored(&fixture(name), Precision::F32, &tokens);
        let tensors = read_tensors(&fixture(name).join("model.safetensors"));
        let (mut counted, mut idle) = (0, 0);
        for (part, tensor) in &tensors {
            let is_number = tensor.dtype == Dtype::I8 || tensor.dtype == Dtype::F8_E4M3;
            let is_packed = ends.iter().chain(&SCALES).any(|end| part.ends_with(end)) || is_number;
            // All columns are in one group.
            let is_one = part.ends_with("g_idx") && tensor.bytes().iter().all(|byte| *byte == 0);
            if !is_packed || is_one {
                continue;
            }
            let after = changed(name, |tensors| {
                tensors.insert(part.clone(), disturbed(part, tensor));
            });
            let is_same = scored(after.path(), Precision::F32, &tokens) == before;
            if is_same && part.contains("experts.") {
                // No token was routed to this expert.
                idle += 1;
                continue;
            }
            counted += 1;
            // Quantisation of inputs is ignored.
            assert_eq!(is_same, part.contains("input_"), "{name}: {part}");
        }
        assert!(counted >= 12 && idle <= counted / 2, "{name}: {counted}, {idle}");
    }
}

#[test]
fn description_names_types_and_counts_parameters() {
    let described = |name| Description::read(&fixture(name)).unwrap();
    for (name, stored) in [
        ("ct-group", "INT4, INT8, F16"),
        ("ct-bytes", "INT8, F16"),
        ("ct-experts", "F16, INT4"),
        ("gptq", "INT4, F16"),
        ("gptq-v2", "INT8, F16"),
        ("gptq-symmetric", "INT8, F16"),
        ("awq", "INT4, F16"),
        ("nvfp4", "NVFP4, F16"),
        ("nvfp4-modelopt", "NVFP4, F16"),
        ("mxfp4", "MXFP4, F16"),
        ("mxfp8", "FP8, F16"),
        ("bnb-nf4", "NF4, F16"),
        ("bnb-fp4", "FP4, F16"),
        ("bnb-int8", "INT8, F16"),
    ] {
        let mut names: Vec<_> = described(name).stored.split(", ").map(str::to_owned).collect();
        let mut expected: Vec<_> = stored.split(", ").map(str::to_owned).collect();
        names.sort();
        expected.sort();
        assert_eq!(names, expected, "{name}");
    }
    // Parameters of the matrices, not packed words.
    let numbers = 62 * 32 * 2 + 32 * 32 * 2 + 16 * 32 * 2 + 3 * 32 * 64 + 3 * 32;
    assert_eq!(described("awq").parameters, numbers + 2 * 8);
    assert_eq!(described("nvfp4").parameters, described("awq").parameters);
}

#[test]
fn reads_shards_and_names_without_prefix() {
    for name in ["gptq", "awq", "ct-group", "ct-bytes", "nvfp4", "bnb-nf4", "bnb-int8"] {
        let (tokens, _) = expected(name);
        let before = scored(&fixture(name), Precision::F32, &tokens);
        let bare = changed(name, |tensors| {
            let renamed = tensors.drain().map(|(name, tensor)| {
                (name.strip_prefix("model.").map_or(name.clone(), str::to_owned), tensor)
            });
            *tensors = renamed.collect::<Vec<_>>().into_iter().collect();
        });
        assert_eq!(scored(bare.path(), Precision::F32, &tokens), before, "{name}");

        let sharded = changed(name, |_| {});
        let single_file = sharded.path().join("model.safetensors");
        let is_scale = |name: &str| name.contains("scale") || name.contains("zero");
        let (scales, rest): (Tensors, Tensors) =
            read_tensors(&single_file).into_iter().partition(|(name, _)| is_scale(name));
        fs::remove_file(&single_file).unwrap();
        let mut map = json!({});
        for (file, tensors) in [("a.safetensors", scales), ("b.safetensors", rest)] {
            tensors.keys().for_each(|name| map[name] = json!(file));
            write_tensors(&tensors, &sharded.path().join(file));
        }
        write_json(sharded.path(), "model.safetensors.index.json", &json!({ "weight_map": map }));
        assert_eq!(scored(sharded.path(), Precision::F32, &tokens), before, "{name}");
    }
}

/// Error of loading a changed fixture.
fn load_error(name: &str, change: impl FnOnce(&mut Tensors)) -> String {
    let directory = changed(name, change);
    load(directory.path(), LoadOptions::default()).expect_err("the fixture is invalid").to_string()
}

fn assert_contains(message: &str, expected: &[&str]) {
    for part in expected {
        assert!(message.contains(part), "expected {part:?} in: {message}");
    }
}

const UP: &str = "model.layers.0.mlp.up_proj";
const DOWN: &str = "model.layers.0.mlp.down_proj";
const QUERY: &str = "model.layers.0.self_attn.q_proj";

#[test]
fn errors_name_missing_tensors() {
    for (name, part, expected) in [
        ("gptq", format!("{UP}.scales"), "its scales in a tensor"),
        ("gptq", format!("{UP}.qzeros"), "its zero points in a tensor"),
        ("gptq", format!("{UP}.qweight"), "beside it"),
        ("awq", format!("{UP}.scales"), "its scales in a tensor"),
        ("awq", format!("{UP}.qzeros"), "its zero points in a tensor"),
        ("awq", format!("{UP}.qweight"), "beside it"),
        ("ct-group", format!("{QUERY}.weight_scale"), "its scales in a tensor"),
        ("ct-group", format!("{QUERY}.weight_zero_point"), "its zero points in a tensor"),
        ("ct-group", format!("{QUERY}.weight_shape"), "its shape in a tensor"),
        ("ct-group", format!("{QUERY}.weight_packed"), "beside it"),
        ("ct-bytes", format!("{DOWN}.weight_scale"), "its scales in a tensor"),
        ("ct-bytes", format!("{DOWN}.weight_zero_point"), "its zero points in a tensor"),
    ] {
        let message = load_error(name, |tensors| drop(tensors.remove(&part).unwrap()));
        assert_contains(&message, &["model.safetensors", &part, expected]);
    }
}

#[test]
fn errors_name_tensors_of_wrong_shape_or_type() {
    let parts = ["qweight", "qzeros", "scales", "g_idx"];
    let gptq_parts = |name, base: &str| parts.map(|part| (name, format!("{base}.{part}")));
    let parts = ["packed", "scale", "zero_point", "g_idx", "shape"];
    let compressed = parts.map(|part| ("ct-group", format!("{QUERY}.weight_{part}")));
    let bytes = ["weight_scale", "weight_zero_point"];
    let bytes = bytes.map(|part| ("ct-bytes", format!("{UP}.{part}")));
    let all = gptq_parts("gptq", UP).into_iter().chain(gptq_parts("awq", UP).into_iter().take(3));
    for (name, part) in all.chain(compressed).chain(bytes) {
        let message = load_error(name, |tensors| {
            let shorter = tensors[&part].without_last_row();
            tensors.insert(part.clone(), shorter);
        });
        assert_contains(&message, &["model.safetensors", UP.split_once("mlp").unwrap().0, "shape"]);
        let message = load_error(name, |tensors| {
            let zeros = Tensor::zeros(&tensors[&part].shape, Dtype::U32);
            tensors.insert(part.clone(), zeros);
        });
        assert_contains(&message, &[&part, "type U32"]);
        let message = load_error(name, |tensors| {
            let empty = Tensor::from_raw(Vec::new(), &[0, 0], tensors[&part].dtype);
            tensors.insert(part.clone(), empty);
        });
        assert_contains(&message, &[&part]);
    }
}

#[test]
fn errors_name_invalid_scales_groups_and_shapes() {
    for (name, part) in [("gptq", "scales"), ("awq", "scales"), ("ct-group", "weight_scale")] {
        let part = format!("{QUERY}.{part}");
        let message = load_error(name, |tensors| {
            let tensor = &tensors[&part];
            let mut values = tensor.values();
            values[1] = f32::NAN;
            let with_nan = Tensor::new(&values, &tensor.shape, tensor.dtype);
            tensors.insert(part.clone(), with_nan);
        });
        assert_contains(&message, &[&part, "finite", "NaN"]);
    }
    let set = |part: String, to: i32| {
        move |tensors: &mut Tensors| {
            let tensor = tensors.get_mut(&part).unwrap();
            let mut bytes = tensor.bytes().to_vec();
            bytes[..4].copy_from_slice(&to.to_le_bytes());
            *tensor = Tensor::from_raw(bytes, &tensor.shape, tensor.dtype);
        }
    };
    for group in [2, -1, i32::MIN] {
        let message = load_error("gptq", set(format!("{QUERY}.g_idx"), group));
        assert_contains(&message, &["q_proj.g_idx", "2 groups", &group.to_string()]);
    }
    assert_contains(
        &load_error("ct-group", set(format!("{QUERY}.weight_g_idx"), 3)),
        &["g_idx", "3 groups"],
    );
    for rows in [-1, 37, 0] {
        let message = load_error("ct-group", set(format!("{QUERY}.weight_shape"), rows));
        assert_contains(&message, &["model.safetensors", QUERY]);
    }
    // A placeholder for groups is ignored.
    let (tokens, _) = expected("ct-group");
    let unset = changed("ct-group", set(format!("{QUERY}.weight_g_idx"), -1));
    let none =
        changed("ct-group", |tensors| drop(tensors.remove(&format!("{QUERY}.weight_g_idx"))));
    let [unset, none] = [unset, none].map(|d| scored(d.path(), Precision::F32, &tokens));
    assert_eq!(unset, none);
}

#[test]
fn errors_name_unexpected_tensors() {
    for (name, packed) in [("gptq", "qweight"), ("awq", "qweight"), ("ct-group", "weight_packed")] {
        let both = load_error(name, |tensors| {
            let weight = Tensor::new(&[0.0; 32], &[1, 32], Dtype::F16);
            tensors.insert(format!("{UP}.weight"), weight);
        });
        assert_contains(&both, &[UP, packed, "both"]);
        let further = load_error(name, |tensors| {
            let further = Tensor::new(&[0.0; 32], &[1, 32], Dtype::F16);
            tensors.insert(format!("{UP}.further"), further);
        });
        assert_contains(&further, &[UP, "further", "no such tensor"]);
    }
    let bias = load_error("gptq", |tensors| {
        let mut values = vec![0.0; 64];
        values[63] = 1.0;
        tensors.insert(format!("{UP}.bias"), Tensor::new(&values, &[64], Dtype::F16));
    });
    assert_contains(&bias, &["up_proj.bias", "no such tensor"]);
}

#[test]
fn errors_name_invalid_parts_of_codebook_matrices() {
    let without = |name: &str, part: &str| {
        let part = format!("{UP}.{part}");
        let message = load_error(name, |tensors| drop(tensors.remove(&part).unwrap()));
        assert_contains(&message, &["model.safetensors", &part]);
    };
    let narrower = |name: &str, part: &str, expected: &str| {
        let part = format!("{UP}.{part}");
        let message = load_error(name, |tensors| {
            let shorter = tensors[&part].without_last_row();
            tensors.insert(part.clone(), shorter);
        });
        assert_contains(
            &message,
            &["model.safetensors", UP.split_once("mlp").unwrap().0, expected],
        );
    };
    let retyped = |name: &str, part: &str| {
        let part = format!("{UP}.{part}");
        let message = load_error(name, |tensors| {
            let zeros = Tensor::zeros(&tensors[&part].shape, Dtype::U32);
            tensors.insert(part.clone(), zeros);
        });
        assert_contains(&message, &[&part, "type U32"]);
    };
    for part in ["weight_scale", "weight_global_scale"] {
        without("nvfp4", part);
        retyped("nvfp4", part);
    }
    for (name, parts) in [
        ("nvfp4", &["weight_packed", "weight_scale"][..]),
        ("nvfp4-modelopt", &["weight", "weight_scale"]),
        ("mxfp4", &["weight_packed", "weight_scale"]),
        ("mxfp8", &["weight", "weight_scale"]),
        ("bnb-int8", &["weight", "SCB"]),
        ("bnb-nf4", &["weight.absmax", "weight.nested_absmax"]),
        ("bnb-nf4", &["weight.quant_map", "weight.nested_quant_map"]),
        ("bnb-fp4", &["weight.absmax", "weight.quant_map"]),
    ] {
        parts.iter().for_each(|part| narrower(name, part, "shape"));
    }
    narrower("bnb-nf4", "weight", "bytes");
    for part in ["absmax", "quant_map", "nested_absmax", "nested_quant_map"] {
        without("bnb-nf4", &format!("weight.{part}"));
        retyped("bnb-nf4", &format!("weight.{part}"));
    }
    // The state of a bitsandbytes matrix is JSON.
    let state = format!("{UP}.weight.quant_state.bitsandbytes__nf4");
    for (json, expected) in [
        ("", "the state of a bitsandbytes matrix"),
        ("{}", "quant_type"),
        (r#"{"quant_type": "nf4", "blocksize": 0, "shape": [96, 48]}"#, "blocks of 0"),
        (r#"{"quant_type": "nf4", "blocksize": 64, "shape": [96, 49]}"#, "[96, 49]"),
        (r#"{"quant_type": "nf4", "blocksize": 64, "shape": [4294967296, 4294967296]}"#, "bytes"),
        (r#"{"quant_type": "nf4", "blocksize": 32, "shape": [96, 48]}"#, "shape [144]"),
        (
            r#"{"quant_type": "nf4", "blocksize": 64, "shape": [96, 48], "nested_blocksize": 64}"#,
            "nested_offset",
        ),
    ] {
        let message = load_error("bnb-nf4", |tensors| {
            let json = json.as_bytes().to_vec();
            let length = json.len();
            tensors.insert(state.clone(), Tensor::from_raw(json, &[length], Dtype::U8));
        });
        assert_contains(&message, &["model.safetensors", expected]);
    }
    let turned = load_error("bnb-int8", |tensors| {
        let format = Tensor::from_raw(vec![1], &[], Dtype::U8);
        tensors.insert(format!("{UP}.weight_format"), format);
    });
    assert_contains(&turned, &["up_proj.weight_format", "in rows"]);
    let nan = load_error("bnb-fp4", |tensors| {
        let part = format!("{UP}.weight.absmax");
        let mut values = tensors[&part].values();
        values[0] = f32::NAN;
        let with_nan = Tensor::new(&values, &tensors[&part].shape, Dtype::F32);
        tensors.insert(part, with_nan);
    });
    assert_contains(&nan, &["up_proj.weight", "finite", "NaN"]);
}

#[test]
fn errors_name_invalid_configurations() {
    let message_of = |name: &str, change: &dyn Fn(&mut Value)| {
        let directory = changed(name, |_| {});
        change_config(directory.path(), |config| change(&mut config["quantization_config"]));
        load(directory.path(), LoadOptions::default()).unwrap_err().to_string()
    };
    let with = |name: &str, field: &str, value: Value| {
        message_of(name, &|quantization| quantization[field] = value.clone())
    };
    for (name, field, value, expected) in [
        ("gptq", "bits", json!(3), "quantised with gptq (3 bits)"),
        ("gptq", "bits", json!(2), "quantised with gptq (2 bits)"),
        ("gptq", "bits", json!("four"), "bits: expected 4 or 8"),
        ("gptq", "bits", json!(8), "shape"),
        ("gptq", "group_size", json!(32), "scales of shape [1, 32]"),
        ("gptq", "group_size", json!(-2), "group_size: expected"),
        ("gptq", "group_size", json!(null), "group_size: expected"),
        ("gptq", "checkpoint_format", json!("marlin"), "quantised with gptq (marlin)"),
        ("gptq", "quant_method", json!("hqq"), "quantised with hqq"),
        ("gptq", "quant_method", json!("auto-round"), "quantised with auto-round"),
        ("awq", "version", json!("gemv"), "quantised with awq (gemv)"),
        ("awq", "bits", json!(8), "quantised with awq (8 bits)"),
        ("awq", "zero_point", json!(false), "quantised with awq (without zero points)"),
        ("awq", "group_size", json!(32), "scales of shape [1, 32]"),
        ("ct-experts", "format", json!("nvfp4-pack-quantized"), "nvfp4-pack-quantized"),
    ] {
        let group = |quantization: &mut Value| {
            if quantization["config_groups"].is_object() {
                quantization["config_groups"]["group_0"]["format"] = Value::Null;
            }
            quantization[field] = value.clone();
        };
        let message = message_of(name, &group);
        assert!(
            message.contains(expected),
            "{field} = {value}: expected {expected:?} in: {message}"
        );
    }
    assert_contains(&with("gptq", "bits", json!(2)), &["config.json", "GGUF"]);
    let group = |field: &str, value: Value| {
        message_of("ct-experts", &|quantization| {
            quantization["config_groups"]["group_0"]["weights"][field] = value.clone();
        })
    };
    assert_contains(&group("num_bits", json!(3)), &["compressed-tensors (pack-quantized)"]);
    assert_contains(&group("group_size", json!(0)), &["group_size: expected"]);
    assert_contains(&group("group_size", json!(16)), &["scales of shape [32, 2]"]);
    assert_contains(&group("symmetric", json!(false)), &["its zero points in a tensor"]);
    assert_contains(&group("strategy", json!("block")), &["compressed-tensors (pack-quantized)"]);
    // Without a quantization_config the packed tensors are not weights.
    let message = message_of("gptq", &|quantization| *quantization = Value::Null);
    assert_contains(&message, &["weight", "no tensor of that name"]);
}
