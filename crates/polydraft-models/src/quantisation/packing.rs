//! Weights that are whole numbers of 4 or 8 bits, in groups with a scale each: how a directory has
//! them.
//!
//! Sources: Frantar et al. 2022 (GPTQ) and GPTQModel's fields; Lin et al. 2023 (AWQ) and AutoAWQ's;
//! compressed-tensors' `QuantizationArgs`.

use serde_json::Value;

use super::said::{format_of, given, groups, text, weights_of};

/// How tensors of whole numbers lie in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Packing {
    pub kind: Kind,
    /// One of these holds of each matrix: shapes say which.
    pub schemes: Vec<Scheme>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Whether the stored zero points are less by one than what is meant.
    Gptq {
        is_one_less: bool,
    },
    Awq,
    Compressed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scheme {
    pub bits: u32,
    pub sharing: Sharing,
    /// Without zero points: the middle of the numbers stands for 0.
    pub is_symmetric: bool,
}

/// Which numbers share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    Tensor,
    Row,
    /// So many neighbours of a row.
    Group(usize),
}

/// What is not read of GPTQ, if something is.
pub(super) fn unread_gptq(said: &Value) -> Option<String> {
    let named = |what: String| Some(format!("gptq ({what})"));
    let bits = given(said, &["bits"]).filter(|bits| bits.is_u64());
    if let Some(bits) = bits.filter(|bits| ![4, 8].map(Value::from).contains(bits)) {
        return named(format!("{bits} bits"));
    }
    let format = text(said, &["checkpoint_format", "format"]).unwrap_or("gptq");
    if !["gptq", "gptq_v2"].contains(&format) {
        return named(format.to_owned());
    }
    if given(said, &["is_marlin_format"]) == Some(&Value::Bool(true)) {
        return named("marlin".to_owned());
    }
    if let Some(width) = text(said, &["pack_dtype"]).filter(|width| *width != "int32") {
        return named(format!("packed in {width}"));
    }
    // Names that begin so are those that were left as they are.
    let dynamic = given(said, &["dynamic"]).and_then(Value::as_object);
    let has_others = dynamic.is_some_and(|all| all.keys().any(|name| !name.starts_with("-:")));
    has_others.then(|| "gptq (dynamic)".to_owned())
}

/// What is not read of AWQ, if something is.
pub(super) fn unread_awq(said: &Value) -> Option<String> {
    let named = |what: &str| Some(format!("awq ({what})"));
    let version = text(said, &["version", "format"]).unwrap_or("gemm");
    if !version.eq_ignore_ascii_case("gemm") {
        return named(version);
    }
    if let Some(other) = text(said, &["backend"]).filter(|backend| *backend == "llm-awq") {
        return named(other);
    }
    let bits = given(said, &["bits", "w_bit"]).filter(|bits| bits.is_u64());
    if let Some(bits) = bits.filter(|bits| bits.as_u64() != Some(4)) {
        return named(&format!("{bits} bits"));
    }
    match given(said, &["zero_point"]) {
        Some(Value::Bool(false)) => named("without zero points"),
        _ => None,
    }
}

/// Whether a group's weights are whole numbers that are read here in this format.
pub(super) fn is_read(format: &str, weights: &Value) -> bool {
    let strategy = text(weights, &["strategy"]);
    is_whole(weights)
        && match given(weights, &["num_bits"]).and_then(Value::as_u64) {
            Some(4) => ["pack-quantized", "naive-quantized"].contains(&format),
            Some(8) => ["pack-quantized", "naive-quantized", "int-quantized"].contains(&format),
            _ => false,
        }
        && strategy.is_none_or(|strategy| ["tensor", "channel", "group"].contains(&strategy))
}

fn is_whole(weights: &Value) -> bool {
    text(weights, &["type"]).unwrap_or("int") == "int"
}

/// How a directory's whole numbers lie, if there are some.
///
/// # Errors
/// The field that is wrong.
pub(super) fn packing(said: &Value) -> Result<Option<Packing>, String> {
    let of_one = |bits: u32, kind: Kind, group: &[&str]| {
        let Some(size) = given(said, group) else {
            return Err(format!("{}: expected -1 or a whole number above 0, got none", group[0]));
        };
        let sharing = size_of(group[0], size)?;
        Ok(Some(Packing { kind, schemes: vec![Scheme { bits, sharing, is_symmetric: false }] }))
    };
    match text(said, &["quant_method"]) {
        Some("gptq") => {
            let format = text(said, &["checkpoint_format", "format"]);
            let kind = Kind::Gptq { is_one_less: format != Some("gptq_v2") };
            of_one(bits(said, "bits", &["bits"])?, kind, &["group_size"])
        }
        Some("awq") => {
            let bits = bits(said, "bits", &["bits", "w_bit"])?;
            of_one(bits, Kind::Awq, &["group_size", "q_group_size"])
        }
        Some("compressed-tensors") => {
            let mut schemes: Vec<Scheme> = Vec::new();
            for group in groups(said) {
                let format = format_of(said, group);
                let Some(weights) = weights_of(group).filter(|weights| is_read(&format, weights))
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

fn scheme(weights: &Value) -> Result<Scheme, String> {
    let size = given(weights, &["group_size"]);
    let sharing = match (text(weights, &["strategy"]), size) {
        (Some("channel"), _) => Sharing::Row,
        (Some("tensor"), _) | (None, None) => Sharing::Tensor,
        (_, Some(size)) => size_of("group_size", size)?,
        (Some(_), None) => {
            return Err("group_size: expected a whole number above 0, got none".to_owned());
        }
    };
    let is_symmetric = match given(weights, &["symmetric"]) {
        None => true,
        Some(Value::Bool(is_symmetric)) => *is_symmetric,
        Some(other) => return Err(format!("symmetric: expected true or false, got {other}")),
    };
    Ok(Scheme { bits: bits(weights, "num_bits", &["num_bits"])?, sharing, is_symmetric })
}

fn bits(said: &Value, field: &str, names: &[&str]) -> Result<u32, String> {
    match given(said, names) {
        Some(bits) if bits.as_u64() == Some(4) => Ok(4),
        Some(bits) if bits.as_u64() == Some(8) => Ok(8),
        got => {
            let got = got.map_or("none".to_owned(), Value::to_string);
            Err(format!("{field}: expected 4 or 8, got {got}"))
        }
    }
}

/// Neighbours that share a scale; -1 is all of a row.
fn size_of(field: &str, size: &Value) -> Result<Sharing, String> {
    if size.as_i64() == Some(-1) {
        return Ok(Sharing::Row);
    }
    match size.as_u64().and_then(|size| usize::try_from(size).ok()) {
        Some(size @ 1..) => Ok(Sharing::Group(size)),
        _ => Err(format!("{field}: expected -1 or a whole number above 0, got {size}")),
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
        let less = Kind::Gptq { is_one_less: true };
        assert_eq!(gptq(Value::Null, 4, 128), one(less, 4, Sharing::Group(128)));
        assert_eq!(gptq(json!("gptq"), 8, -1), one(less, 8, Sharing::Row));
        let whole = Kind::Gptq { is_one_less: false };
        assert_eq!(gptq(json!("gptq_v2"), 4, 32), one(whole, 4, Sharing::Group(32)));
        let old = json!({"quant_method": "awq", "w_bit": 4, "q_group_size": 64});
        assert_eq!(packing(&old), one(Kind::Awq, 4, Sharing::Group(64)));
        for (wrong, said) in [
            (json!({"quant_method": "gptq", "bits": "4", "group_size": 128}), "bits: expected"),
            (json!({"quant_method": "gptq", "bits": 4, "group_size": 0}), "group_size: expected"),
            (json!({"quant_method": "gptq", "bits": 4}), "group_size: expected"),
            (json!({"quant_method": "awq", "group_size": 128}), "bits: expected"),
            (json!({"quant_method": "awq", "bits": 4, "group_size": 1.5}), "group_size: expected"),
        ] {
            let problem = packing(&wrong).unwrap_err();
            assert!(problem.contains(said), "{problem}");
        }
    }

    #[test]
    fn what_is_not_read_of_them_has_a_name() {
        for (said, name) in [
            (json!({"bits": 3}), Some("gptq (3 bits)")),
            (json!({"bits": 4, "checkpoint_format": "marlin"}), Some("gptq (marlin)")),
            (json!({"bits": 4, "is_marlin_format": true}), Some("gptq (marlin)")),
            (json!({"bits": 4, "pack_dtype": "int64"}), Some("gptq (packed in int64)")),
            (json!({"bits": 4, "dynamic": {"+:.*": {"bits": 8}}}), Some("gptq (dynamic)")),
            (json!({"bits": 4, "dynamic": {"-:.*": {}}, "pack_dtype": "int32"}), None),
            (json!({"bits": 8, "checkpoint_format": "gptq_v2", "desc_act": true}), None),
        ] {
            assert_eq!(unread_gptq(&said).as_deref(), name, "{said}");
        }
        for (said, name) in [
            (json!({"version": "gemv"}), Some("awq (gemv)")),
            (json!({"version": "GEMM", "bits": 8}), Some("awq (8 bits)")),
            (json!({"backend": "llm-awq"}), Some("awq (llm-awq)")),
            (json!({"zero_point": false}), Some("awq (without zero points)")),
            (json!({"version": "GEMM", "bits": 4, "zero_point": true}), None),
        ] {
            assert_eq!(unread_awq(&said).as_deref(), name, "{said}");
        }
    }

    #[test]
    fn compressed_tensors_has_several() {
        let of = |weights: &[Value]| {
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
        let all = of(&[group.clone(), float.clone(), rows]);
        assert_eq!(all, Ok(Some(Packing { kind: Kind::Compressed, schemes })));
        assert_eq!(of(&[float]), Ok(None));
        for (field, wrong) in [("group_size", json!(0)), ("symmetric", json!("no"))] {
            let mut group = group.clone();
            group[field] = wrong;
            let problem = of(&[group]).unwrap_err();
            assert!(problem.starts_with(field), "{problem}");
        }
    }
}
