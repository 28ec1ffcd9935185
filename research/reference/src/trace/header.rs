//! The header of a trace: `trace.json`.

use std::path::Path;

use polydraft::{PolicyKind, Sampling};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::trace::{Error, Result};

/// The name of the format.
pub const FORMAT: &str = "polydraft-trace";
/// Its version.
pub const VERSION: u32 = 1;

/// The models, the settings, and the program that began to record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// The target: a name, and what distinguishes it from others of that name.
    pub target: String,
    /// The drafter.
    pub draft: String,
    /// Number of tokens.
    pub vocabulary: usize,
    /// The sampling settings that turn the target's logits into distributions.
    pub sampling: Sampling,
    /// The sampling settings of the draft.
    pub draft_sampling: Sampling,
    /// The drafted tree.
    pub tree: PolicyKind,
    /// The probability mass up to which the likeliest tokens of each distribution are stored, in
    /// (0, 1]; at 1 distributions are exact.
    pub mass: f64,
    /// Sequences after each prompt.
    #[serde(rename = "texts")]
    pub sequences: u32,
    /// Tokens of each sequence, at most.
    pub max_tokens: u32,
    /// Tokens of a sequence from one recorded position to the next.
    pub every: u32,
    /// The seed of sequences and drafts.
    pub seed: u64,
    /// The program that began to record: version, commit, compiler, machine. Shards that another
    /// program appends name it.
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

    /// Checks that two traces can be read as one: they agree in all but their seeds.
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
