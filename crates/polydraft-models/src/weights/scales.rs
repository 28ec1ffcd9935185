//! Which tensors of a directory have scales, and of what.

use std::collections::BTreeSet;

use safetensors::tensor::Dtype;

/// What follows a matrix's name in that of its scales, whatever the directory's maker calls the
/// inverse: all of them are what numbers are multiplied by.
pub(super) const SCALES: [&str; 2] = ["_scale_inv", "_scale"];
/// What follows its name without `weight` in that of what inputs were rounded with; and what may
/// follow that of a tensor with all experts.
const INPUTS: [&str; 5] =
    ["input_scale", "activation_scale", "input_zero_point", "input_g_idx", "input_global_scale"];
/// Ends of names of scales of a KV cache in 8 bits.
const CACHE: [&str; 3] = [".k_scale", ".v_scale", ".kv_scale"];

/// Whether a tensor of this type is such a matrix.
pub(super) fn is_fp8(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F8_E4M3 | Dtype::F8_E5M2)
}

/// Whether a tensor says how inputs, or the KV cache, were rounded, beside a matrix of one of
/// these names. Here they are not rounded.
pub(super) fn is_of_activations(name: &str, matrices: &BTreeSet<String>) -> bool {
    let is_input = |base: &str| {
        let of_all = base.strip_suffix('_').is_some_and(|base| matrices.contains(base));
        of_all || matrices.contains(&format!("{base}weight"))
    };
    CACHE.iter().any(|end| name.ends_with(end))
        || INPUTS.iter().find_map(|end| name.strip_suffix(end)).is_some_and(is_input)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_of_inputs_are_known_by_their_matrix() {
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
