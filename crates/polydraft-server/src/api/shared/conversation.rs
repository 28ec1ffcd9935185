//! Prompts of conversations, and reasoning in their answers.

use polydraft::Token;
use polydraft_engine::Finish;
use polydraft_text::{ChatPrompt, Message, ReasoningForm, Rendering};

use super::error::Problem;
use super::params::Truncation;
use super::reasoning::Reasoning;
use crate::LoadedModel;
use crate::grammar::Form;
use crate::worker::RequestParams;

/// Marks of reasoning in the model's chat template, if any.
fn reasoning_form(model: &LoadedModel) -> Option<ReasoningForm> {
    model.language.chat.as_ref().and_then(|template| template.reasoning())
}

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
    let in_reasoning = reasoning_form(model).is_some_and(|marks| marks.is_open(&text));
    Ok(ChatPrompt { tokens, in_reasoning })
}

/// Prepares separation of reasoning from the answer, if the template marks it. The marks become
/// part of the output, and the form applies after the reasoning. `continued` is the message that
/// the model continues; `in_reasoning` is whether the prompt ends inside reasoning.
pub fn separate_reasoning(
    model: &LoadedModel,
    params: &mut RequestParams,
    form: &mut Option<Form>,
    continued: Option<&Message>,
    in_reasoning: bool,
) -> Option<Reasoning> {
    let marks = reasoning_form(model)?;
    let starts_in_reasoning = continued.map_or(in_reasoning, |message| {
        message.content.contains(marks.opening) && !message.content.contains(marks.closing)
    });
    params.visible_special_tokens = vec![marks.opening, marks.closing];
    // Grammars know no special tokens: with a special mark the form applies from the first token
    // on.
    let tokenizer = &model.language.tokenizer;
    let is_special = tokenizer.token(marks.closing).is_some_and(|t| tokenizer.is_special(t));
    if starts_in_reasoning && !is_special {
        *form = form.take().map(|form| form.after_mark(marks.closing));
    }
    (continued.is_none() || starts_in_reasoning).then(|| Reasoning::new(marks, starts_in_reasoning))
}

/// Whether an answer was truncated by a limit.
pub fn is_truncated(finish: Option<Finish>) -> bool {
    matches!(finish, Some(Finish::MaxTokens | Finish::Context))
}
