//! Passes of few widths.
//!
//! llama.cpp keeps the graph of a pass where the next has as many tokens, outputs and sequences,
//! and a GPU then replays what it captured of it; another width costs several times as much as the
//! pass itself ([`Padding`]). A tree's size changes from step to step, so its passes are filled up
//! with tokens of a sequence that nobody reads, which the cache forgets again.

use crate::native::{Batch, Context, Id, has_gpu};
use crate::{LlamaOptions, Padding};

/// Tokens of a pass. Up to 8 share one kernel of llama.cpp's for few tokens.
const WIDTHS: [usize; 4] = [8, 16, 32, 64];

/// Whether passes are to be filled up.
pub(super) fn pays(options: &LlamaOptions) -> bool {
    match options.padding {
        Padding::On => true,
        Padding::Off => false,
        Padding::Auto => options.gpu_layers != Some(0) && has_gpu(),
    }
}

/// Fills passes up.
#[derive(Debug)]
pub(super) struct Filler {
    id: Id,
}

impl Filler {
    /// Its tokens get an id that no sequence has.
    pub fn new(id: Id) -> Self {
        Self { id }
    }

    /// Adds what a pass lacks, of at most `most` tokens. One token is a width of its own, and a
    /// prompt's pass, most of whose logits nobody wants, is rare.
    pub fn fill(&self, batch: &mut Batch, most: usize) {
        let own = batch.len();
        if own < 2 || 2 * batch.wanted() < own {
            return;
        }
        let Some(width) = WIDTHS.into_iter().find(|width| own <= *width && *width <= most) else {
            return;
        };
        for place in 0..width - own {
            batch.add(0, place, &[self.id], true);
        }
    }

    /// Takes its tokens from the cache.
    pub fn forget(&self, context: &mut Context) {
        context.remove(self.id, 0);
    }
}
