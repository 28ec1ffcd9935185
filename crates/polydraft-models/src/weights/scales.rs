//! Recognises the tensors of a directory that contain scales, and their matrices.

use std::collections::BTreeSet;

use safetensors::tensor::Dtype;

/// Suffixes that turn a matrix's name into the name of its scales. Values are multiplied by the
/// scales in both cases, although some tools name them inverse scales.
pub(super) const SCALES: [&str; 2] = ["_scale_inv", "_scale"];
/// Suffixes of the names of tensors that describe the quantisation of inputs, in place of `weight`,
/// or after the name of a tensor of all experts.
const INPUTS: [&str; 5] =
    ["input_scale", "activation_scale", "input_zero_point", "input_g_idx", "input_global_scale"];
/// Suffixes of the names of scales of an 8-bit KV cache.
const CACHE: [&str; 3] = [".k_scale", ".v_scale", ".kv_scale"];

/// Whether this is an FP8 type.
pub(super) fn is_fp8(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F8_E4M3 | Dtype::F8_E5M2)
}

/// Whether a tensor describes the quantisation of the KV cache, or of the inputs of one of these
/// matrices. Neither is quantised here.
pub(super) fn is_of_activations(name: &str, matrices: &BTreeSet<String>) -> bool {
    let is_input = |base: &str| {
        let is_of_all_experts = base.strip_suffix('_').is_some_and(|base| matrices.contains(base));
        is_of_all_experts || matrices.contains(&format!("{base}weight"))
    };
    CACHE.iter().any(|end| name.ends_with(end))
        || INPUTS.iter().find_map(|end| name.strip_suffix(end)).is_some_and(is_input)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_scales_are_recognised_by_their_matrix() {
        let matrices = ["a.q_proj.weight", "a.experts.gate_up_proj"].map(str::to_owned);
        let matrices = BTreeSet::from(matrices);
        let is = |name: &str| is_of_activations(name, &matrices);
        for name in [
            "a.q_proj.input_scale",
            "a.q_proj.activation_scale",
            "a.experts.gate_up_proj_activation_scale",
            "a.k_proj.k_scale",
            "a.v_scale",
        ] {
            assert!(is(name), "{name}");
        }
        for name in ["a.o_proj.input_scale", "input_scale", "a.q_proj.weight_scale", "a.scale"] {
            assert!(!is(name), "{name}");
        }
    }
}
