//! The resolved target of a run.

use std::path::{Path, PathBuf};

use crate::backend::BackendKind;

/// Files of a target, and the backend that computes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedTarget {
    /// Directory or GGUF file.
    pub path: PathBuf,
    /// Backend that computes the target.
    pub backend: BackendKind,
}

impl ResolvedTarget {
    /// Returns whether llama.cpp computes the target.
    pub fn is_on_llama(&self) -> bool {
        self.backend == BackendKind::Llama
    }

    /// Returns the directory or GGUF file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
