//! Special tokens by role, from `tokenizer_config.json` and `special_tokens_map.json`.

use std::path::Path;

use serde_json::{Map, Value};

use crate::{Error, Result};

/// What the tokenizer's settings say besides the tokenizer itself.
#[derive(Debug, Default)]
pub(crate) struct SpecialTokens {
    /// Begins a text.
    pub begin: Option<String>,
    /// Ends a text.
    pub end: Option<String>,
    /// The others, by role.
    others: Vec<(String, String)>,
    /// All of `tokenizer_config.json`.
    pub settings: Map<String, Value>,
}

impl SpecialTokens {
    pub fn read(directory: &Path) -> Result<Self> {
        let settings = read_object(directory, "tokenizer_config.json")?;
        let map = read_object(directory, "special_tokens_map.json")?;
        let mut tokens = Self::default();
        // The first file wins where both name a role.
        for (role, value) in map.into_iter().chain(settings.clone()) {
            let Some(token) = content(&value).filter(|_| role.ends_with("_token")) else { continue };
            match role.as_str() {
                "bos_token" => tokens.begin = Some(token),
                "eos_token" => tokens.end = Some(token),
                _ => {
                    tokens.others.retain(|(known, _)| *known != role);
                    tokens.others.push((role, token));
                }
            }
        }
        tokens.settings = settings;
        Ok(tokens)
    }

    /// Every token that has a role.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        self.begin.iter().chain(&self.end).chain(self.others.iter().map(|(_, t)| t)).map(String::as_str)
    }

    /// By role, as chat templates see them.
    pub fn roles(&self) -> impl Iterator<Item = (&str, &str)> {
        let named = [("bos_token", &self.begin), ("eos_token", &self.end)];
        let named = named.into_iter().filter_map(|(role, token)| Some((role, token.as_deref()?)));
        named.chain(self.others.iter().map(|(role, token)| (role.as_str(), token.as_str())))
    }
}

/// A token is a string, or an object with the string inside.
fn content(value: &Value) -> Option<String> {
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}

/// The fields of a file, none if there is no such file.
pub(crate) fn read_object(directory: &Path, name: &str) -> Result<Map<String, Value>> {
    let path = directory.join(name);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Map::new()),
        Err(source) => return Err(Error::Read { path, source }),
    };
    serde_json::from_str(&text)
        .map_err(|e| Error::File { path, problem: format!("expected a JSON object: {e}") })
}
