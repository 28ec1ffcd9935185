//! Names of MTP tensors in directories where they have a prefix instead of layer numbers.

use std::ops::Range;

/// Name of an MTP tensor in the form `layers.NUMBER.…`, with layer numbers from `numbers`. `None`
/// for other tensors and for layers beyond `numbers`.
pub(crate) fn rename_mtp_tensor(name: &str, layers: &str, numbers: Range<usize>) -> Option<String> {
    let name = name.strip_prefix("model.").unwrap_or(name);
    // In MiMo and Nemotron-H all MTP tensors are inside layers.
    let inner = name.strip_prefix("mtp.").or_else(|| name.strip_prefix("mtp_"))?;
    if let Some(inside) = inner.strip_prefix("layers.") {
        let (number, rest) = inside.split_once('.')?;
        let number = numbers.start.checked_add(number.parse().ok()?)?;
        return numbers.contains(&number).then(|| format!("{layers}.{number}.{rest}"));
    }
    let (part, end) = inner.split_once('.')?;
    let part = match part {
        "fc" => "eh_proj",
        "pre_fc_norm_embedding" => "enorm",
        "pre_fc_norm_hidden" => "hnorm",
        "norm" => "shared_head.norm",
        _ => return None,
    };
    Some(format!("{layers}.{}.{part}.{end}", numbers.start))
}
