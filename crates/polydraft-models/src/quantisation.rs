//! What `quantization_config` says of a directory's weights: whether they are read here, in which
//! blocks they have scales, and how whole numbers are packed.
//!
//! Sources: DeepSeek-AI 2024 (V3), Qwen's `-FP8` directories; transformers' `fp8` and `fbgemm_fp8`;
//! compressed-tensors; GPTQModel; AutoAWQ.

mod packing;
mod said;

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::{Error, Result};
pub(crate) use packing::{Kind, Packing, Scheme, Sharing};
use said::{format_of, given, groups, said, weights_of};

/// Formats of compressed-tensors in which a number of 8 bits with a floating point is one byte.
const BYTES: [&str; 3] = ["float-quantized", "naive-quantized", "mxfp8-quantized"];
/// Those in which two numbers of 4 bits with a floating point are one byte.
const HALVES: [&str; 2] = ["nvfp4-pack-quantized", "mxfp4-pack-quantized"];

/// By what weights were quantised that are not read here.
pub(crate) fn unread(config: &Value) -> Option<String> {
    let Some(said) = said(config) else {
        let mlx = config.get("quantization").and_then(|value| value.get("group_size"));
        return mlx.map(|_| "MLX".to_owned());
    };
    let text = |field: &str| said.get(field).and_then(Value::as_str);
    match text("quant_method") {
        Some("mxfp4" | "fp8" | "fbgemm_fp8" | "bitsandbytes") => None,
        Some("modelopt") if matches!(text("quant_algo"), Some("FP8" | "NVFP4")) => None,
        Some("gptq") => packing::unread_gptq(said),
        Some("awq") => packing::unread_awq(said),
        Some(method @ "compressed-tensors") => {
            unread_format(said).map(|format| format!("{method} ({format})"))
        }
        method => Some(method.unwrap_or("an unnamed method").to_owned()),
    }
}

/// The format of compressed-tensors that is not read, if there is one.
fn unread_format(said: &Value) -> Option<String> {
    let sparse = given(said, &["sparsity_config"]);
    let sparse = sparse.and_then(|sparsity| said::text(sparsity, &["format"]));
    if let Some(sparse) = sparse.filter(|format| *format != "dense") {
        return Some(sparse.to_owned());
    }
    // Inputs would have to be turned before products.
    let turned = given(said, &["transform_config"]).and_then(|how| how.get("config_groups"));
    if turned.and_then(Value::as_object).is_some_and(|groups| !groups.is_empty()) {
        return Some("transforms".to_owned());
    }
    let of_group = |group: &Value| {
        let format = format_of(said, group);
        let weights = weights_of(group)?;
        let (bits, kind) = (weights.get("num_bits"), weights.get("type"));
        let formats = match (bits.and_then(Value::as_u64), kind.and_then(Value::as_str)) {
            (Some(8), Some("float")) => &BYTES[..],
            (Some(4), Some("float")) => &HALVES[..],
            _ => &[],
        };
        let is_float = formats.contains(&format.as_str());
        (!is_float && !packing::is_read(&format, weights)).then_some(format)
    };
    groups(said).find_map(of_group)
}

/// How whole numbers are packed, where `config.json` says that weights are such.
///
/// # Errors
/// A field that is not what it should be.
pub(crate) fn packing(directory: &Path) -> Result<Option<Packing>> {
    let (path, config) = read(directory);
    let Some(said) = config.as_ref().and_then(said) else { return Ok(None) };
    packing::packing(said).map_err(|problem| wrong(path, &problem))
}

fn read(directory: &Path) -> (PathBuf, Option<Value>) {
    let path = directory.join("config.json");
    let text = polydraft_files::read(&path, polydraft_files::FileKind::CONFIG).ok();
    let config = text.and_then(|text| serde_json::from_slice::<Value>(&text).ok());
    (path, config)
}

fn wrong(path: PathBuf, problem: &str) -> Error {
    Error::File { path, problem: format!("quantization_config: {problem}") }
}

/// Rows and columns of the blocks that have a scale each, where `config.json` says so.
///
/// # Errors
/// Sizes that are none, or several of them.
pub(crate) fn block(directory: &Path) -> Result<Option<[usize; 2]>> {
    let (path, config) = read(directory);
    let Some(said) = config.as_ref().and_then(said) else { return Ok(None) };
    block_of(said).map_err(|problem| wrong(path, &problem))
}

fn block_of(said: &Value) -> std::result::Result<Option<[usize; 2]>, String> {
    if let Some(block) = given(said, &["weight_block_size"]) {
        return sizes("weight_block_size", block).map(Some);
    }
    let mut found: Option<[usize; 2]> = None;
    // Those of 4 bits have blocks that their format says.
    let is_fp8 = |weights: &&Value| {
        let bits = given(weights, &["num_bits"]).and_then(Value::as_u64);
        said::text(weights, &["type"]) != Some("int") && bits != Some(4)
    };
    for weights in groups(said).filter_map(weights_of).filter(is_fp8) {
        let block = match weights.get("strategy").and_then(Value::as_str) {
            Some("block") => given(weights, &["block_structure"]).cloned(),
            Some("group") => {
                given(weights, &["group_size"]).map(|size| serde_json::json!([1, size]))
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

/// Two sizes; older versions of compressed-tensors write `128x128`.
fn sizes(field: &str, value: &Value) -> std::result::Result<[usize; 2], String> {
    let numbers: Vec<Option<usize>> = match value {
        Value::Array(all) => {
            all.iter().map(|one| one.as_u64().and_then(|one| usize::try_from(one).ok())).collect()
        }
        Value::String(text) => text.split('x').map(|one| one.parse().ok()).collect(),
        _ => Vec::new(),
    };
    match numbers[..] {
        [Some(rows @ 1..), Some(columns @ 1..)] => Ok([rows, columns]),
        _ => Err(format!("{field}: expected two whole numbers above 0, got {value}")),
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
    fn what_is_not_read_has_a_name() {
        let with = |said: Value| json!({ "quantization_config": said });
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
        let (mut few, mut blocks, mut turned) = (int.clone(), int.clone(), int.clone());
        few["num_bits"] = json!(3);
        blocks["strategy"] = json!("block");
        turned = compressed("pack-quantized", &turned);
        let turns = json!({"config_groups": {"u": {"type": "hadamard"}}});
        turned["quantization_config"]["transform_config"] = turns;
        for (config, method) in [
            (with(json!({"quant_method": "hqq"})), "hqq"),
            (with(json!({"quant_method": "gptq", "bits": 2})), "gptq (2 bits)"),
            (with(json!({"quant_method": "awq", "version": "gemv"})), "awq (gemv)"),
            (turned, "compressed-tensors (transforms)"),
            (compressed("pack-quantized", &few), "compressed-tensors (pack-quantized)"),
            (compressed("pack-quantized", &blocks), "compressed-tensors (pack-quantized)"),
            (compressed("int-quantized", &int), "compressed-tensors (int-quantized)"),
            (compressed("marlin-24", &int), "compressed-tensors (marlin-24)"),
            (with(json!({"quant_method": "modelopt", "quant_algo": "W4A8"})), "modelopt"),
            (with(json!({})), "an unnamed method"),
            (json!({"quantization": {"group_size": 64, "bits": 4}}), "MLX"),
            (sparse, "compressed-tensors (sparse-24-bitmask)"),
            (nested.clone(), "aqlm"),
        ] {
            assert_eq!(unread(&config).as_deref(), Some(method), "{config}");
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
            assert_eq!(unread(&config), None, "{config}");
        }
        mixed["quantization_config"]["config_groups"]["group_1"] = group;
        let method = unread(&mixed).unwrap();
        assert_eq!(method, "compressed-tensors (nvfp4-pack-quantized)");
    }

    #[test]
    fn blocks_are_two_sizes() {
        let block = |said: Value| block_of(&said);
        assert_eq!(block(json!({})), Ok(None));
        assert_eq!(block(json!({"weight_block_size": null})), Ok(None));
        assert_eq!(block(json!({"weight_block_size": [128, 64]})), Ok(Some([128, 64])));
        for wrong in [json!([0, 128]), json!([128]), json!(128), json!([-1, 2]), json!([1.5, 2])] {
            let problem = block(json!({ "weight_block_size": wrong })).unwrap_err();
            assert!(problem.contains("two whole numbers above 0"), "{problem}");
        }
        let group = |weights: Value| json!({ "weights": weights });
        let of = |groups: Value| block(json!({ "config_groups": groups }));
        let blocks = group(json!({"strategy": "block", "block_structure": [128, 128]}));
        let written = group(json!({"strategy": "block", "block_structure": "128x128"}));
        let groups = group(json!({"strategy": "group", "group_size": 64}));
        let rows = group(json!({"strategy": "channel", "group_size": null}));
        assert_eq!(of(json!({"a": rows, "b": blocks})), Ok(Some([128, 128])));
        assert_eq!(of(json!({"a": written, "b": blocks})), Ok(Some([128, 128])));
        assert_eq!(of(json!({ "a": groups })), Ok(Some([1, 64])));
        assert!(of(json!({"a": groups, "b": blocks})).unwrap_err().contains("one size"));
    }
}
