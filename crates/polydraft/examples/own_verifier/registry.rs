//! The line that registers the verifier under its name. In the library it would be a line of
//! `VerifierKind` in `verify.rs`.

use polydraft::registry::NoSettings;
use polydraft::verify::VerifierSettings;
use polydraft::{Result, Verifier};

use crate::random_draft;

polydraft::registry! {
    /// Custom verifiers.
    pub enum OwnVerifier, tag "verifier", settings VerifierSettings;
    /// Speculative sampling of one random draft per node.
    RandomDraft(NoSettings<random_draft::RandomDraft>) = "random-draft",
}

impl OwnVerifier {
    /// All verifiers with their default settings.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::NAMES.iter().filter_map(|name| Self::named(name))
    }

    /// Builds the verifier.
    ///
    /// # Errors
    /// Settings out of range.
    pub fn build(&self) -> Result<Box<dyn Verifier>> {
        self.settings().build()
    }
}
