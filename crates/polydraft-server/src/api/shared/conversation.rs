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
    let encode = |messages: &[Message], rendering: &Rendering| {
        model.language.encode_chat_with(messages, rendering, max_tokens)
    };
    Ok(or_simplified(messages, rendering, encode)?)
}

/// Renders messages, or simpler ones that say the same where the template refuses them: some
/// refuse what their models write, or what OpenAI's interface leaves out.
///
/// # Errors
/// The first error, if the simpler messages are refused, too.
pub fn or_simplified<T, E>(
    messages: &[Message],
    rendering: &Rendering,
    render: impl Fn(&[Message], &Rendering) -> Result<T, E>,
) -> Result<T, E> {
    render(messages, rendering).or_else(|problem| {
        let (simple, tools) = (simplified(messages), described(rendering.tools));
        if simple == messages && tools == rendering.tools {
            return Err(problem);
        }
        render(&simple, &Rendering { tools: &tools, ..*rendering }).map_err(|_| problem)
    })
}

/// Messages with one call each, and with reasoning or text beside it, but not both.
fn simplified(messages: &[Message]) -> Vec<Message> {
    let mut simple: Vec<Message> = Vec::with_capacity(messages.len());
    let mut rest = messages.iter().peekable();
    while let Some(message) = rest.next() {
        let mut message = message.clone();
        if let Some(thought) = message.reasoning_content.as_mut().filter(|thought| {
            !message.tool_calls.is_empty() && !message.content.is_empty() && !thought.is_empty()
        }) {
            thought.push_str("\n\n");
            thought.push_str(&std::mem::take(&mut message.content));
        }
        if message.tool_calls.len() < 2 {
            simple.push(message);
            continue;
        }
        let mut results = Vec::new();
        while let Some(result) = rest.next_if(|next| next.role == "tool") {
            results.push(result.clone());
        }
        for (number, call) in std::mem::take(&mut message.tool_calls).into_iter().enumerate() {
            let own = match call.get("id").and_then(serde_json::Value::as_str) {
                Some(id) => results.iter().position(|r| r.tool_call_id.as_deref() == Some(id)),
                None => (!results.is_empty()).then_some(0),
            };
            // What was said before the calls is said once.
            let first = Message { tool_calls: vec![call.clone()], ..message.clone() };
            let next = Message { tool_calls: vec![call], ..Message::new("assistant", "") };
            simple.push(if number == 0 { first } else { next });
            simple.extend(own.map(|own| results.remove(own)));
        }
        simple.extend(results);
    }
    simple
}

/// Tools with a description, which may be empty.
fn described(tools: &[serde_json::Value]) -> Vec<serde_json::Value> {
    let mut tools = tools.to_vec();
    for tool in &mut tools {
        if let Some(function) = tool.get_mut("function").and_then(|f| f.as_object_mut()) {
            function.entry("description").or_insert_with(|| "".into());
        }
    }
    tools
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
    let has_grammar = tools.is_some_and(|tools| tools.grammar.is_some());
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
    OutputReader {
        form: output,
        splits_reasoning,
        prompt,
        tools,
        has_grammar,
        omits_reasoning: false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(id: &str) -> serde_json::Value {
        json!({ "id": id, "type": "function", "function": { "name": "f", "arguments": {} } })
    }

    #[test]
    fn simpler_messages_have_one_call_each_and_its_result_after_it() {
        let result = |id: &str| Message {
            tool_call_id: Some(id.to_owned()),
            ..Message::new("tool", format!("result {id}"))
        };
        let calls = Message {
            tool_calls: vec![call("1"), call("2")],
            reasoning_content: Some("why".to_owned()),
            ..Message::new("assistant", "text")
        };
        let all = [Message::user("a"), calls, result("2"), result("1"), Message::user("b")];
        let simple = simplified(&all);
        let said: Vec<(&str, &str, usize)> = simple
            .iter()
            .map(|m| (m.role.as_ref(), m.content.as_str(), m.tool_calls.len()))
            .collect();
        let expected = [
            ("user", "a", 0),
            ("assistant", "", 1),
            ("tool", "result 1", 0),
            ("assistant", "", 1),
            ("tool", "result 2", 0),
            ("user", "b", 0),
        ];
        assert_eq!(said, expected);
        assert_eq!(simple[1].reasoning_content.as_deref(), Some("why\n\ntext"));
        // What a template takes is not changed.
        let rendering = Rendering { tools: &[], variables: None, ending: Default::default() };
        let count = |messages: &[Message], _: &Rendering| Ok::<usize, ()>(messages.len());
        assert_eq!(or_simplified(&all, &rendering, count), Ok(5));
        let strict = |messages: &[Message], _: &Rendering| match messages.len() {
            5 => Err("refused"),
            count => Ok(count),
        };
        assert_eq!(or_simplified(&all, &rendering, strict), Ok(6));
    }
}
