//! Options of rendering a conversation.

use serde_json::{Map, Value};

use super::Message;

/// Options of rendering a conversation.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rendering<'a> {
    /// Tools that the model may call, in the format of OpenAI's interface:
    pub tools: &'a [Value],
    /// Variables for the template, such as `{"enable_thinking": false}`. They do not override
    /// messages, tools and special tokens.
    pub variables: Option<&'a Map<String, Value>>,
    /// End of the rendered text.
    pub ending: Ending,
}

/// End of a rendered conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ending {
    /// Start of an answer.
    #[default]
    Answer,
    /// End of the last message's content, an incomplete answer to be continued.
    Continue,
    /// Last message, complete.
    Message,
}

/// Returns the length of the text up to the end of the last message's content, without the
/// template's suffix.
pub(super) fn continued(text: &str, messages: &[Message]) -> Result<usize, &'static str> {
    let last = messages.last().filter(|last| last.role == "assistant");
    let last = last.ok_or("expected an assistant message last to continue it")?;
    let (content, words) = (last.content.trim_start(), last.content.trim());
    if words.is_empty() {
        return Err("expected text in the last message to continue it, got none");
    }
    let at = text
        .rfind(words)
        .ok_or("the template changes the last message, which therefore cannot be continued")?;
    // Some templates trim the white space at the end.
    Ok(at + if text[at..].starts_with(content) { content.len() } else { words.len() })
}

/// Changes to a conversation that a template rejects, each tried with those before it.
pub(super) const REPAIRS: [fn(&mut Vec<Message>); 3] =
    [join_rows, |messages| wrap_arguments(messages), join_to_results];

/// Joins messages in a row of one role, other than calls and results of tools, to one, their texts
/// apart by an empty line.
fn join_rows(messages: &mut Vec<Message>) {
    let is_text = |message: &Message| message.role != "tool" && message.tool_calls.is_empty();
    join(messages, |last, next| last.role == next.role && is_text(last) && is_text(next));
}

/// Joins a user's text to the results of tools before it.
fn join_to_results(messages: &mut Vec<Message>) {
    join(messages, |last, next| last.role == "tool" && next.role == "user");
}

/// Puts arguments that are no object, which a model may have written, in one as `arguments`.
fn wrap_arguments(messages: &mut [Message]) {
    for call in messages.iter_mut().flat_map(|message| &mut message.tool_calls) {
        if let Some(arguments) = call.pointer_mut("/function/arguments")
            && !arguments.is_object()
        {
            *arguments = serde_json::json!({ "arguments": arguments.take() });
        }
    }
}

fn join(messages: &mut Vec<Message>, belong: impl Fn(&Message, &Message) -> bool) {
    let mut all: Vec<Message> = Vec::with_capacity(messages.len());
    for message in messages.drain(..) {
        match all.last_mut() {
            Some(last) if belong(last, &message) => {
                last.content = format!("{}\n\n{}", last.content, message.content);
            }
            _ => all.push(message),
        }
    }
    *messages = all;
}

/// Tools with the description and the parameters that they may lack.
pub(super) fn described(tools: &[Value]) -> Vec<Value> {
    let mut tools = tools.to_vec();
    for tool in &mut tools {
        if let Some(function) = tool.get_mut("function").and_then(Value::as_object_mut) {
            let no_parameters = serde_json::json!({ "type": "object", "properties": {} });
            function.entry("description").or_insert_with(|| "".into());
            let parameters = function.entry("parameters").or_insert(Value::Null);
            if let Some(members) = parameters.as_object_mut().filter(|members| !members.is_empty())
            {
                members.entry("properties").or_insert_with(|| serde_json::json!({}));
            } else {
                *parameters = no_parameters;
            }
        }
    }
    tools
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repairs_keep_every_text() {
        let result = |text: &str| Message::tool(text, "1", None);
        let call = |arguments: Value| {
            let mut message = Message::assistant("");
            message.tool_calls.push(serde_json::json!({ "function": { "arguments": arguments } }));
            message
        };
        let mut messages = vec![
            Message::system("a"),
            Message::system("b"),
            Message::user("c"),
            Message::user("d"),
            call("x".into()),
            result("r"),
            result("s"),
            Message::user("e"),
        ];
        for repair in REPAIRS {
            repair(&mut messages);
        }
        let expected = [
            Message::system("a\n\nb"),
            Message::user("c\n\nd"),
            call(serde_json::json!({ "arguments": "x" })),
            result("r"),
            result("s\n\ne"),
        ];
        assert_eq!(messages, expected);
        let bare = [serde_json::json!({ "function": { "name": "f" } })];
        let whole = serde_json::json!({ "function": { "name": "f", "description": "",
            "parameters": { "type": "object", "properties": {} } } });
        let whole = [whole];
        assert_eq!(described(&bare), whole);
        assert_eq!(described(&whole), whole);
    }

    #[test]
    fn cuts_text_after_content_of_last_message() {
        let cut = |text, content: &str| {
            continued(text, &[Message::user("q"), Message::assistant(content)])
                .map(|length| &text[..length])
        };
        assert_eq!(cut("[u]q[a]It is[/a]", "It is"), Ok("[u]q[a]It is"));
        // White space at its end remains if the template keeps it.
        assert_eq!(cut("[u]q[a]It is [/a]", " It is "), Ok("[u]q[a]It is "));
        assert_eq!(cut("[u]q[a]It is[/a]", "It is "), Ok("[u]q[a]It is"));
        assert!(cut("[u]q[a]it is[/a]", "It is").is_err());
        assert!(cut("[u]q[a][/a]", "  ").is_err());
        assert!(continued("[u]q", &[Message::user("q")]).is_err());
        assert!(continued("", &[]).is_err());
    }
}
