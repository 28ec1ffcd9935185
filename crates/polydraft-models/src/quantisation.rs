//! Quantisation of a directory's weights, from `quantization_config`: whether it is supported, the
//! size of blocks that share a scale, and how integers are packed.
//!
//! Sources: DeepSeek-AI 2024 (V3), Qwen's `-FP8` directories; transformers' `fp8` and `fbgemm_fp8`;
//! compressed-tensors; GPTQModel; AutoAWQ.

mod fields;
mod packing;

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::{Error, Result};
use fields::{field, group_weights, groups, quantization_config, weight_format};
pub(crate) use packing::{Kind, Packing, Scheme, Sharing};

/// Formats of compressed-tensors that store an 8-bit float per byte.
const FP8_FORMATS: [&str; 3] = ["float-quantized", "naive-quantized", "mxfp8-quantized"];
/// Formats of compressed-tensors that store two 4-bit floats per byte.
const FP4_FORMATS: [&str; 2] = ["nvfp4-pack-quantized", "mxfp4-pack-quantized"];

/// Name of the quantisation method of the weights, if it is not supported.
pub(crate) fn unsupported_method(config: &Value) -> Option<String> {
    let Some(quantization) = quantization_config(config) else {
        let mlx = config.get("quantization").and_then(|value| value.get("group_size"));
        return mlx.map(|_| "MLX".to_owned());
    };
    let string = |name: &str| quantization.get(name).and_then(Value::as_str);
    match string("quant_method") {
        Some("mxfp4" | "fp8" | "fbgemm_fp8" | "bitsandbytes") => None,
        Some("modelopt") if matches!(string("quant_algo"), Some("FP8" | "NVFP4")) => None,
        Some("gptq") => packing::unsupported_gptq(quantization),
        Some("awq") => packing::unsupported_awq(quantization),
        Some(method @ "compressed-tensors") => {
            unsupported_format(quantization).map(|format| format!("{method} ({format})"))
        }
        method => Some(method.unwrap_or("an unnamed method").to_owned()),
    }
}

/// Format of compressed-tensors that is not supported, if there is one.
fn unsupported_format(quantization: &Value) -> Option<String> {
    let sparse = field(quantization, &["sparsity_config"]);
    let sparse = sparse.and_then(|sparsity| fields::string(sparsity, &["format"]));
    if let Some(sparse) = sparse.filter(|format| *format != "dense") {
        return Some(sparse.to_owned());
    }
    // Inputs would have to be transformed before products.
    let transforms = field(quantization, &["transform_config"]);
    let transforms = transforms.and_then(|transform| transform.get("config_groups"));
    if transforms.and_then(Value::as_object).is_some_and(|groups| !groups.is_empty()) {
        return Some("transforms".to_owned());
    }
    let unsupported = |group: &Value| {
        let format = weight_format(quantization, group);
        let weights = group_weights(group)?;
        let (bits, kind) = (weights.get("num_bits"), weights.get("type"));
        let formats = match (bits.and_then(Value::as_u64), kind.and_then(Value::as_str)) {
            (Some(8), Some("float")) => &FP8_FORMATS[..],
            (Some(4), Some("float")) => &FP4_FORMATS[..],
            _ => &[],
        };
        let is_float = formats.contains(&format.as_str());
        (!is_float && !packing::is_supported(&format, weights)).then_some(format)
    };
    groups(quantization).find_map(unsupported)
}

/// Packing of integer weights, if `config.json` has one.
///
/// # Errors
/// An invalid field.
pub(crate) fn packing(directory: &Path) -> Result<Option<Packing>> {
    let (path, config) = read_config(directory);
    let Some(quantization) = config.as_ref().and_then(quantization_config) else {
        return Ok(None);
    };
    packing::packing(quantization).map_err(|problem| invalid_config(path, &problem))
}

/// Reads `config.json`; `None` if it cannot be read.
fn read_config(directory: &Path) -> (PathBuf, Option<Value>) {
    let path = directory.join("config.json");
    let text = polydraft_files::read(&path, polydraft_files::FileKind::CONFIG).ok();
    let config = text.and_then(|text| serde_json::from_slice::<Value>(&text).ok());
    (path, config)
}

fn invalid_config(path: PathBuf, problem: &str) -> Error {
    Error::File { path, problem: format!("quantization_config: {problem}") }
}

/// Rows and columns of the blocks that share a scale, if `config.json` has block sizes.
///
/// # Errors
/// Invalid sizes, or several different ones.
pub(crate) fn block(directory: &Path) -> Result<Option<[usize; 2]>> {
    let (path, config) = read_config(directory);
    let Some(quantization) = config.as_ref().and_then(quantization_config) else {
        return Ok(None);
    };
    block_size(quantization).map_err(|problem| invalid_config(path, &problem))
}

fn block_size(quantization: &Value) -> std::result::Result<Option<[usize; 2]>, String> {
    if let Some(block) = field(quantization, &["weight_block_size"]) {
        return sizes("weight_block_size", block).map(Some);
    }
    let mut found: Option<[usize; 2]> = None;
    // Block sizes of 4-bit formats are fixed.
    let is_fp8 = |weights: &&Value| {
        let bits = field(weights, &["num_bits"]).and_then(Value::as_u64);
        fields::string(weights, &["type"]) != Some("int") && bits != Some(4)
    };
    for weights in groups(quantization).filter_map(group_weights).filter(is_fp8) {
        let block = match weights.get("strategy").and_then(Value::as_str) {
            Some("block") => field(weights, &["block_structure"]).cloned(),
            Some("group") => {
                field(weights, &["group_size"]).map(|size| serde_json::json!([1, size]))
            }
            _ => None,
        };
        let Some(block) = block else { continue };
        let block = sizes("block_structure or group_size", &block)?;
        if let Some(other) = found.filter(|other| *other != block) {
            return Err(format!("expected blocks of one size, got {other:?} and {block:?}"));
        }
        found = Some(block);
    }
    Ok(found)
}

/// Parses two sizes; older versions of compressed-tensors write `128x128`.
fn sizes(name: &str, value: &Value) -> std::result::Result<[usize; 2], String> {
    let numbers: Vec<Option<usize>> = match value {
        Value::Array(all) => {
            all.iter().map(|one| one.as_u64().and_then(|one| usize::try_from(one).ok())).collect()
        }
        Value::String(text) => text.split('x').map(|one| one.parse().ok()).collect(),
        _ => Vec::new(),
    };
    match numbers[..] {
        [Some(rows @ 1..), Some(columns @ 1..)] => Ok([rows, columns]),
        _ => Err(format!("{name}: expected two integers above 0, got {value}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn compressed(format: &str, weights: &Value) -> Value {
        let group = json!({"targets": ["Linear"], "weights": weights});
        json!({"quantization_config": {
            "quant_method": "compressed-tensors", "format": format,
            "config_groups": {"group_0": group},
        }})
    }

    #[test]
    fn unsupported_methods_are_named() {
        let with = |quantization: Value| json!({ "quantization_config": quantization });
        let fp8 = json!({"num_bits": 8, "type": "float", "strategy": "channel"});
        let fp4 = json!({"num_bits": 4, "type": "float", "strategy": "tensor_group"});
        let int = json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128});
        let mut sparse = compressed("float-quantized", &fp8);
        sparse["quantization_config"]["sparsity_config"] = json!({"format": "sparse-24-bitmask"});
        let mut mixed = compressed("mixed-precision", &fp8);
        let group = json!({"format": "nvfp4-pack-quantized", "weights": {"num_bits": 6}});
        mixed["quantization_config"]["config_groups"]["group_0"]["format"] =
            json!("float-quantized");
        let mut nested = json!({"text_config": with(json!({"quant_method": "aqlm"}))});
        let (mut three_bits, mut blocks, mut transformed) = (int.clone(), int.clone(), int.clone());
        three_bits["num_bits"] = json!(3);
        blocks["strategy"] = json!("block");
        transformed = compressed("pack-quantized", &transformed);
        let transforms = json!({"config_groups": {"u": {"type": "hadamard"}}});
        transformed["quantization_config"]["transform_config"] = transforms;
        for (config, method) in [
            (with(json!({"quant_method": "hqq"})), "hqq"),
            (with(json!({"quant_method": "gptq", "bits": 2})), "gptq (2 bits)"),
            (with(json!({"quant_method": "awq", "version": "gemv"})), "awq (gemv)"),
            (transformed, "compressed-tensors (transforms)"),
            (compressed("pack-quantized", &three_bits), "compressed-tensors (pack-quantized)"),
            (compressed("pack-quantized", &blocks), "compressed-tensors (pack-quantized)"),
            (compressed("int-quantized", &int), "compressed-tensors (int-quantized)"),
            (compressed("marlin-24", &int), "compressed-tensors (marlin-24)"),
            (with(json!({"quant_method": "modelopt", "quant_algo": "W4A8"})), "modelopt"),
            (with(json!({})), "an unnamed method"),
            (json!({"quantization": {"group_size": 64, "bits": 4}}), "MLX"),
            (sparse, "compressed-tensors (sparse-24-bitmask)"),
            (nested.clone(), "aqlm"),
        ] {
            assert_eq!(unsupported_method(&config).as_deref(), Some(method), "{config}");
        }
        nested["text_config"]["quantization_config"]["quant_method"] = json!("fp8");
        for config in [
            json!({}),
            json!({"quantization_config": null}),
            with(json!({"quant_method": "mxfp4"})),
            with(json!({"quant_method": "fp8", "activation_scheme": "dynamic"})),
            with(json!({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0})),
            with(json!({"quant_method": "modelopt", "quant_algo": "FP8"})),
            with(json!({"quant_method": "gptq", "bits": 4, "group_size": 128})),
            with(json!({"quant_method": "awq", "bits": 4, "version": "GEMM"})),
            compressed("pack-quantized", &int),
            compressed("naive-quantized", &int),
            compressed("float-quantized", &fp8),
            compressed("mxfp8-quantized", &fp8),
            compressed("nvfp4-pack-quantized", &fp4),
            compressed("mxfp4-pack-quantized", &fp4),
            with(json!({"quant_method": "bitsandbytes", "load_in_4bit": true})),
            with(json!({"quant_method": "modelopt", "quant_algo": "NVFP4"})),
            mixed.clone(),
            nested,
        ] {
            assert_eq!(unsupported_method(&config), None, "{config}");
        }
        mixed["quantization_config"]["config_groups"]["group_1"] = group;
        let method = unsupported_method(&mixed).unwrap();
        assert_eq!(method, "compressed-tensors (nvfp4-pack-quantized)");
    }

    #[test]
    fn block_size_is_two_positive_integers() {
        let block = |quantization: Value| block_size(&quantization);
        assert_eq!(block(json!({})), Ok(None));
        assert_eq!(block(json!({"weight_block_size": null})), Ok(None));
        assert_eq!(block(json!({"weight_block_size": [128, 64]})), Ok(Some([128, 64])));
        for invalid in [json!([0, 128]), json!([128]), json!(128), json!([-1, 2]), json!([1.5, 2])]
        {
            let problem = block(json!({ "weight_block_size": invalid })).unwrap_err();
            assert!(problem.contains("two integers above 0"), "{problem}");
        }
        let group = |weights: Value| json!({ "weights": weights });
        let block_of = |groups: Value| block(json!({ "config_groups": groups }));
        let blocks = group(json!({"strategy": "block", "block_structure": [128, 128]}));
        let written = group(json!({"strategy": "block", "block_structure": "128x128"}));
        let groups = group(json!({"strategy": "group", "group_size": 64}));
        let rows = group(json!({"strategy": "channel", "group_size": null}));
        assert_eq!(block_of(json!({"a": rows, "b": blocks})), Ok(Some([128, 128])));
        assert_eq!(block_of(json!({"a": written, "b": blocks})), Ok(Some([128, 128])));
        assert_eq!(block_of(json!({ "a": groups })), Ok(Some([1, 64])));
        assert!(block_of(json!({"a": groups, "b": blocks})).unwrap_err().contains("one size"));
    }
}
