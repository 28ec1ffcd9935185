//! Positions and kinds of text that is inserted in a template's tags.

use super::tokens::Token;

/// Text inserted at a position, or in place of the character there; the order of the variants
/// applies to equal positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Insertion {
    /// After the name of an [`Self::Attribute`].
    EndAttribute,
    Timed,
    Input,
    Built,
    /// After the operand of [`Self::Percent`].
    Close,
    Factor,
    Count,
    Spent,
    Joined,
    /// After a product, with [`Self::OpenName`] before it.
    JoinedProduct,
    Escaped,
    Assigned,
    Stored,
    Iterated,
    /// Before a value with [`Self::Assigned`], [`Self::Stored`] or [`Self::Iterated`] after it.
    OpenName,
    /// Before a value with [`Self::Built`] after it.
    Open,
    /// Missing part of a slice.
    Missing,
    /// In place of the brackets and colons of a slice.
    SliceBegin,
    SliceNext,
    SliceEnd,
    /// In place of `%`.
    Percent,
    /// In place of `+` without an operand before it.
    Plus,
    /// In place of the dot of an attribute, and of the bracket of a literal key.
    Attribute,
    Entry,
}

/// Iterates over the tokens from `from` on that are in no bracket.
pub(super) fn outermost(all: &[Token], from: usize) -> impl Iterator<Item = usize> {
    let next = move |at: &usize| {
        let closes = all[*at].closed_by;
        Some(if closes < all.len() { closes } else { *at } + 1).filter(|next| *next < all.len())
    };
    std::iter::successors(Some(from).filter(|from| *from < all.len()), next)
}
