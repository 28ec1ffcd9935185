//! Drafters that need no model, by name.

use std::fmt;
use std::str::FromStr;

use super::{Drafter, DrafterSettings, ngram};
use crate::{Error, ModelInfo, Result};

polydraft::registry! {
    /// A drafter without a model, and its settings. To add one, write its file and add a line here.
    ///
    /// ```
    /// use polydraft_engine::DrafterKind;
    ///
    /// assert_eq!("ngram".parse::<DrafterKind>()?, DrafterKind::all()[0]);
    /// # Ok::<(), polydraft_engine::Error>(())
    /// ```
        pub enum DrafterKind, tag "draft", settings DrafterSettings;
    /// Counts of the n-grams of the sequence so far.
    Ngram(ngram::Settings) = "ngram",
}

impl DrafterKind {
    /// Returns all kinds with their default settings.
    pub fn all() -> Vec<Self> {
        Self::NAMES.iter().filter_map(|name| Self::named(name)).collect()
    }

    /// Builds the drafter for a target.
    ///
    /// # Errors
    /// Settings out of range; tokens that the target does not have.
    pub fn build(&self, target: &ModelInfo) -> Result<Box<dyn Drafter>> {
        self.settings().build(target)
    }
}

impl fmt::Display for DrafterKind {
    /// Writes the name that users type, without settings.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DrafterKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::named(name).ok_or_else(|| {
            let expected = Self::NAMES.join(", ");
            polydraft::Error::Name { kind: "drafter", expected, got: name.to_owned() }.into()
        })
    }
}
