//! Prompts of conversations, and how their answers are read.

use polydraft::Token;
use polydraft_engine::Span;
use polydraft_text::{ChatPrompt, Message, PromptEnd, Rendering};

use super::error::Problem;
use super::params::Truncation;
use super::reader::OutputReader;
use super::thinking::ThinkingLimits;
use super::tools::Tools;
use crate::LoadedModel;
use crate::grammar::{Form, Marks};
use crate::worker::{RequestParams, ThinkingBudget};

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

/// Prepares to read an answer to a conversation: its reasoning, and calls of `tools`. The marks
/// become part of the output; `form` and stop strings apply to the answer, and `limits` to the
/// reasoning. `continued` is the message that the model continues; `prompt` is where the prompt
/// ends.
pub fn read_output(
    model: &LoadedModel,
    params: &mut RequestParams,
    form: &mut Option<Form>,
    continued: Option<&Message>,
    prompt: PromptEnd,
    tools: Option<&Tools>,
    limits: ThinkingLimits,
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
    let splits_reasoning =
        continued.is_none() || prompt == PromptEnd::Inside || !output.has_channels;
    let marks = &output.reasoning;
    let can_reason = matches!(prompt, PromptEnd::Before | PromptEnd::Inside);
    if marks.has_reasoning() && can_reason && !limits.stops {
        params.limits.stop_outside = Some(Span {
            opening: marks.opening.clone(),
            closing: marks.closing.clone(),
            is_open: prompt == PromptEnd::Inside || marks.opening.is_empty(),
        });
    }
    params.thinking =
        limits.budget.and_then(|max| ThinkingBudget::new(max, marks, prompt, tokenizer));
    OutputReader { form: output, splits_reasoning, prompt, tools }
}
