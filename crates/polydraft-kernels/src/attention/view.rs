//! Slots of a page that the rows of a task see.

use std::ops::Range;

use super::lines::PAGE_SLOTS;
use super::mask::Mask;

/// Positions and window of a task, which determine the visible slots.
pub(super) struct View {
    pub window: Option<usize>,
    pub positions: Range<usize>,
}

/// A slot that a row sees.
pub(super) struct Visible {
    /// Slot in its page.
    pub slot: usize,
    /// Position in the sequence.
    pub position: usize,
}

impl View {
    /// Returns the line of a position's scores.
    #[inline(always)]
    pub fn line(&self, position: usize) -> usize {
        (position - self.positions.start) / PAGE_SLOTS
    }

    /// Whether all rows see all slots of a page, as part of their context.
    #[inline(always)]
    pub fn is_full(&self, masks: &[Mask], page: usize) -> bool {
        let mut is_full = true;
        for mask in masks {
            let (context, _) = mask.within(self.window, &self.positions);
            is_full &= context.start <= page * PAGE_SLOTS && (page + 1) * PAGE_SLOTS <= context.end;
        }
        is_full
    }

    /// Returns the slots of a page that a row sees, in the order of the sequence.
    #[inline(always)]
    pub fn visible<'s>(
        &self,
        mask: &'s Mask,
        page: usize,
    ) -> impl Iterator<Item = Visible> + use<'s> {
        let (context, path) = mask.within(self.window, &self.positions);
        let slots = page * PAGE_SLOTS..(page + 1) * PAGE_SLOTS;
        let context = context.start.max(slots.start)..context.end.min(slots.end);
        let path_start = self.positions.end.min(mask.position() + 1) - path.len();
        let path = path.iter().enumerate().filter(move |(_, slot)| slots.contains(slot));
        context.map(|position| Visible { slot: position % PAGE_SLOTS, position }).chain(
            path.map(move |(i, slot)| Visible {
                slot: slot % PAGE_SLOTS,
                position: path_start + i,
            }),
        )
    }
}
