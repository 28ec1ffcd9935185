//! Directories whose weights are whole numbers, as GPTQ, AWQ and compressed-tensors have them, or
//! indices into a table (NVFP4, MXFP4, bitsandbytes): each gives the log-probabilities that
//! transformers gives for what other programs unpack, and what is wrong with one is named.

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

/// The text of a fixture, and the log-probabilities after each of its tokens.
fn expected(name: &str) -> (Vec<u32>, Vec<Vec<f32>>) {
    let found = read_tensors(&fixture(name).join("expected.safetensors"));
    let tokens = found["tokens"].integers().into_iter().map(|token| token as u32).collect();
    // Rows beyond the tokenizer's are padding.
    let logits = found["logits"].rows();
    (tokens, logits.iter().map(|row| log_probabilities(&row[..TOKENS])).collect())
}

fn scored(directory: &Path, precision: Precision, text: &[u32]) -> Vec<Vec<f32>> {
    let mut model = open(directory, precision);
    (1..=text.len()).map(|length| log_probabilities(&alone(&mut model, &text[..length]))).collect()
}

fn far(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    a.iter().zip(b).map(|(a, b)| distance(a, b)).fold(0.0, f32::max)
}

#[test]
fn what_others_unpack_is_what_is_computed_with() {
    for name in MODELS {
        let (text, theirs) = expected(name);
        for (precision, most) in [
            (Precision::F32, TOLERANCE),
            // Its blocks are multiplied as they are, by inputs in 8 bits.
            (Precision::File, if name == "mxfp4" { 0.5 } else { TOLERANCE }),
            (Precision::Bf16, 0.1),
            (Precision::Q8_0, 0.5),
        ] {
            let far = far(&scored(&fixture(name), precision, &text), &theirs);
            assert!(far <= most, "{name} in {precision}: {far}");
        }
    }
}

/// A copy of a fixture, changed.
fn changed(name: &str, change: impl FnOnce(&mut Tensors)) -> tempfile::TempDir {
    changed_copy(&fixture(name), change)
}

/// Ends of the names of scales.
const SCALES: [&str; 5] = ["scale", "scales", "_scale_2", "absmax", "SCB"];

/// The tensor with one bit changed, or two groups in place of each other.
fn disturbed(name: &str, tensor: &Tensor) -> Tensor {
    let mut bytes = tensor.bytes().to_vec();
    if name.ends_with("g_idx") {
        let words: Vec<[u8; 4]> = bytes.as_chunks::<4>().0.to_vec();
        let other = words.iter().position(|word| *word != words[0]).unwrap();
        bytes[..4].copy_from_slice(&words[other]);
        bytes[4 * other..4 * other + 4].copy_from_slice(&words[0]);
    } else if SCALES.iter().any(|end| name.ends_with(end)) {
        // The first one's highest byte.
        let width = bytes.len() / tensor.shape.iter().product::<usize>();
        bytes[width - 1] ^= 1;
    } else if name.ends_with("quant_map") {
        // Some of them stand for nothing here.
        bytes.iter_mut().skip(3).step_by(4).for_each(|byte| *byte ^= 1);
    } else {
        bytes[0] ^= 1;
    }
    Tensor::raw(bytes, &tensor.shape, tensor.dtype)
}

#[test]
fn every_part_counts() {
    let ends = ["weight_packed", "qweight", "qzeros", "g_idx", "_zero_point", "quant_map"];
    for name in MODELS {
        let (text, _) = expected(name);
        let before = scored(&fixture(name), Precision::F32, &text);
        let tensors = read_tensors(&fixture(name).join("model.safetensors"));
        let (mut counted, mut idle) = (0, 0);
        for (part, tensor) in &tensors {
            let is_number = tensor.dtype == Dtype::I8 || tensor.dtype == Dtype::F8_E4M3;
            let is_packed = ends.iter().chain(&SCALES).any(|end| part.ends_with(end)) || is_number;
            // All columns are of one group.
            let is_one = part.ends_with("g_idx") && tensor.bytes().iter().all(|byte| *byte == 0);
            if !is_packed || is_one {
                continue;
            }
            let after = changed(name, |tensors| {
                tensors.insert(part.clone(), disturbed(part, tensor));
            });
            let is_same = scored(after.path(), Precision::F32, &text) == before;
            if is_same && part.contains("experts.") {
                // No token of the text chose it.
                idle += 1;
                continue;
            }
            counted += 1;
            // How inputs were rounded elsewhere.
            assert_eq!(is_same, part.contains("input_"), "{name}: {part}");
        }
        assert!(counted >= 12 && idle <= counted / 2, "{name}: {counted}, {idle}");
    }
}

#[test]
fn what_it_is_can_be_said() {
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
    // The matrices' own numbers, not words of several.
    let numbers = 62 * 32 * 2 + 32 * 32 * 2 + 16 * 32 * 2 + 3 * 32 * 64 + 3 * 32;
    assert_eq!(described("awq").parameters, numbers + 2 * 8);
    assert_eq!(described("nvfp4").parameters, described("awq").parameters);
}

#[test]
fn names_without_their_beginning_and_shards_are_read_too() {
    for name in ["gptq", "awq", "ct-group", "ct-bytes", "nvfp4", "bnb-nf4", "bnb-int8"] {
        let (text, _) = expected(name);
        let before = scored(&fixture(name), Precision::F32, &text);
        let bare = changed(name, |tensors| {
            let renamed = tensors.drain().map(|(name, tensor)| {
                (name.strip_prefix("model.").map_or(name.clone(), str::to_owned), tensor)
            });
            *tensors = renamed.collect::<Vec<_>>().into_iter().collect();
        });
        assert_eq!(scored(bare.path(), Precision::F32, &text), before, "{name}");

        let sharded = changed(name, |_| {});
        let whole = sharded.path().join("model.safetensors");
        let is_apart = |name: &str| name.contains("scale") || name.contains("zero");
        let (scales, rest): (Tensors, Tensors) =
            read_tensors(&whole).into_iter().partition(|(name, _)| is_apart(name));
        fs::remove_file(&whole).unwrap();
        let mut map = json!({});
        for (file, tensors) in [("a.safetensors", scales), ("b.safetensors", rest)] {
            tensors.keys().for_each(|name| map[name] = json!(file));
            write_tensors(&tensors, &sharded.path().join(file));
        }
        write_json(sharded.path(), "model.safetensors.index.json", &json!({ "weight_map": map }));
        assert_eq!(scored(sharded.path(), Precision::F32, &text), before, "{name}");
    }
}

/// What is said of a changed fixture.
fn refused(name: &str, change: impl FnOnce(&mut Tensors)) -> String {
    let directory = changed(name, change);
    load(directory.path(), LoadOptions::default()).expect_err("something is wrong").to_string()
}

fn says(message: &str, expected: &[&str]) {
    for part in expected {
        assert!(message.contains(part), "expected {part:?} in: {message}");
    }
}

const UP: &str = "model.layers.0.mlp.up_proj";
const DOWN: &str = "model.layers.0.mlp.down_proj";
const QUERY: &str = "model.layers.0.self_attn.q_proj";

#[test]
fn parts_that_are_missing_are_named() {
    for (name, part, said) in [
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
        let message = refused(name, |tensors| drop(tensors.remove(&part).unwrap()));
        says(&message, &["model.safetensors", &part, said]);
    }
}

#[test]
fn parts_of_another_shape_or_type_are_named() {
    let parts = ["qweight", "qzeros", "scales", "g_idx"];
    let of_old = |name, base: &str| parts.map(|part| (name, format!("{base}.{part}")));
    let parts = ["packed", "scale", "zero_point", "g_idx", "shape"];
    let compressed = parts.map(|part| ("ct-group", format!("{QUERY}.weight_{part}")));
    let bytes = ["weight_scale", "weight_zero_point"];
    let bytes = bytes.map(|part| ("ct-bytes", format!("{UP}.{part}")));
    let all = of_old("gptq", UP).into_iter().chain(of_old("awq", UP).into_iter().take(3));
    for (name, part) in all.chain(compressed).chain(bytes) {
        let message = refused(name, |tensors| {
            let shorter = tensors[&part].shorter();
            tensors.insert(part.clone(), shorter);
        });
        says(&message, &["model.safetensors", UP.split_once("mlp").unwrap().0, "shape"]);
        let message = refused(name, |tensors| {
            let zeros = Tensor::zeros(&tensors[&part].shape, Dtype::U32);
            tensors.insert(part.clone(), zeros);
        });
        says(&message, &[&part, "type U32"]);
        let message = refused(name, |tensors| {
            let empty = Tensor::raw(Vec::new(), &[0, 0], tensors[&part].dtype);
            tensors.insert(part.clone(), empty);
        });
        says(&message, &[&part]);
    }
}

#[test]
fn numbers_that_mean_nothing_are_named() {
    for (name, part) in [("gptq", "scales"), ("awq", "scales"), ("ct-group", "weight_scale")] {
        let part = format!("{QUERY}.{part}");
        let message = refused(name, |tensors| {
            let tensor = &tensors[&part];
            let mut values = tensor.values();
            values[1] = f32::NAN;
            let wrong = Tensor::new(&values, &tensor.shape, tensor.dtype);
            tensors.insert(part.clone(), wrong);
        });
        says(&message, &[&part, "finite", "NaN"]);
    }
    let set = |part: String, to: i32| {
        move |tensors: &mut Tensors| {
            let tensor = tensors.get_mut(&part).unwrap();
            let mut bytes = tensor.bytes().to_vec();
            bytes[..4].copy_from_slice(&to.to_le_bytes());
            *tensor = Tensor::raw(bytes, &tensor.shape, tensor.dtype);
        }
    };
    for group in [2, -1, i32::MIN] {
        let message = refused("gptq", set(format!("{QUERY}.g_idx"), group));
        says(&message, &["q_proj.g_idx", "2 groups", &group.to_string()]);
    }
    says(&refused("ct-group", set(format!("{QUERY}.weight_g_idx"), 3)), &["g_idx", "3 groups"]);
    for rows in [-1, 37, 0] {
        let message = refused("ct-group", set(format!("{QUERY}.weight_shape"), rows));
        says(&message, &["model.safetensors", QUERY]);
    }
    // Of groups that only have room, none counts.
    let (text, _) = expected("ct-group");
    let unset = changed("ct-group", set(format!("{QUERY}.weight_g_idx"), -1));
    let none =
        changed("ct-group", |tensors| drop(tensors.remove(&format!("{QUERY}.weight_g_idx"))));
    let [unset, none] = [unset, none].map(|d| scored(d.path(), Precision::F32, &text));
    assert_eq!(unset, none);
}

#[test]
fn what_does_not_belong_is_named() {
    for (name, own) in [("gptq", "qweight"), ("awq", "qweight"), ("ct-group", "weight_packed")] {
        let both = refused(name, |tensors| {
            let weight = Tensor::new(&[0.0; 32], &[1, 32], Dtype::F16);
            tensors.insert(format!("{UP}.weight"), weight);
        });
        says(&both, &[UP, own, "both"]);
        let further = refused(name, |tensors| {
            let further = Tensor::new(&[0.0; 32], &[1, 32], Dtype::F16);
            tensors.insert(format!("{UP}.further"), further);
        });
        says(&further, &[UP, "further", "no such tensor"]);
    }
    let bias = refused("gptq", |tensors| {
        let mut values = vec![0.0; 64];
        values[63] = 1.0;
        tensors.insert(format!("{UP}.bias"), Tensor::new(&values, &[64], Dtype::F16));
    });
    says(&bias, &["up_proj.bias", "no such tensor"]);
}

#[test]
fn parts_of_indices_into_a_table_are_checked() {
    let without = |name: &str, part: &str| {
        let part = format!("{UP}.{part}");
        let message = refused(name, |tensors| drop(tensors.remove(&part).unwrap()));
        says(&message, &["model.safetensors", &part]);
    };
    let narrower = |name: &str, part: &str, said: &str| {
        let part = format!("{UP}.{part}");
        let message = refused(name, |tensors| {
            let shorter = tensors[&part].shorter();
            tensors.insert(part.clone(), shorter);
        });
        says(&message, &["model.safetensors", UP.split_once("mlp").unwrap().0, said]);
    };
    let retyped = |name: &str, part: &str| {
        let part = format!("{UP}.{part}");
        let message = refused(name, |tensors| {
            let zeros = Tensor::zeros(&tensors[&part].shape, Dtype::U32);
            tensors.insert(part.clone(), zeros);
        });
        says(&message, &[&part, "type U32"]);
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
    // What bitsandbytes says of a matrix is text.
    let state = format!("{UP}.weight.quant_state.bitsandbytes__nf4");
    for (text, said) in [
        ("", "what bitsandbytes says"),
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
        let message = refused("bnb-nf4", |tensors| {
            let text = text.as_bytes().to_vec();
            let length = text.len();
            tensors.insert(state.clone(), Tensor::raw(text, &[length], Dtype::U8));
        });
        says(&message, &["model.safetensors", said]);
    }
    let turned = refused("bnb-int8", |tensors| {
        let format = Tensor::raw(vec![1], &[], Dtype::U8);
        tensors.insert(format!("{UP}.weight_format"), format);
    });
    says(&turned, &["up_proj.weight_format", "in rows"]);
    let nan = refused("bnb-fp4", |tensors| {
        let part = format!("{UP}.weight.absmax");
        let mut values = tensors[&part].values();
        values[0] = f32::NAN;
        let wrong = Tensor::new(&values, &tensors[&part].shape, Dtype::F32);
        tensors.insert(part, wrong);
    });
    says(&nan, &["up_proj.weight", "finite", "NaN"]);
}

#[test]
fn wrong_configurations_are_named() {
    let message_of = |name: &str, change: &dyn Fn(&mut Value)| {
        let directory = changed(name, |_| {});
        change_config(directory.path(), |config| change(&mut config["quantization_config"]));
        load(directory.path(), LoadOptions::default()).unwrap_err().to_string()
    };
    let with = |name: &str, field: &str, value: Value| {
        message_of(name, &|said| said[field] = value.clone())
    };
    for (name, field, value, said) in [
        ("gptq", "bits", json!(3), "quantised by gptq (3 bits)"),
        ("gptq", "bits", json!(2), "quantised by gptq (2 bits)"),
        ("gptq", "bits", json!("four"), "bits: expected 4 or 8"),
        ("gptq", "bits", json!(8), "shape"),
        ("gptq", "group_size", json!(32), "scales of shape [1, 32]"),
        ("gptq", "group_size", json!(-2), "group_size: expected"),
        ("gptq", "group_size", json!(null), "group_size: expected"),
        ("gptq", "checkpoint_format", json!("marlin"), "quantised by gptq (marlin)"),
        ("gptq", "quant_method", json!("hqq"), "quantised by hqq"),
        ("gptq", "quant_method", json!("auto-round"), "quantised by auto-round"),
        ("awq", "version", json!("gemv"), "quantised by awq (gemv)"),
        ("awq", "bits", json!(8), "quantised by awq (8 bits)"),
        ("awq", "zero_point", json!(false), "quantised by awq (without zero points)"),
        ("awq", "group_size", json!(32), "scales of shape [1, 32]"),
        ("ct-experts", "format", json!("nvfp4-pack-quantized"), "nvfp4-pack-quantized"),
    ] {
        let group = |said: &mut Value| {
            if said["config_groups"].is_object() {
                said["config_groups"]["group_0"]["format"] = Value::Null;
            }
            said[field] = value.clone();
        };
        let message = message_of(name, &group);
        assert!(message.contains(said), "{field} = {value}: expected {said:?} in: {message}");
    }
    says(&with("gptq", "bits", json!(2)), &["config.json", "GGUF"]);
    let group = |field: &str, value: Value| {
        message_of("ct-experts", &|said| {
            said["config_groups"]["group_0"]["weights"][field] = value.clone();
        })
    };
    says(&group("num_bits", json!(3)), &["compressed-tensors (pack-quantized)"]);
    says(&group("group_size", json!(0)), &["group_size: expected"]);
    says(&group("group_size", json!(16)), &["scales of shape [32, 2]"]);
    says(&group("symmetric", json!(false)), &["its zero points in a tensor"]);
    says(&group("strategy", json!("block")), &["compressed-tensors (pack-quantized)"]);
    // Without any word of how, words are no weights.
    let message = message_of("gptq", &|said| *said = Value::Null);
    says(&message, &["weight", "no tensor of that name"]);
}
