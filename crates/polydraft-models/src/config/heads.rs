//! Attention heads and KV cache of each layer.

use super::{Config, LayerBlocks};
use crate::cache::CacheIndex;

/// Attention heads of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadShape {
    /// Key and value heads, a divisor of the number of query heads.
    pub key_value_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Whether values equal the keys before norm and rotation.
    pub values_are_keys: bool,
}

impl Config {
    /// Heads of layers with the sliding window, or of layers without it.
    pub fn head_shape_for(&self, windowed: bool) -> HeadShape {
        let Self { key_value_heads, head_dim, .. } = *self;
        let plain = HeadShape { key_value_heads, head_dim, values_are_keys: false };
        self.attention.full.filter(|_| !windowed).unwrap_or(plain)
    }

    /// Heads of a layer.
    pub(crate) fn head_shape(&self, layer: usize) -> HeadShape {
        self.head_shape_for(self.is_windowed(layer))
    }

    /// Whether a layer attends to the KV cache of another layer.
    pub(crate) fn shares_kv_cache(&self, layer: usize) -> bool {
        layer < self.layers && layer >= self.layers - self.attention.shared_kv_layers
    }

    /// The layer whose KV cache a layer attends to; `None` if a sharing layer finds none.
    fn kv_cache_layer(&self, layer: usize) -> Option<usize> {
        if !self.shares_kv_cache(layer) {
            return Some(layer);
        }
        self.last_cached_layer(self.is_windowed(layer))
    }

    /// The last layer that has its own KV cache and is of the given kind (with a window or not).
    pub(crate) fn last_cached_layer(&self, windowed: bool) -> Option<usize> {
        let candidates = 0..self.layers - self.attention.shared_kv_layers;
        candidates.rev().find(|layer| self.is_windowed(*layer) == windowed)
    }

    /// Names of the matrices that project to queries, keys and values in a layer, with their rows.
    pub(crate) fn qkv_matrices(&self, layer: usize) -> Vec<(&'static str, usize)> {
        let HeadShape { key_value_heads, head_dim, values_are_keys } = self.head_shape(layer);
        let (queries, keys) = (self.heads * head_dim, key_value_heads * head_dim);
        let (mut rows, names) = (vec![queries], self.names.query_key_value);
        if !self.shares_kv_cache(layer) {
            rows.push(keys);
            rows.extend((!values_are_keys).then_some(keys));
        }
        match names {
            [all] => vec![(*all, rows.iter().sum())],
            each => each.iter().copied().zip(rows).collect(),
        }
    }

    /// Layers that have their own KV cache.
    pub(crate) fn cached_layers(&self) -> impl Iterator<Item = usize> {
        let layers = (0..self.layers).filter(|layer| !self.shares_kv_cache(*layer));
        let layers = layers.filter(|layer| self.blocks_of(*layer) != LayerBlocks::FeedForward);
        layers.filter(|layer| self.recurrent_of(*layer).is_none())
    }

    /// Number and width of the heads of a layer in the KV cache.
    pub(crate) fn cached_heads(&self, layer: usize) -> [usize; 2] {
        match &self.attention.latent {
            Some(latent) => [1, latent.cached()],
            None => {
                let HeadShape { key_value_heads, head_dim, .. } = self.head_shape(layer);
                [key_value_heads, head_dim]
            }
        }
    }

    /// Index in the cache of the layer that a layer attends to; for a recurrent layer, its number
    /// among the recurrent layers.
    pub(crate) fn cache_index(&self, layer: usize) -> CacheIndex {
        if self.recurrent_of(layer).is_some() {
            let before = (0..layer).filter(|other| self.recurrent_of(*other).is_some());
            return CacheIndex { shape: 0, layer: before.count() };
        }
        let source = self.kv_cache_layer(layer).unwrap_or(layer);
        let heads = self.cached_heads(source);
        let mut shapes: Vec<[usize; 2]> = Vec::new();
        let mut before = 0;
        for other in self.cached_layers().take_while(|other| *other < source) {
            let shape = self.cached_heads(other);
            before += usize::from(shape == heads);
            if !shapes.contains(&shape) {
                shapes.push(shape);
            }
        }
        let shape = shapes.iter().position(|shape| *shape == heads).unwrap_or(shapes.len());
        CacheIndex { shape, layer: before }
    }

    /// Bytes of the KV cache per token, at `width` bytes per number.
    pub fn cache_bytes(&self, width: usize) -> u64 {
        let numbers = |layer| self.cached_heads(layer).iter().product::<usize>();
        2 * (self.cached_layers().map(numbers).sum::<usize>() * width) as u64
    }

    /// Checks that each layer has consistent heads and a KV cache to attend to.
    pub(super) fn check_heads(&self) -> Result<(), String> {
        let heads = self.heads;
        for HeadShape { key_value_heads, .. } in [true, false].map(|is| self.head_shape_for(is)) {
            if !heads.is_multiple_of(key_value_heads) {
                return Err(format!(
                    "num_key_value_heads: expected a divisor of num_attention_heads = {heads}, \
                     got {key_value_heads}"
                ));
            }
        }
        let Self { layers, attention, .. } = self;
        let shared = attention.shared_kv_layers;
        if shared >= *layers {
            return Err(format!(
                "num_kv_shared_layers: expected fewer than the {layers} layers, got {shared}"
            ));
        }
        match (0..*layers).find(|layer| self.kv_cache_layer(*layer).is_none()) {
            None => Ok(()),
            Some(layer) => Err(format!(
                "num_kv_shared_layers: expected a layer before the last {shared} of the kind of \
                 layer {layer}, got none"
            )),
        }
    }
}
