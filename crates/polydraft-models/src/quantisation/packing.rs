//! Packed integer weights of 4 or 8 bits, with a scale per group.
//!
//! Sources: Frantar et al. 2022 (GPTQ) and GPTQModel's fields; Lin et al. 2023 (AWQ) and AutoAWQ's;
//! compressed-tensors' `QuantizationArgs`.

use serde_json::Value;

use super::fields::{field, group_weights, groups, string, weight_format};

/// Packing of integer tensors in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Packing {
    pub kind: Kind,
    /// Schemes of the directory's matrices; the shape of a matrix's scales decides between them.
    pub schemes: Vec<Scheme>,
}

/// Tool whose layout the tensors have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Whether stored zero points are less by one than the actual ones.
    Gptq {
        zeros_minus_one: bool,
    },
    Awq,
    Compressed,
}

/// Quantisation of one matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scheme {
    pub bits: u32,
    pub sharing: Sharing,
    /// Whether there are no zero points: the middle of the range stands for 0.
    pub is_symmetric: bool,
}

/// Numbers that share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    Tensor,
    Row,
    /// Groups of this many neighbours of a row.
    Group(usize),
}

/// Unsupported variant of GPTQ, if it is one.
pub(super) fn unsupported_gptq(quantization: &Value) -> Option<String> {
    let unsupported = |what: String| Some(format!("gptq ({what})"));
    let bits = field(quantization, &["bits"]).filter(|bits| bits.is_u64());
    if let Some(bits) = bits.filter(|bits| ![4, 8].map(Value::from).contains(bits)) {
        return unsupported(format!("{bits} bits"));
    }
    let format = string(quantization, &["checkpoint_format", "format"]).unwrap_or("gptq");
    if !["gptq", "gptq_v2"].contains(&format) {
        return unsupported(format.to_owned());
    }
    if field(quantization, &["is_marlin_format"]) == Some(&Value::Bool(true)) {
        return unsupported("marlin".to_owned());
    }
    if let Some(width) = string(quantization, &["pack_dtype"]).filter(|width| *width != "int32") {
        return unsupported(format!("packed in {width}"));
    }
    // Names that begin with `-:` are those of matrices that are not quantised.
    let dynamic = field(quantization, &["dynamic"]).and_then(Value::as_object);
    let has_others = dynamic.is_some_and(|all| all.keys().any(|name| !name.starts_with("-:")));
    has_others.then(|| "gptq (dynamic)".to_owned())
}

/// Unsupported variant of AWQ, if it is one.
pub(super) fn unsupported_awq(quantization: &Value) -> Option<String> {
    let unsupported = |what: &str| Some(format!("awq ({what})"));
    let version = string(quantization, &["version", "format"]).unwrap_or("gemm");
    if !version.eq_ignore_ascii_case("gemm") {
        return unsupported(version);
    }
    if let Some(other) = string(quantization, &["backend"]).filter(|backend| *backend == "llm-awq")
    {
        return unsupported(other);
    }
    let bits = field(quantization, &["bits", "w_bit"]).filter(|bits| bits.is_u64());
    if let Some(bits) = bits.filter(|bits| bits.as_u64() != Some(4)) {
        return unsupported(&format!("{bits} bits"));
    }
    match field(quantization, &["zero_point"]) {
        Some(Value::Bool(false)) => unsupported("without zero points"),
        _ => None,
    }
}

/// Whether a group's weights are integers in a supported format.
pub(super) fn is_supported(format: &str, weights: &Value) -> bool {
    let strategy = string(weights, &["strategy"]);
    is_integer(weights)
        && match field(weights, &["num_bits"]).and_then(Value::as_u64) {
            Some(4) => ["pack-quantized", "naive-quantized"].contains(&format),
            Some(8) => ["pack-quantized", "naive-quantized", "int-quantized"].contains(&format),
            _ => false,
        }
        && strategy.is_none_or(|strategy| ["tensor", "channel", "group"].contains(&strategy))
}

fn is_integer(weights: &Value) -> bool {
    string(weights, &["type"]).unwrap_or("int") == "int"
}

/// Packing of a directory's integer weights, if it has such.
///
/// # Errors
/// The name of an invalid field, with what was expected.
pub(super) fn packing(quantization: &Value) -> Result<Option<Packing>, String> {
    let single = |bits: u32, kind: Kind, group: &[&str]| {
        let Some(size) = field(quantization, group) else {
            return Err(format!("{}: expected -1 or an integer above 0, got none", group[0]));
        };
        let sharing = parse_sharing(group[0], size)?;
        Ok(Some(Packing { kind, schemes: vec![Scheme { bits, sharing, is_symmetric: false }] }))
    };
    match string(quantization, &["quant_method"]) {
        Some("gptq") => {
            let format = string(quantization, &["checkpoint_format", "format"]);
            let kind = Kind::Gptq { zeros_minus_one: format != Some("gptq_v2") };
            single(bits(quantization, "bits", &["bits"])?, kind, &["group_size"])
        }
        Some("awq") => {
            let bits = bits(quantization, "bits", &["bits", "w_bit"])?;
            single(bits, Kind::Awq, &["group_size", "q_group_size"])
        }
        Some("compressed-tensors") => {
            let mut schemes: Vec<Scheme> = Vec::new();
            for group in groups(quantization) {
                let format = weight_format(quantization, group);
                let Some(weights) =
                    group_weights(group).filter(|weights| is_supported(&format, weights))
                else {
                    continue;
                };
                schemes.push(scheme(weights)?);
            }
            Ok((!schemes.is_empty()).then_some(Packing { kind: Kind::Compressed, schemes }))
        }
        _ => Ok(None),
    }
}

/// Scheme of a group of compressed-tensors.
fn scheme(weights: &Value) -> Result<Scheme, String> {
    let size = field(weights, &["group_size"]);
    let sharing = match (string(weights, &["strategy"]), size) {
        (Some("channel"), _) => Sharing::Row,
        (Some("tensor"), _) | (None, None) => Sharing::Tensor,
        (_, Some(size)) => parse_sharing("group_size", size)?,
        (Some(_), None) => {
            return Err("group_size: expected an integer above 0, got none".to_owned());
        }
    };
    let is_symmetric = match field(weights, &["symmetric"]) {
        None => true,
        Some(Value::Bool(is_symmetric)) => *is_symmetric,
        Some(other) => return Err(format!("symmetric: expected true or false, got {other}")),
    };
    Ok(Scheme { bits: bits(weights, "num_bits", &["num_bits"])?, sharing, is_symmetric })
}

fn bits(quantization: &Value, name: &str, names: &[&str]) -> Result<u32, String> {
    match field(quantization, names) {
        Some(bits) if bits.as_u64() == Some(4) => Ok(4),
        Some(bits) if bits.as_u64() == Some(8) => Ok(8),
        got => {
            let got = got.map_or("none".to_owned(), Value::to_string);
            Err(format!("{name}: expected 4 or 8, got {got}"))
        }
    }
}

/// Parses a group size; -1 stands for a row.
fn parse_sharing(name: &str, size: &Value) -> Result<Sharing, String> {
    if size.as_i64() == Some(-1) {
        return Ok(Sharing::Row);
    }
    match size.as_u64().and_then(|size| usize::try_from(size).ok()) {
        Some(size @ 1..) => Ok(Sharing::Group(size)),
        _ => Err(format!("{name}: expected -1 or an integer above 0, got {size}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn one(kind: Kind, bits: u32, sharing: Sharing) -> Result<Option<Packing>, String> {
        Ok(Some(Packing { kind, schemes: vec![Scheme { bits, sharing, is_symmetric: false }] }))
    }

    #[test]
    fn gptq_and_awq_have_one_scheme() {
        let gptq = |format: Value, bits: u32, size: i32| {
            packing(&json!({"quant_method": "gptq", "bits": bits, "group_size": size,
                "checkpoint_format": format}))
        };
        let v1 = Kind::Gptq { zeros_minus_one: true };
        assert_eq!(gptq(Value::Null, 4, 128), one(v1, 4, Sharing::Group(128)));
        assert_eq!(gptq(json!("gptq"), 8, -1), one(v1, 8, Sharing::Row));
        let v2 = Kind::Gptq { zeros_minus_one: false };
        assert_eq!(gptq(json!("gptq_v2"), 4, 32), one(v2, 4, Sharing::Group(32)));
        let old = json!({"quant_method": "awq", "w_bit": 4, "q_group_size": 64});
        assert_eq!(packing(&old), one(Kind::Awq, 4, Sharing::Group(64)));
        for (config, message) in [
            (json!({"quant_method": "gptq", "bits": "4", "group_size": 128}), "bits: expected"),
            (json!({"quant_method": "gptq", "bits": 4, "group_size": 0}), "group_size: expected"),
            (json!({"quant_method": "gptq", "bits": 4}), "group_size: expected"),
            (json!({"quant_method": "awq", "group_size": 128}), "bits: expected"),
            (json!({"quant_method": "awq", "bits": 4, "group_size": 1.5}), "group_size: expected"),
        ] {
            let problem = packing(&config).unwrap_err();
            assert!(problem.contains(message), "{problem}");
        }
    }

    #[test]
    fn unsupported_variants_are_named() {
        for (quantization, name) in [
            (json!({"bits": 3}), Some("gptq (3 bits)")),
            (json!({"bits": 4, "checkpoint_format": "marlin"}), Some("gptq (marlin)")),
            (json!({"bits": 4, "is_marlin_format": true}), Some("gptq (marlin)")),
            (json!({"bits": 4, "pack_dtype": "int64"}), Some("gptq (packed in int64)")),
            (json!({"bits": 4, "dynamic": {"+:.*": {"bits": 8}}}), Some("gptq (dynamic)")),
            (json!({"bits": 4, "dynamic": {"-:.*": {}}, "pack_dtype": "int32"}), None),
            (json!({"bits": 8, "checkpoint_format": "gptq_v2", "desc_act": true}), None),
        ] {
            assert_eq!(unsupported_gptq(&quantization).as_deref(), name, "{quantization}");
        }
        for (quantization, name) in [
            (json!({"version": "gemv"}), Some("awq (gemv)")),
            (json!({"version": "GEMM", "bits": 8}), Some("awq (8 bits)")),
            (json!({"backend": "llm-awq"}), Some("awq (llm-awq)")),
            (json!({"zero_point": false}), Some("awq (without zero points)")),
            (json!({"version": "GEMM", "bits": 4, "zero_point": true}), None),
        ] {
            assert_eq!(unsupported_awq(&quantization).as_deref(), name, "{quantization}");
        }
    }

    #[test]
    fn compressed_tensors_has_several_schemes() {
        let packing_of = |weights: &[Value]| {
            let groups: serde_json::Map<_, _> = weights
                .iter()
                .enumerate()
                .map(|(n, weights)| (format!("group_{n}"), json!({ "weights": weights })))
                .collect();
            packing(&json!({"quant_method": "compressed-tensors", "format": "pack-quantized",
                "config_groups": groups}))
        };
        let group = json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32,
            "symmetric": false});
        let rows = json!({"num_bits": 8, "type": "int", "strategy": "channel"});
        let float = json!({"num_bits": 8, "type": "float", "strategy": "channel"});
        let schemes = vec![
            Scheme { bits: 4, sharing: Sharing::Group(32), is_symmetric: false },
            Scheme { bits: 8, sharing: Sharing::Row, is_symmetric: true },
        ];
        let all = packing_of(&[group.clone(), float.clone(), rows]);
        assert_eq!(all, Ok(Some(Packing { kind: Kind::Compressed, schemes })));
        assert_eq!(packing_of(&[float]), Ok(None));
        for (name, invalid) in [("group_size", json!(0)), ("symmetric", json!("no"))] {
            let mut group = group.clone();
            group[name] = invalid;
            let problem = packing_of(&[group]).unwrap_err();
            assert!(problem.starts_with(name), "{problem}");
        }
    }
}
