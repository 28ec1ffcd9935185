//! Prompts of conversations, and how their answers are read.

use std::sync::Arc;

use polydraft::Token;
use polydraft_engine::Finish;
use polydraft_text::{
    ChatPrompt, Message, OutputForm, OutputParser, PromptEnd, Rendering, Tool,
};

use super::error::Problem;
use super::params::Truncation;
use super::tools::Tools;
use crate::LoadedModel;
use crate::grammar::{Form, Marks};
use crate::worker::RequestParams;

/// Renders and encodes a conversation.
///
/// # Errors
/// Errors of the chat template; a prompt that does not fit and is not to be truncated.
pub fn encode_messages(
    model: &LoadedModel,
    messages: &[Message],
    rendering: &Rendering,
    truncation: Option<Truncation>,
) -> Result<ChatPrompt, Problem> {
    let max_tokens = if truncation.is_some() { usize::MAX } else { model.context };
    Ok(model.language.encode_chat_with(messages, rendering, max_tokens)?)
}

/// Creates the prompt of a conversation from given tokens.
///
/// # Errors
/// Unknown tokens.
pub fn prompt_from_tokens(model: &LoadedModel, tokens: Vec<Token>) -> Result<ChatPrompt, Problem> {
    let text = model.language.tokenizer.decode_with_special(&tokens)?;
    let end = model.output_form().reasoning.prompt_end(&text);
    Ok(ChatPrompt { tokens, end })
}

/// Reads the answers of a request.
pub struct OutputReader {
    form: OutputForm,
    splits_reasoning: bool,
    prompt: PromptEnd,
    tools: Arc<Vec<Tool>>,
}

impl OutputReader {
    /// Parser of a new answer.
    pub fn parser(&self) -> OutputParser {
        OutputParser::new(&self.form, self.splits_reasoning, self.prompt, self.tools.clone())
    }
}

/// Prepares to read an answer to a conversation: its reasoning, if `splits_reasoning`, and calls of
/// `tools`. The marks become part of the output, and `form` applies to the answer. `continued` is
/// the message that the model continues; `prompt` is where the prompt ends.
pub fn read_output(
    model: &LoadedModel,
    params: &mut RequestParams,
    form: &mut Option<Form>,
    continued: Option<&Message>,
    prompt: PromptEnd,
    tools: Option<&Tools>,
    splits_reasoning: bool,
) -> OutputReader {
    let output = model.output_form();
    let marks = &output.reasoning;
    let continues_thought = |message: &Message| {
        marks.has_reasoning()
            && message.content.contains(&marks.opening)
            && !message.content.contains(&marks.closing)
    };
    let prompt = match continued {
        Some(message) if continues_thought(message) => PromptEnd::Inside,
        Some(_) => PromptEnd::Answer,
        None => prompt,
    };
    let tokenizer = &model.language.tokenizer;
    let literals = output.literals(tools.is_some());
    let special = literals.iter().flat_map(|text| {
        tokenizer.special_in(text).into_iter().map(|(range, _)| text[range].to_owned())
    });
    params.visible_special_tokens = special.collect();
    params.visible_special_tokens.sort_unstable();
    params.visible_special_tokens.dedup();
    *form = form.take().map(|form| form.in_output(marks, prompt, Marks(Some(tokenizer))));
    let tools = tools.map(|tools| tools.called.clone()).unwrap_or_default();
    // An answer that goes on has no reasoning of its own.
    let splits_reasoning = splits_reasoning
        && (continued.is_none() || prompt == PromptEnd::Inside || !output.has_channels);
    OutputReader { form: output, splits_reasoning, prompt, tools }
}

/// Whether an answer was truncated by a limit.
pub fn is_truncated(finish: Option<Finish>) -> bool {
    matches!(finish, Some(Finish::MaxTokens | Finish::Context))
}
