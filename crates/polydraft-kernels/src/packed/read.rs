//! Where a matrix's rows come from.

use std::sync::{Mutex, OnceLock, PoisonError};

use half::{bf16, f16};
use polydraft_gguf::TensorType;

/// Where rows come from, in the type that a matrix is stored in.
pub trait ReadRows<E>: Sync {
    /// Reads whole rows from row `first` on.
    ///
    /// # Errors
    /// Rows that cannot be read.
    fn f32(&self, first: usize, values: &mut [f32]) -> Result<(), E>;

    /// Likewise.
    ///
    /// # Errors
    /// As for [`f32`](Self::f32).
    fn f16(&self, first: usize, values: &mut [f16]) -> Result<(), E>;

    /// Likewise.
    ///
    /// # Errors
    /// As for [`f32`](Self::f32).
    fn bf16(&self, first: usize, values: &mut [bf16]) -> Result<(), E>;

    /// The rows in blocks of this type, if a file has them so.
    fn blocks(&self, _kind: TensorType) -> Option<&dyn ReadBlocks<E>> {
        None
    }
}

/// Rows in blocks, as a ggml file has them.
pub trait ReadBlocks<E>: Sync {
    /// Reads whole rows, of `width` bytes each, from row `first` on.
    ///
    /// # Errors
    /// Rows that cannot be read.
    fn read(&self, first: usize, width: usize, bytes: &mut [u8]) -> Result<(), E>;

    /// The error of a scale that is not finite.
    fn not_finite(&self, row: usize, got: f32) -> E;
}

/// Something failed, and the error was put aside.
#[derive(Debug)]
pub(super) struct Lost;

/// The first error, put aside: so matrices are made by functions that know of none, which are
/// compiled here, with all products, and not once more in every crate that loads.
#[derive(Debug)]
pub(super) struct Aside<E>(Mutex<Option<E>>);

impl<E> Aside<E> {
    pub fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Keeps an error if it is the first.
    pub fn keep(&self, error: E) -> Lost {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        Lost
    }

    /// The error that was lost.
    ///
    /// # Panics
    /// None was kept, by whoever made a [`Lost`].
    pub fn found(self, Lost: Lost) -> E {
        let kept = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        kept.expect("what is lost was kept")
    }
}

/// Rows whose errors are put aside.
pub(super) struct Rows<'r, E, R> {
    rows: &'r R,
    /// The type of the blocks that are asked for.
    kind: OnceLock<TensorType>,
    errors: &'r Aside<E>,
}

impl<'r, E, R: ReadRows<E>> Rows<'r, E, R> {
    pub fn new(rows: &'r R, errors: &'r Aside<E>) -> Self {
        Self { rows, kind: OnceLock::new(), errors }
    }

    fn of(&self) -> Option<&dyn ReadBlocks<E>> {
        self.rows.blocks(*self.kind.get()?)
    }
}

impl<E: Send, R: ReadRows<E>> ReadRows<Lost> for Rows<'_, E, R> {
    fn f32(&self, first: usize, values: &mut [f32]) -> Result<(), Lost> {
        self.rows.f32(first, values).map_err(|error| self.errors.keep(error))
    }

    fn f16(&self, first: usize, values: &mut [f16]) -> Result<(), Lost> {
        self.rows.f16(first, values).map_err(|error| self.errors.keep(error))
    }

    fn bf16(&self, first: usize, values: &mut [bf16]) -> Result<(), Lost> {
        self.rows.bf16(first, values).map_err(|error| self.errors.keep(error))
    }

    fn blocks(&self, kind: TensorType) -> Option<&dyn ReadBlocks<Lost>> {
        self.rows.blocks(kind)?;
        // A format has blocks of one type.
        (*self.kind.get_or_init(|| kind) == kind).then_some(self)
    }
}

impl<E: Send, R: ReadRows<E>> ReadBlocks<Lost> for Rows<'_, E, R> {
    fn read(&self, first: usize, width: usize, bytes: &mut [u8]) -> Result<(), Lost> {
        let blocks = self.of().expect("blocks were there");
        blocks.read(first, width, bytes).map_err(|error| self.errors.keep(error))
    }

    fn not_finite(&self, row: usize, got: f32) -> Lost {
        self.errors.keep(self.of().expect("blocks were there").not_finite(row, got))
    }
}
