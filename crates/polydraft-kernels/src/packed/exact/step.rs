//! Columns of the inputs, four at a time.

/// Rows of x at once, at most.
pub(super) const MOST: usize = 8;
/// Rows that are few, at most.
pub(super) const FEW: usize = 32;
/// Columns of x are padded to a multiple of this.
pub(super) const STEP: usize = 4;

/// Four columns of N rows of x.
pub(in crate::packed) type Step<const N: usize> = [[f32; N]; STEP];
