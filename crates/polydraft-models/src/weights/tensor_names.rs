//! Maps names of tensors between directories and GGUF files.

/// Pairs of a tensor's name in the model and in the file: without `.weight` or `.bias` at the end
/// where the file's names end so too, and with `#` for the number of a layer.
pub(crate) type TensorNames = &'static [(&'static str, &'static str)];

/// Name of a model's tensor in the file.
pub(super) fn file_name(names: TensorNames, name: &str) -> String {
    renamed(name, names.iter().copied())
}

/// Name of a file's tensor in the model.
pub(super) fn model_name(names: TensorNames, name: &str) -> String {
    renamed(name, names.iter().map(|(ours, file)| (*file, *ours)))
}

/// Renames by the pair whose first name matches; returns unmatched names unchanged.
fn renamed(
    name: &str,
    pairs: impl Iterator<Item = (&'static str, &'static str)> + Clone,
) -> String {
    let mut number = None;
    let plain: Vec<&str> = name
        .split('.')
        .map(|part| match part.parse::<u32>() {
            Ok(_) if number.is_none() => {
                number = Some(part);
                "#"
            }
            _ => part,
        })
        .collect();
    let plain = plain.join(".");
    let with_number = |pattern: &str| pattern.replace('#', number.unwrap_or("#"));
    let find = |wanted: &str| pairs.clone().find(|(from, _)| *from == wanted);
    if let Some((_, to)) = find(&plain) {
        return with_number(to);
    }
    let found = plain.rsplit_once('.').and_then(|(base, end)| {
        let (_, to) = find(base).filter(|_| ["weight", "bias"].contains(&end))?;
        Some(format!("{}.{end}", with_number(to)))
    });
    found.unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_map_both_ways() {
        const NAMES: TensorNames = &[
            ("layers.#.self_attn.q_proj", "blk.#.attn_q"),
            ("norm", "output_norm"),
            ("codebook", "selector.weight"),
        ];
        for (ours, file) in [
            ("layers.12.self_attn.q_proj.weight", "blk.12.attn_q.weight"),
            ("layers.0.self_attn.q_proj.bias", "blk.0.attn_q.bias"),
            ("norm.weight", "output_norm.weight"),
            ("codebook", "selector.weight"),
        ] {
            assert_eq!(file_name(NAMES, ours), file);
            assert_eq!(model_name(NAMES, file), ours);
        }
        for other in ["norm.scale", "layers.x.self_attn.q_proj.weight", "selector", ""] {
            assert_eq!(file_name(NAMES, other), other);
            assert_eq!(model_name(NAMES, other), other);
        }
    }
}
