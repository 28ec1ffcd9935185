//! Chat template options: another template, and variables.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use polydraft_runtime::TemplateOptions;
use serde_json::{Map, Value};

/// Options for the chat template.
#[derive(Args, Debug, Clone, Default)]
pub struct TemplateArgs {
    /// File with a Jinja chat template to use instead of the model's.
    #[arg(hide_short_help = true, long, value_name = "FILE", help_heading = "Chat")]
    chat_template: Option<PathBuf>,
    /// Variables for the chat template, as a JSON object.
    ///
    /// For example '{"enable_thinking": false}' for models that would think first.
    #[arg(hide_short_help = true, long, value_name = "JSON", help_heading = "Chat")]
    chat_template_kwargs: Option<Variables>,
    /// Set the template variables that llama-server sets.
    ///
    /// transformers does not set them: today's date as date_string (26 Jul 2024) and datetime (Jul
    /// 26 2024), and the tools as JSON in functions.
    #[arg(hide_short_help = true, long, help_heading = "Chat")]
    chat_template_extras: bool,
}

#[derive(Debug, Clone)]
struct Variables(Map<String, Value>);

impl FromStr for Variables {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        object(text, EXAMPLE).map(Self)
    }
}

/// Parses a JSON object; errors show `example`.
pub fn object(text: &str, example: &str) -> Result<Map<String, Value>, String> {
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(other) => Err(format!("expected a JSON object, such as {example}; got {other}")),
        Err(error) => Err(format!("expected a JSON object, such as {example}: {error}")),
    }
}

const EXAMPLE: &str = r#"{"enable_thinking": false}"#;

impl TemplateArgs {
    /// Returns the first of these options that is given.
    pub fn first_given(&self) -> Option<&'static str> {
        let variables = self.chat_template_kwargs.as_ref().map(|_| "--chat-template-kwargs");
        let extras = self.chat_template_extras.then_some("--chat-template-extras");
        self.chat_template.as_ref().map(|_| "--chat-template").or(variables).or(extras)
    }

    /// Returns the options as a description.
    pub fn options(&self) -> TemplateOptions {
        TemplateOptions {
            file: self.chat_template.clone(),
            variables: self
                .chat_template_kwargs
                .clone()
                .map(|first_given| first_given.0)
                .unwrap_or_default(),
            extras: self.chat_template_extras,
        }
    }
}
