//! Prompts as messages of a conversation.

use crate::usage::UsageError;
use anyhow::Result;
use clap::Args;
use polydraft::Token;
use polydraft_runtime::TemplateOptions;
use polydraft_text::{Language, Message, Rendering};

use super::template::TemplateArgs;
use crate::output::show;

/// Options for prompts that are chat messages.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Chat")]
pub struct ChatArgs {
    /// Send the prompt as a chat message, with the model's chat template.
    ///
    /// Sampling options that are not given then default to the model's generation_config.json, or
    /// to temperature 0.7 and top-p 0.95 if it has none.
    #[arg(long)]
    chat: bool,
    /// System message before the prompt.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, requires = "chat")]
    system: Option<String>,
    /// Ignore generation_config.json and the chat defaults of sampling.
    #[arg(hide_short_help = true, long, requires = "chat")]
    ignore_published: bool,
    /// Print the rendered prompt to standard error.
    #[arg(hide_short_help = true, long, requires = "chat")]
    show_prompt: bool,
    #[command(flatten)]
    template: TemplateArgs,
}

impl ChatArgs {
    /// Returns the options of the chat template.
    pub fn template(&self) -> TemplateOptions {
        self.template.options()
    }

    /// Returns whether the prompt is a message of a conversation.
    pub fn is_conversation(&self) -> bool {
        self.chat
    }

    /// Encodes the prompt for a context of `context` tokens.
    pub fn encode(&self, language: &Language, prompt: &str, context: usize) -> Result<Vec<Token>> {
        if !self.chat {
            if let Some(option) = self.template.first_given() {
                return Err(UsageError::error(format!("{option} has no meaning without --chat")));
            }
            return Ok(language.tokenizer.encode_within(prompt, context)?);
        }
        let messages = opening_messages(self.system.as_deref(), prompt);
        let rendering = Rendering::default();
        if self.show_prompt
            && let Some(template) = &language.chat
        {
            // Asked for, so --quiet does not silence it.
            show(template.render_joined(&messages, &rendering)?);
        }
        Ok(language.encode_chat_with(&messages, &rendering, context)?.tokens)
    }

    /// Returns the end tokens.
    pub fn end_tokens(&self, language: &Language) -> Vec<Token> {
        if self.chat { language.answer_end_tokens() } else { language.end_tokens.clone() }
    }

    /// Returns whether the published sampling settings are the defaults.
    pub fn uses_published(&self) -> bool {
        self.chat && !self.ignore_published
    }
}

/// Returns the first messages of a conversation.
pub fn opening_messages(system: Option<&str>, message: &str) -> Vec<Message> {
    system.map(Message::system).into_iter().chain([Message::user(message)]).collect()
}
