//! The header of a trace: `trace.json`.

use std::path::Path;

use polydraft::{PolicyKind, Sampling};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::trace::{Error, Result};

/// Name of the format.
pub const FORMAT: &str = "polydraft-trace";
/// Version of the format.
pub const VERSION: u32 = 1;

/// Models, settings, and the program that started the recording.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// Target: its name, and properties that distinguish it from other models of this name.
    pub target: String,
    /// Drafter, likewise.
    pub draft: String,
    /// Size of the vocabulary.
    pub vocabulary: usize,
    /// Sampling settings that convert the target's logits to distributions.
    pub sampling: Sampling,
    /// Sampling settings of the draft.
    pub draft_sampling: Sampling,
    /// The drafted tree.
    pub tree: PolicyKind,
    /// Probability mass up to which the likeliest tokens of each distribution are stored, in (0,
    /// 1]; at 1 distributions are exact.
    pub mass: f64,
    /// Number of sequences after each prompt.
    #[serde(rename = "texts")]
    pub sequences: u32,
    /// Maximum number of tokens of each sequence.
    pub max_tokens: u32,
    /// Number of tokens between recorded positions.
    pub every: u32,
    /// Seed of sequences and drafts.
    pub seed: u64,
    /// Program that started the recording: version, commit, compiler, machine. Shards appended by
    /// another program contain that program's name.
    pub made: Value,
}

impl Header {
    /// Checks every field.
    ///
    /// # Errors
    /// Names the first field that is out of range.
    pub fn validate(&self, location: &str) -> Result<()> {
        let check = |valid: bool, field: &str, expected: &str, got: String| match valid {
            true => Ok(()),
            false => Err(Error::content(format!("{location}: {field}"), expected, got)),
        };
        check(self.format == FORMAT, "format", FORMAT, format!("{:?}", self.format))?;
        check(self.version == VERSION, "version", &VERSION.to_string(), self.version.to_string())?;
        let vocabulary = self.vocabulary;
        check(
            (1..=1 << 24).contains(&vocabulary),
            "vocabulary",
            "from 1 to 2^24",
            vocabulary.to_string(),
        )?;
        check(
            self.mass > 0.0 && self.mass <= 1.0,
            "mass",
            "above 0, at most 1",
            self.mass.to_string(),
        )?;
        for (field, value) in
            [("sequences", self.sequences), ("max_tokens", self.max_tokens), ("every", self.every)]
        {
            check((1..=1 << 20).contains(&value), field, "from 1 to 2^20", value.to_string())?;
        }
        let probs = |error| Error::EmittedDistribution { location: location.to_owned(), error };
        self.sampling.validate().map_err(probs)?;
        self.draft_sampling.validate().map_err(probs)?;
        self.tree.build().map_err(probs)?;
        Ok(())
    }

    /// Checks that two traces can be combined: their headers may differ in the seed only.
    ///
    /// # Errors
    /// The first setting in which this differs from what was `recorded` in `path`.
    pub fn belongs_with(&self, recorded: &Self, path: &Path) -> Result<()> {
        fn json(value: &impl Serialize) -> String {
            serde_json::to_string(value).unwrap_or_default()
        }
        let fields = |header: &Self| {
            [
                ("target", header.target.clone()),
                ("draft", header.draft.clone()),
                ("vocabulary", header.vocabulary.to_string()),
                ("sampling", json(&header.sampling)),
                ("sampling of the draft", json(&header.draft_sampling)),
                ("tree", json(&header.tree)),
                ("stored probability mass", header.mass.to_string()),
                ("sequences after a prompt", header.sequences.to_string()),
                ("tokens of a sequence", header.max_tokens.to_string()),
                ("tokens between positions", header.every.to_string()),
            ]
        };
        for ((field, recorded), (_, got)) in fields(recorded).into_iter().zip(fields(self)) {
            if recorded != got {
                return Err(Error::Other { path: path.to_owned(), field, recorded, got });
            }
        }
        Ok(())
    }
}
