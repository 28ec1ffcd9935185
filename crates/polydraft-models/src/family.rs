//! The families of models: how each one's `config.json` is read, and what its tensors are called.
//!
//! A new family is a file here and an entry in [`FAMILIES`]; the decoder itself knows none of them
//! by name.

pub(crate) mod common;
mod gemma2;
mod gemma3;
mod llama;
mod mistral;
mod opt;
mod qwen2;
mod qwen3;

use std::path::Path;

use polydraft_text::Fields;
use serde_json::Value;

use crate::config::Config;
use crate::error::{Error, Result};
use common::Family;

/// Every family that can be loaded.
pub(crate) const FAMILIES: &[Family] = &[
    llama::FAMILY,
    mistral::FAMILY,
    qwen2::FAMILY,
    qwen3::FAMILY,
    gemma2::FAMILY,
    gemma3::FAMILY,
    opt::FAMILY,
];

/// The architectures that can be loaded, as `config.json` names them.
pub fn architectures() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.architecture)
}

impl Config {
    /// Reads and checks `config.json`.
    ///
    /// # Errors
    /// A file that is missing or no such JSON; an architecture or a feature that is not known;
    /// sizes that are absurd or contradict each other. The field is named.
    pub fn read(path: &Path) -> Result<Self> {
        let text = polydraft_files::read_text(path, polydraft_files::Kind::SETTINGS)
            .map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Self::parse(&text).map_err(|problem| Error::File { path: path.to_owned(), problem })
    }

    fn parse(text: &str) -> std::result::Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let fields = Fields::of(&value)?;
        // The architecture first: another one's fields may be missing or mean something else.
        let known = || {
            let names: Vec<_> = FAMILIES.iter().map(|family| family.architecture).collect();
            format!("architectures: expected one of the known architectures ({})", names.join(", "))
        };
        let name = value.get("architectures").and_then(|a| a.get(0)).and_then(Value::as_str);
        let name = name.ok_or_else(|| format!("{}, got none", known()))?;
        let family = FAMILIES.iter().find(|family| family.architecture == name);
        let family = family.ok_or_else(|| {
            format!(
                "{}, got {name:?}; llama.cpp may run a GGUF file of it (a build with --features \
                 llama, and --backend llama)",
                known()
            )
        })?;
        let config = (family.read)(family, &fields)?;
        config.check()?;
        Ok(config)
    }
}
