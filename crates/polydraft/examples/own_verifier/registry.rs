//! The line that gives the verifier its name, and its place in every loop over the registry. In the
//! library that line is one of `VerifierKind` in `verify.rs`.

use polydraft::registry::NoSettings;
use polydraft::verify::VerifierSettings;
use polydraft::{Result, Verifier};

use crate::random_draft;

polydraft::registry! {
    /// Custom verifiers.
    pub enum OwnVerifier, tag "verifier", settings VerifierSettings;
    /// One draft of each node, taken at random.
    RandomDraft(NoSettings<random_draft::RandomDraft>) = "random-draft",
}

impl OwnVerifier {
    /// All of them with their default settings.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::NAMES.iter().filter_map(|name| Self::named(name))
    }

    /// The working verifier.
    ///
    /// # Errors
    /// Settings out of range.
    pub fn build(&self) -> Result<Box<dyn Verifier>> {
        self.settings().build()
    }
}
