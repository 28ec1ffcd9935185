//! Special tokens by role, from `tokenizer_config.json` and `special_tokens_map.json`.

use std::path::Path;

use serde_json::{Map, Value};

use crate::Result;
use crate::files::read_object;

/// File with the tokenizer's settings.
pub(crate) const SETTINGS: &str = "tokenizer_config.json";

/// Settings of the tokenizer: its special tokens by role, and all other settings.
#[derive(Debug, Clone, Default)]
pub struct SpecialTokens {
    /// Token by role (`bos_token`, `eos_token`, `pad_token`, ..); roles are unique.
    roles: Vec<(String, String)>,
    /// Contents of `tokenizer_config.json`.
    pub(crate) settings: Map<String, Value>,
}

impl SpecialTokens {
    /// Creates special tokens with the role names of transformers: `bos_token` begins a text,
    /// `eos_token` ends one. The last token of a duplicate role applies.
    ///
    /// ```
    /// let roles = [("bos_token", "<s>"), ("eos_token", "</s>")];
    /// let tokens = polydraft_text::SpecialTokens::from_roles(roles);
    /// assert_eq!(tokens.role("eos_token"), Some("</s>"));
    /// ```
    pub fn from_roles<'a>(roles: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut tokens = Self::default();
        for (role, token) in roles {
            tokens.set(role, token);
        }
        tokens
    }

    /// Reads both files of a model directory; each is optional.
    ///
    /// # Errors
    /// Fails if a file cannot be read or is not a JSON object.
    pub fn read(directory: &Path) -> Result<Self> {
        let settings = read_object(&directory.join(SETTINGS))?;
        let map = read_object(&directory.join("special_tokens_map.json"))?;
        let mut tokens = Self::default();
        // tokenizer_config.json comes last: it takes precedence.
        for (role, value) in map.iter().chain(&settings) {
            if let Some(token) = content(value).filter(|_| role.ends_with("_token")) {
                tokens.set(role, token);
            }
        }
        tokens.settings = settings;
        Ok(tokens)
    }

    fn set(&mut self, role: &str, token: &str) {
        self.roles.retain(|(known, _)| known != role);
        self.roles.push((role.to_owned(), token.to_owned()));
    }

    /// Returns the token of a role.
    pub fn role(&self, role: &str) -> Option<&str> {
        self.roles().find(|(known, _)| *known == role).map(|(_, token)| token)
    }

    /// Iterates over roles and their tokens, as chat templates see them.
    pub fn roles(&self) -> impl Iterator<Item = (&str, &str)> {
        self.roles.iter().map(|(role, token)| (role.as_str(), token.as_str()))
    }
}

/// Returns a token's string, which may be nested in an object.
fn content(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}
