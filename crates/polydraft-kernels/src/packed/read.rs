//! Sources of a matrix's rows.

use std::sync::{Mutex, OnceLock, PoisonError};

use half::{bf16, f16};
use polydraft_gguf::TensorType;

/// Source of a matrix's rows.
pub trait ReadRows<E>: Sync {
    /// Reads full rows in f32, starting at row `first`.
    ///
    /// # Errors
    /// Rows that cannot be read.
    fn f32(&self, first: usize, values: &mut [f32]) -> Result<(), E>;

    /// Reads full rows in f16, starting at row `first`.
    ///
    /// # Errors
    /// Rows that cannot be read.
    fn f16(&self, first: usize, values: &mut [f16]) -> Result<(), E>;

    /// Reads full rows in bf16, starting at row `first`.
    ///
    /// # Errors
    /// Rows that cannot be read.
    fn bf16(&self, first: usize, values: &mut [bf16]) -> Result<(), E>;

    /// Returns a reader of quantized blocks, if the rows are stored as blocks of this type.
    fn blocks(&self, _kind: TensorType) -> Option<&dyn ReadBlocks<E>> {
        None
    }
}

/// Source of rows in quantized blocks of a ggml file.
pub trait ReadBlocks<E>: Sync {
    /// Reads full rows of `width` bytes each, starting at row `first`.
    ///
    /// # Errors
    /// Rows that cannot be read.
    fn read(&self, first: usize, width: usize, bytes: &mut [u8]) -> Result<(), E>;

    /// Returns the error for a scale that is not finite.
    fn not_finite_error(&self, row: usize, got: f32) -> E;
}

/// Marker for an error that is stored in an [`ErrorSlot`].
#[derive(Debug)]
pub(super) struct Failed;

/// Storage for the first error of a load.
///
/// It keeps the error type of the caller out of the functions that build matrices. So these are
/// compiled once in this crate, together with the products, instead of again in every crate that
/// loads matrices.
#[derive(Debug)]
pub(super) struct ErrorSlot<E>(Mutex<Option<E>>);

impl<E> ErrorSlot<E> {
    pub fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Stores an error if it is the first.
    pub fn store(&self, error: E) -> Failed {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        Failed
    }

    /// Returns the stored error.
    ///
    /// # Panics
    /// No error was stored.
    pub fn take(self, Failed: Failed) -> E {
        let error = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        error.expect("every `Failed` comes from `store`")
    }
}

/// Rows whose errors are stored in an [`ErrorSlot`].
pub(super) struct Rows<'r, E, R> {
    rows: &'r R,
    /// Type of the blocks that are read.
    kind: OnceLock<TensorType>,
    errors: &'r ErrorSlot<E>,
}

impl<'r, E, R: ReadRows<E>> Rows<'r, E, R> {
    pub fn new(rows: &'r R, errors: &'r ErrorSlot<E>) -> Self {
        Self { rows, kind: OnceLock::new(), errors }
    }

    fn block_reader(&self) -> Option<&dyn ReadBlocks<E>> {
        self.rows.blocks(*self.kind.get()?)
    }
}

impl<E: Send, R: ReadRows<E>> ReadRows<Failed> for Rows<'_, E, R> {
    fn f32(&self, first: usize, values: &mut [f32]) -> Result<(), Failed> {
        self.rows.f32(first, values).map_err(|error| self.errors.store(error))
    }

    fn f16(&self, first: usize, values: &mut [f16]) -> Result<(), Failed> {
        self.rows.f16(first, values).map_err(|error| self.errors.store(error))
    }

    fn bf16(&self, first: usize, values: &mut [bf16]) -> Result<(), Failed> {
        self.rows.bf16(first, values).map_err(|error| self.errors.store(error))
    }

    fn blocks(&self, kind: TensorType) -> Option<&dyn ReadBlocks<Failed>> {
        self.rows.blocks(kind)?;
        // A format has one block type, so later calls have the same type.
        (*self.kind.get_or_init(|| kind) == kind).then_some(self)
    }
}

impl<E: Send, R: ReadRows<E>> ReadBlocks<Failed> for Rows<'_, E, R> {
    fn read(&self, first: usize, width: usize, bytes: &mut [u8]) -> Result<(), Failed> {
        let blocks = self.block_reader().expect("checked by `blocks`");
        blocks.read(first, width, bytes).map_err(|error| self.errors.store(error))
    }

    fn not_finite_error(&self, row: usize, got: f32) -> Failed {
        let blocks = self.block_reader().expect("checked by `blocks`");
        self.errors.store(blocks.not_finite_error(row, got))
    }
}
