//! The target of a run, found.

use std::path::{Path, PathBuf};

use crate::backend::BackendKind;

/// The place of a target, and the backend that computes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedTarget {
    /// The directory or the GGUF file.
    pub path: PathBuf,
    /// The backend.
    pub backend: BackendKind,
}

impl ResolvedTarget {
    /// Whether llama.cpp computes it.
    pub fn is_on_llama(&self) -> bool {
        self.backend == BackendKind::Llama
    }

    /// The directory or the GGUF file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
