//! Names of tensors in one form of files and in another.

/// What tensors are called here, and in a file; without `.weight` or `.bias` at the end where the
/// file's have one too, and `#` for the number of a layer.
pub(crate) type OtherNames = &'static [(&'static str, &'static str)];

/// The file's name of a tensor.
pub(super) fn of_file(names: OtherNames, name: &str) -> String {
    renamed(name, names.iter().copied())
}

/// What a file's tensor is called here.
pub(super) fn of_ours(names: OtherNames, name: &str) -> String {
    renamed(name, names.iter().map(|(ours, file)| (*file, *ours)))
}

/// By the pair that begins with the name; itself if there is none.
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
    fn names_go_both_ways() {
        const NAMES: OtherNames = &[
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
            assert_eq!(of_file(NAMES, ours), file);
            assert_eq!(of_ours(NAMES, file), ours);
        }
        for other in ["norm.scale", "layers.x.self_attn.q_proj.weight", "selector", ""] {
            assert_eq!(of_file(NAMES, other), other);
            assert_eq!(of_ours(NAMES, other), other);
        }
    }
}
