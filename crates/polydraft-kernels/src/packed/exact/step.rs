//! Constants and types of the blocking of inputs.

/// Maximum number of rows of x in a group.
pub(super) const MAX_GROUP: usize = 8;
/// Maximum number of rows of a small batch.
pub(super) const MAX_SMALL_BATCH: usize = 32;
/// Number of columns of x that are processed at a time; columns are padded to a multiple of it.
pub(super) const STEP: usize = 4;

/// [`STEP`] columns of N rows of x.
pub(in crate::packed) type Step<const N: usize> = [[f32; N]; STEP];
