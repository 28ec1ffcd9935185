//! Variables for a chat template.

use std::str::FromStr;

use clap::Args;
use serde_json::{Map, Value};

/// Variables that a model's chat template reads.
#[derive(Args, Debug, Clone, Default)]
pub struct TemplateArgs {
    /// Variables for the chat template, as a JSON object, such as '{\"enable_thinking\": false}'
    /// for models that would think first.
    #[arg(long, value_name = "JSON", help_heading = "Chat")]
    chat_template_kwargs: Option<Variables>,
}

#[derive(Debug, Clone)]
struct Variables(Map<String, Value>);

impl FromStr for Variables {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match serde_json::from_str(text) {
            Ok(Value::Object(variables)) => Ok(Self(variables)),
            Ok(other) => Err(format!("expected a JSON object, such as {EXAMPLE}; got {other}")),
            Err(error) => Err(format!("expected a JSON object, such as {EXAMPLE}: {error}")),
        }
    }
}

const EXAMPLE: &str = r#"{"enable_thinking": false}"#;

impl TemplateArgs {
    /// Whether any are given.
    pub fn is_given(&self) -> bool {
        self.chat_template_kwargs.is_some()
    }

    /// The variables.
    pub fn variables(&self) -> Map<String, Value> {
        self.chat_template_kwargs.clone().map(|variables| variables.0).unwrap_or_default()
    }
}
