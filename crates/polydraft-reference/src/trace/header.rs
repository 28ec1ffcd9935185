//! What a whole trace has in common: `trace.json`.

use std::path::Path;

use polydraft::{PolicyKind, Sampling};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::trace::{Error, Result};

/// The name of the format.
pub const FORMAT: &str = "polydraft-trace";
/// Its version.
pub const VERSION: u32 = 1;

/// The models, the settings, and who began to record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// The target: a name, and what tells it from others of that name.
    pub target: String,
    /// What drafted.
    pub draft: String,
    /// Number of tokens.
    pub vocabulary: usize,
    /// How the target's logits became laws.
    pub sampling: Sampling,
    /// How the draft's did.
    pub draft_sampling: Sampling,
    /// What was drafted.
    pub tree: PolicyKind,
    /// Probability up to which the likeliest tokens of each law are kept, in (0, 1]; at 1 laws are
    /// exact.
    pub mass: f64,
    /// Texts behind each prompt.
    pub texts: u32,
    /// Tokens of each text, at most.
    pub max_tokens: u32,
    /// Tokens of a text from one recorded position to the next.
    pub every: u32,
    /// Of texts and drafts.
    pub seed: u64,
    /// The program that began to record: version, commit, compiler, machine. What another adds is
    /// marked in its shards.
    pub made: Value,
}

impl Header {
    /// Checks every field.
    ///
    /// # Errors
    /// Names the first that makes no sense.
    pub fn validate(&self, place: &str) -> Result<()> {
        let check = |valid: bool, field: &str, expected: &str, got: String| match valid {
            true => Ok(()),
            false => Err(Error::content(format!("{place}: {field}"), expected, got)),
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
            [("texts", self.texts), ("max_tokens", self.max_tokens), ("every", self.every)]
        {
            check((1..=1 << 20).contains(&value), field, "from 1 to 2^20", value.to_string())?;
        }
        let probs = |error| Error::EmittedDistribution { place: place.to_owned(), error };
        self.sampling.validate().map_err(probs)?;
        self.draft_sampling.validate().map_err(probs)?;
        self.tree.build().map_err(probs)?;
        Ok(())
    }

    /// That two traces can be looked at as one, in all but their seeds.
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
                ("probability of laws kept", header.mass.to_string()),
                ("texts behind a prompt", header.texts.to_string()),
                ("tokens of a text", header.max_tokens.to_string()),
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
