//! Kinds of draft heads.

use std::path::Path;

use super::block::load::is_block_head;
use super::load::is_head;
use super::source;

/// A kind of draft head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadKind {
    /// Token by token, from the target's hidden states: EAGLE, or MTP layers in a file of their own
    /// ([`load_head`](crate::load_head)).
    Autoregressive,
    /// Several tokens in one pass: DFlash, DSpark ([`load_block_head`](crate::load_block_head)).
    Block,
    /// A small model that reads the target's KV cache ([`load_head`](crate::load_head)).
    Assistant,
}

/// Returns the kind of draft head in a directory or a GGUF file; `None` for a model.
pub fn head_kind(path: &Path) -> Option<HeadKind> {
    if !is_head(path) {
        return None;
    }
    Some(match source::assistant(path) {
        Ok(Some(_)) => HeadKind::Assistant,
        _ if is_block_head(path) => HeadKind::Block,
        _ => HeadKind::Autoregressive,
    })
}
