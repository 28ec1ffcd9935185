//! Attention by tensor operations, one text after the other: on a card.
//!
//! What a product sums in which order is the library's choice there and may differ with its shape:
//! a token's numbers are the same in any company but for rounding.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::ops::softmax_last_dim;
use candle_nn::rotary_emb::rope_thd;

use super::pass::Part;
use super::{Layer, Transformer};
use crate::Config;
use crate::cache::Cache;
use crate::rows::capped;

/// For plain layers and those with a window: `[rows, slots]`, 0 where a row sees a slot and −∞
/// elsewhere; `None` if all see all.
pub(super) type Masks = [Option<Tensor>; 2];

pub(super) fn masks(
    part: &Part,
    window: Option<usize>,
    device: &Device,
    dtype: DType,
) -> Result<Masks> {
    let last = part.sights.iter().map(|sight| sight.position()).max().unwrap_or(0);
    let plain = mask(part, None, device, dtype)?;
    Ok(match window.filter(|window| last >= *window) {
        None => [plain.clone(), plain],
        window => [plain, mask(part, window, device, dtype)?],
    })
}

fn mask(
    part: &Part,
    window: Option<usize>,
    device: &Device,
    dtype: DType,
) -> Result<Option<Tensor>> {
    let (rows, slots) = (part.tokens.len(), part.end());
    let mut values = vec![f32::NEG_INFINITY; rows * slots];
    for (values, sight) in values.chunks_exact_mut(slots).zip(&part.sights) {
        let (context, path) = sight.within(window, &(0..usize::MAX));
        values[context].fill(0.0);
        path.iter().for_each(|slot| values[*slot] = 0.0);
    }
    match values.iter().all(|value| *value == 0.0) {
        true => Ok(None),
        false => Ok(Some(Tensor::from_vec(values, (rows, slots), device)?.to_dtype(dtype)?)),
    }
}

/// The values `[rows, heads · head]` that the queries of all parts find, of queries, keys and
/// values side by side; keys and values are left in the caches.
pub(super) fn layer(
    transformer: &Transformer,
    number: usize,
    mixed: &Tensor,
    rotation: Option<&[Tensor; 2]>,
    masks: &[Masks],
    parts: &mut [Part],
) -> Result<Tensor> {
    let layer = &transformer.layers[number];
    let placed = |x: Tensor| match rotation {
        None => Ok(x),
        Some([cos, sin]) => rope_thd(&x.unsqueeze(0)?, cos, sin)?.squeeze(0),
    };
    let [queries, keys, values] = separate(transformer, layer, mixed)?;
    let all = [placed(queries)?, placed(keys)?, values];
    let mut found = Vec::with_capacity(parts.len());
    let mut row = 0;
    for (part, masks) in parts.iter().zip(masks) {
        let rows = part.tokens.len();
        let own = |x: &Tensor| x.narrow(0, row, rows);
        let own = [own(&all[0])?, own(&all[1])?, own(&all[2])?];
        let mask = masks[usize::from(layer.windowed)].as_ref();
        found.push(attend(part, number, own, mask, &transformer.config)?);
        row += rows;
    }
    Tensor::cat(&found, 0)
}

/// Queries, keys and values `[rows, their heads, head]`, contiguous, behind the norms of heads,
/// from all side by side.
fn separate(transformer: &Transformer, layer: &Layer, mixed: &Tensor) -> Result<[Tensor; 3]> {
    let Config { heads, key_value_heads, head, .. } = transformer.config;
    let part = |from: usize, heads: usize, norm: Option<usize>| {
        let x =
            mixed.narrow(1, from * head, heads * head)?.contiguous()?.reshape(((), heads, head))?;
        match norm.and_then(|norm| Some(&layer.head_norms.as_ref()?[norm])) {
            None => Ok::<_, candle_core::Error>(x),
            Some(norm) => norm.on_card(&x),
        }
    };
    let keys = part(heads, key_value_heads, Some(1))?;
    Ok([part(0, heads, Some(0))?, keys, part(heads + key_value_heads, key_value_heads, None)?])
}

/// The values `[rows, heads · head]` that a part's queries find, all of shape `[rows, some heads,
/// head]`.
fn attend(
    part: &Part,
    layer: usize,
    [queries, keys, values]: [Tensor; 3],
    mask: Option<&Tensor>,
    config: &Config,
) -> Result<Tensor> {
    let Cache::Tensors(cache) = &*part.cache else {
        candle_core::bail!("attention: expected a cache on a card, got one in memory")
    };
    let Config { heads, key_value_heads, head, .. } = *config;
    let (n, group) = (queries.dim(0)?, heads / key_value_heads);
    let by_head = |x: Tensor| x.transpose(0, 1)?.contiguous();
    let (keys, values) = cache.append(layer, &by_head(keys)?, &by_head(values)?, part.start)?;

    // Queries that share a key head form the rows of one product: [key heads, group * n, head].
    let queries = queries.reshape((n, key_value_heads, group, head))?.permute((1, 2, 0, 3))?;
    let queries = (queries.reshape((key_value_heads, group * n, head))? * config.attention.scale)?;
    let mut scores = queries.matmul(&keys.t()?)?;
    if let Some(cap) = config.attention.softcap {
        scores = capped(scores, cap)?;
    }
    if let Some(mask) = mask {
        let slots = mask.dim(1)?;
        scores = scores.reshape((heads, n, slots))?.broadcast_add(mask)?;
        scores = scores.reshape((key_value_heads, group * n, slots))?;
    }
    let attended = softmax_last_dim(&scores)?.matmul(&values)?;
    let attended = attended.reshape((key_value_heads, group, n, head))?.permute((2, 0, 1, 3))?;
    attended.reshape((n, heads * head))
}
