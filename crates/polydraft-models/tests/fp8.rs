//! FP8 directories: each gives bit for bit the output of a directory with its values in f32, and
//! errors name invalid parts.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::*;
use polydraft_models::{Description, LoadOptions, Precision, load};
use serde_json::{Value, json};

const MODELS: [&str; 4] = ["blocks", "edges", "scales", "stacked"];
const TOKENS: [u32; 7] = [2, 9, 4, 17, 33, 8, 2];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fp8").join(name)
}

fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn is_fp8(tensor: &Tensor) -> bool {
    matches!(tensor.dtype, Dtype::F8_E4M3 | Dtype::F8_E5M2)
}

/// Value of a byte by the definitions of the formats.
fn number(byte: u8, dtype: Dtype) -> f32 {
    let power = |exponent: i32| 2f32.powi(exponent);
    let sign = if byte < 128 { 1.0 } else { -1.0 };
    match dtype {
        Dtype::F8_E8M0 => power(i32::from(byte) - 127),
        Dtype::F8_E4M3 if byte & 0x7f == 0x7f => f32::NAN,
        Dtype::F8_E4M3 | Dtype::F8_E5M2 => {
            let (bits, bias) = if dtype == Dtype::F8_E4M3 { (3, 7) } else { (2, 15) };
            let exponent = i32::from((byte & 127) >> bits);
            let part = f32::from(byte & ((1 << bits) - 1)) / power(bits);
            sign * match exponent {
                0 => part * power(1 - bias),
                _ => (1.0 + part) * power(exponent - bias),
            }
        }
        other => panic!("{other:?}"),
    }
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    match tensor.dtype {
        Dtype::F32 | Dtype::BF16 => tensor.values(),
        dtype => tensor.bytes().iter().map(|byte| number(*byte, dtype)).collect(),
    }
}

/// Values of a matrix, or of several stacked ones, times their scales.
fn dequantised(tensor: &Tensor, scales: &Tensor, block: [usize; 2]) -> Vec<f32> {
    let [count @ .., rows, columns] = &tensor.shape[..] else { panic!("{:?}", tensor.shape) };
    let (count, rows, columns): (usize, usize, usize) = (count.iter().product(), *rows, *columns);
    let (values, scales) = (numbers(tensor), numbers(scales));
    let grid = [rows.div_ceil(block[0]), columns.div_ceil(block[1])];
    let mut wide = Vec::new();
    for (at, value) in values.iter().enumerate() {
        let (matrix, row, column) = (at / (rows * columns), at / columns % rows, at % columns);
        let scale = match scales.len() {
            1 => 0,
            n if n == count => matrix,
            n if n == count * rows => matrix * rows + row,
            _ => (matrix * grid[0] + row / block[0]) * grid[1] + column / block[1],
        };
        wide.push(value * scales[scale]);
    }
    wide
}

/// Copy of the directory with all values in f32, and the checksums of those that were not.
fn widened(folder: &Path) -> (tempfile::TempDir, Value) {
    let directory = tempfile::tempdir().unwrap();
    let mut config = json_of(&folder.join("config.json"));
    let quantization = config.as_object_mut().unwrap().remove("quantization_config").unwrap();
    let block = match &quantization["weight_block_size"] {
        Value::Null => &quantization["config_groups"]["group_1"]["weights"]["block_structure"],
        block => block,
    };
    let block: [usize; 2] = serde_json::from_value(block.clone()).unwrap();
    write_json(directory.path(), "config.json", &config);
    fs::copy(folder.join("tokenizer.json"), directory.path().join("tokenizer.json")).unwrap();
    let tensors = read_tensors(&folder.join("model.safetensors"));
    let (mut all, mut sums) = (Tensors::new(), json!({}));
    for (name, tensor) in tensors.iter().filter(|(name, _)| !name.contains("_scale")) {
        if !is_fp8(tensor) {
            all.insert(name.clone(), tensor.clone());
            continue;
        }
        let ends = ["_scale_inv", "_scale"].map(|end| format!("{name}{end}"));
        let scales = ends.iter().find_map(|name| tensors.get(name)).unwrap();
        let wide = dequantised(tensor, scales, block);
        let bytes: Vec<u8> = wide.iter().flat_map(|x| x.to_le_bytes()).collect();
        sums[name] = json!(crc32fast::hash(&bytes));
        all.insert(name.clone(), Tensor::new(&wide, &tensor.shape, Dtype::F32));
    }
    write_tensors(&all, &directory.path().join("model.safetensors"));
    (directory, sums)
}

fn logits(directory: &Path, precision: Precision) -> Vec<u32> {
    let logits = alone(&mut open(directory, precision), &TOKENS);
    logits.into_iter().map(f32::to_bits).collect()
}

#[test]
fn same_logits_as_with_the_same_values_in_f32() {
    for name in MODELS {
        let folder = fixture(name);
        let (wide, sums) = widened(&folder);
        assert_eq!(sums, json_of(&folder.join("expected.json")), "{name}: ml_dtypes and numpy");
        for precision in [Precision::F32, Precision::Bf16, Precision::Q8_0, Precision::File] {
            let [ours, theirs] = [folder.as_path(), wide.path()].map(|d| logits(d, precision));
            assert_eq!(ours, theirs, "{name} in {precision}");
        }
    }
}

/// Copy of a fixture with changed tensors.
fn changed(name: &str, change: impl FnOnce(&mut Tensors)) -> tempfile::TempDir {
    changed_copy(&fixture(name), change)
}

#[test]
fn every_weight_scale_changes_the_output() {
    for name in MODELS {
        let before = logits(&fixture(name), Precision::F32);
        let tensors = read_tensors(&fixture(name).join("model.safetensors"));
        let mut of_weights = 0;
        for (scale, tensor) in tensors.iter().filter(|(name, _)| name.contains("_scale")) {
            let last = tensor.shape.iter().product::<usize>() - 1;
            // Experts and embedding rows that no token uses.
            if ["experts.", "embed_tokens"].iter().any(|part| scale.contains(part)) && last > 0 {
                continue;
            }
            let after = changed(name, |tensors| {
                let tensor = tensors.get_mut(scale).unwrap();
                let mut bytes = tensor.bytes().to_vec();
                let width = bytes.len() / (last + 1);
                // The lowest exponent bit of all types that occur here.
                match width {
                    1 => bytes[last] += 1,
                    _ => *bytes.last_mut().unwrap() ^= 1,
                }
                *tensor = Tensor::from_raw(bytes, &tensor.shape, tensor.dtype);
            });
            let is_of_weights = scale.ends_with("_scale_inv") || scale.contains("weight_scale");
            of_weights += usize::from(is_of_weights);
            let is_same = logits(after.path(), Precision::F32) == before;
            assert_eq!(is_same, !is_of_weights, "{name}: {scale}");
        }
        assert!(of_weights >= 3, "{name}");
    }
}

#[test]
fn reads_shards_and_names_without_prefix() {
    let bare = changed("scales", |tensors| {
        let renamed = tensors.drain().map(|(name, tensor)| {
            (name.strip_prefix("model.").map_or(name.clone(), str::to_owned), tensor)
        });
        *tensors = renamed.collect::<Vec<_>>().into_iter().collect();
    });
    let expected = logits(&fixture("scales"), Precision::F32);
    assert_eq!(logits(bare.path(), Precision::F32), expected);

    // Scales in another file than their matrices.
    let sharded = changed("scales", |_| {});
    let single_file = sharded.path().join("model.safetensors");
    let (scales, rest): (Tensors, Tensors) =
        read_tensors(&single_file).into_iter().partition(|(name, _)| name.contains("_scale"));
    fs::remove_file(&single_file).unwrap();
    let mut map = json!({});
    for (file, tensors) in [("a.safetensors", scales), ("b.safetensors", rest)] {
        tensors.keys().for_each(|name| map[name] = json!(file));
        write_tensors(&tensors, &sharded.path().join(file));
    }
    write_json(sharded.path(), "model.safetensors.index.json", &json!({ "weight_map": map }));
    assert_eq!(logits(sharded.path(), Precision::F32), expected);
}

#[test]
fn description_names_types_and_counts_parameters() {
    let description = |name| Description::read(&fixture(name)).unwrap();
    assert_eq!(description("blocks").stored, "FP8, BF16");
    assert_eq!(description("scales").stored, "FP8, FP8 (E5M2)");
    for name in MODELS {
        let (wide, _) = widened(&fixture(name));
        let [described, wide] = [description(name), Description::read(wide.path()).unwrap()];
        assert_eq!(described.parameters, wide.parameters, "{name}: scales are no parameters");
        assert_eq!(described.active_parameters, wide.active_parameters, "{name}");
        for precision in [Precision::F32, Precision::Bf16, Precision::Q8_0, Precision::File] {
            assert_eq!(described.weight_bytes(precision), wide.weight_bytes(precision), "{name}");
        }
    }
}

const UP: &str = "model.layers.0.mlp.up_proj.weight";

/// Error of loading a changed fixture.
fn load_error(name: &str, change: impl FnOnce(&mut Tensors)) -> String {
    let directory = changed(name, change);
    load(directory.path(), LoadOptions::default()).expect_err("the fixture is invalid").to_string()
}

fn scaled(scales: &[f32], shape: &[usize]) -> impl FnOnce(&mut Tensors) {
    let tensor = Tensor::new(scales, shape, Dtype::F32);
    move |tensors| drop(tensors.insert(format!("{UP}_scale_inv"), tensor))
}

fn assert_contains(message: &str, expected: &[&str]) {
    for part in ["model.safetensors", UP].iter().chain(expected) {
        assert!(message.contains(part), "expected {part:?} in: {message}");
    }
}

#[test]
fn errors_name_invalid_scales() {
    let scales = format!("{UP}_scale_inv");
    let none = load_error("edges", |tensors| drop(tensors.remove(&scales)));
    assert_contains(&none, &[&scales, "no such tensor"]);
    assert_contains(
        &load_error("edges", scaled(&[1.0; 3], &[3, 1])),
        &["[144, 1]", "[2, 1]", "[3, 1]", "[128, 128]"],
    );
    assert_contains(&load_error("edges", scaled(&[1.0; 2], &[1, 2])), &["shape [1, 2]"]);
    assert_contains(&load_error("edges", scaled(&[], &[0, 1])), &["shape [0, 1]"]);
    assert_contains(
        &load_error("edges", scaled(&[1.0, f32::NAN], &[2, 1])),
        &[&scales, "finite", "NaN"],
    );
    assert_contains(
        &load_error("edges", scaled(&[1.0, f32::INFINITY], &[2, 1])),
        &[&scales, "finite", "inf"],
    );
    // A product with a scale that is not finite.
    assert_contains(
        &load_error("edges", scaled(&[1.0, 3e38], &[2, 1])),
        &["finite", "inf", "row 1"],
    );
    let integers = load_error("edges", |tensors| {
        tensors.insert(scales.clone(), Tensor::from_bytes(vec![1, 1], &[2, 1]));
    });
    assert_contains(&integers, &[&scales, "type U8"]);
    let exponents = load_error("edges", |tensors| {
        let tensor = Tensor::from_raw(vec![127, 255], &[2, 1], Dtype::F8_E8M0);
        tensors.insert(scales.clone(), tensor);
    });
    assert_contains(&exponents, &[&scales, "NaN"]);
    // Scales without a matrix, and two tensors of scales for one.
    let orphan = load_error("edges", |tensors| {
        let name = "model.layers.0.mlp.other.weight_scale_inv".to_owned();
        tensors.insert(name, Tensor::new(&[1.0], &[1], Dtype::F32));
    });
    assert!(orphan.contains("other.weight_scale_inv"), "{orphan}");
    let two = load_error("edges", |tensors| {
        tensors.insert(format!("{UP}_scale"), Tensor::new(&[1.0], &[1], Dtype::F32));
    });
    assert_contains(&two, &["no such tensor"]);
}

#[test]
fn errors_name_values_that_are_not_finite_and_unsupported_types() {
    for byte in [0x7f, 0xff] {
        let message = load_error("edges", |tensors| {
            let tensor = tensors.get_mut(UP).unwrap();
            let mut bytes = tensor.bytes().to_vec();
            bytes[130 * 32 + 5] = byte;
            *tensor = Tensor::from_raw(bytes, &tensor.shape, tensor.dtype);
        });
        assert_contains(&message, &["finite", "NaN in row 130, column 5"]);
    }
    let packed = load_error("edges", |tensors| {
        let tensor = &tensors[UP];
        let packed = Tensor::from_raw(tensor.bytes().to_vec(), &tensor.shape, Dtype::I8);
        tensors.insert(UP.to_owned(), packed);
    });
    assert_contains(&packed, &["type I8", "F8_E4M3 with scales"]);
}

#[test]
fn errors_name_invalid_configurations() {
    let directory = changed("edges", |_| {});
    let with = |quantization: Value| {
        change_config(directory.path(), |config| config["quantization_config"] = quantization);
        load(directory.path(), LoadOptions::default()).map_err(|error| error.to_string())
    };
    let block = |size: Value| json!({"quant_method": "fp8", "weight_block_size": size});
    for size in [json!([0, 128]), json!("all"), json!([128]), json!([128, -1])] {
        let message = with(block(size)).unwrap_err();
        for part in ["config.json", "weight_block_size", "two integers above 0"] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }
    let message = with(block(json!([64, 128]))).unwrap_err();
    assert!(message.contains("[3, 1]") && message.contains("[2, 1]"), "{message}");
    let message = with(json!({"quant_method": "fp8"})).unwrap_err();
    assert!(message.contains("has no block size"), "{message}");
    let message = with(json!({"quant_method": "aqlm"})).unwrap_err();
    assert!(message.contains("quantised with aqlm"), "{message}");
    with(block(json!([128, 128]))).unwrap();
}
