//! What layers that predict further tokens (MTP) are called where their tensors have a prefix of
//! their own, and not the numbers after the model's layers.

use std::ops::Range;

/// The name of a tensor of such a layer as other families have it, whose layers' names begin with
/// `layers`: those of these numbers. Of layers beyond them no name is known.
pub(crate) fn renamed_further(name: &str, layers: &str, numbers: Range<usize>) -> Option<String> {
    let name = name.strip_prefix("model.").unwrap_or(name);
    // MiMo's and Nemotron-H's have all of theirs inside the layers.
    let inner = name.strip_prefix("mtp.").or_else(|| name.strip_prefix("mtp_"))?;
    if let Some(own) = inner.strip_prefix("layers.") {
        let (number, rest) = own.split_once('.')?;
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
