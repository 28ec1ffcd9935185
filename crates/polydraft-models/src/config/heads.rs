//! The heads of each layer, and whose KV cache it attends to.

use super::{Blocks, Config};
use crate::cache::CachePlace;

/// The heads of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadShape {
    /// Heads of keys and of values; it divides those of queries.
    pub key_value_heads: usize,
    /// Width of a head.
    pub head: usize,
    /// Whether values are what keys are before these are normed and turned.
    pub values_are_keys: bool,
}

impl Config {
    /// Those of layers with the window, or of those without.
    pub fn heads_when(&self, windowed: bool) -> HeadShape {
        let Self { key_value_heads, head, .. } = *self;
        let plain = HeadShape { key_value_heads, head, values_are_keys: false };
        self.attention.full.filter(|_| !windowed).unwrap_or(plain)
    }

    /// Those of a layer.
    pub(crate) fn heads_of(&self, layer: usize) -> HeadShape {
        self.heads_when(self.is_windowed(layer))
    }

    /// Whether a layer attends to the KV cache of another one.
    pub(crate) fn borrows(&self, layer: usize) -> bool {
        layer < self.layers && layer >= self.layers - self.attention.borrowing
    }

    /// Whose KV cache a layer attends to; `None` where a layer that borrows finds none.
    fn lender_of(&self, layer: usize) -> Option<usize> {
        if !self.borrows(layer) {
            return Some(layer);
        }
        self.lender_when(self.is_windowed(layer))
    }

    /// The last layer with a KV cache of its own, and with a window or without one.
    pub(crate) fn lender_when(&self, windowed: bool) -> Option<usize> {
        let own = 0..self.layers - self.attention.borrowing;
        own.rev().find(|layer| self.is_windowed(*layer) == windowed)
    }

    /// What of queries, keys and values a layer makes, by the names of their matrices with their
    /// rows.
    pub(crate) fn made_in(&self, layer: usize) -> Vec<(&'static str, usize)> {
        let HeadShape { key_value_heads, head, values_are_keys } = self.heads_of(layer);
        let (queries, keys) = (self.heads * head, key_value_heads * head);
        let (mut rows, names) = (vec![queries], self.names.query_key_value);
        if !self.borrows(layer) {
            rows.push(keys);
            rows.extend((!values_are_keys).then_some(keys));
        }
        match names {
            [all] => vec![(*all, rows.iter().sum())],
            each => each.iter().copied().zip(rows).collect(),
        }
    }

    /// The layers that have a KV cache of their own.
    pub(crate) fn cached_layers(&self) -> impl Iterator<Item = usize> {
        let own = (0..self.layers).filter(|layer| !self.borrows(*layer));
        let own = own.filter(|layer| self.blocks_of(*layer) != Blocks::FeedForward);
        own.filter(|layer| self.recurrent_of(*layer).is_none())
    }

    /// Heads of a layer in the KV cache, and their width.
    pub(crate) fn cached_heads(&self, layer: usize) -> [usize; 2] {
        match &self.attention.latent {
            Some(latent) => [1, latent.cached()],
            None => {
                let HeadShape { key_value_heads, head, .. } = self.heads_of(layer);
                [key_value_heads, head]
            }
        }
    }

    /// Where what a layer attends to is; of a layer that keeps a state, which of those it is.
    pub(crate) fn place_of(&self, layer: usize) -> CachePlace {
        if self.recurrent_of(layer).is_some() {
            let before = (0..layer).filter(|other| self.recurrent_of(*other).is_some());
            return CachePlace { shape: 0, layer: before.count() };
        }
        let lender = self.lender_of(layer).unwrap_or(layer);
        let own = self.cached_heads(lender);
        let mut shapes: Vec<[usize; 2]> = Vec::new();
        let mut before = 0;
        for other in self.cached_layers().take_while(|other| *other < lender) {
            let shape = self.cached_heads(other);
            before += usize::from(shape == own);
            if !shapes.contains(&shape) {
                shapes.push(shape);
            }
        }
        let shape = shapes.iter().position(|shape| *shape == own).unwrap_or(shapes.len());
        CachePlace { shape, layer: before }
    }

    /// Bytes that the KV cache of one token takes, at `width` bytes a number.
    pub fn cache_bytes(&self, width: usize) -> u64 {
        let numbers = |layer| self.cached_heads(layer).iter().product::<usize>();
        2 * (self.cached_layers().map(numbers).sum::<usize>() * width) as u64
    }

    /// That each layer has heads that fit together, and something to attend to.
    pub(super) fn check_heads(&self) -> Result<(), String> {
        let heads = self.heads;
        for HeadShape { key_value_heads, .. } in [true, false].map(|is| self.heads_when(is)) {
            if !heads.is_multiple_of(key_value_heads) {
                return Err(format!(
                    "num_key_value_heads: expected a divisor of num_attention_heads = {heads}, \
                     got {key_value_heads}"
                ));
            }
        }
        let Self { layers, attention, .. } = self;
        let borrowing = attention.borrowing;
        if borrowing >= *layers {
            return Err(format!(
                "num_kv_shared_layers: expected fewer than the {layers} layers, got {borrowing}"
            ));
        }
        match (0..*layers).find(|layer| self.lender_of(*layer).is_none()) {
            None => Ok(()),
            Some(layer) => Err(format!(
                "num_kv_shared_layers: expected a layer before the last {borrowing} of the kind of \
                 layer {layer}, got none"
            )),
        }
    }
}
