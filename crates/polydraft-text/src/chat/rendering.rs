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

/// Conversation in which messages in a row of one role, other than calls and results of tools, are
/// one, their texts apart by an empty line; `None` if there are none.
pub(super) fn merged(messages: &[Message]) -> Option<Vec<Message>> {
    let is_text = |message: &Message| message.role != "tool" && message.tool_calls.is_empty();
    let mut all: Vec<Message> = Vec::with_capacity(messages.len());
    for message in messages {
        match all.last_mut() {
            Some(last) if last.role == message.role && is_text(last) && is_text(message) => {
                last.content = format!("{}\n\n{}", last.content, message.content);
            }
            _ => all.push(message.clone()),
        }
    }
    (all.len() < messages.len()).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_texts_of_one_role() {
        let result = || Message::tool("r", "1", None);
        let messages = [
            Message::system("a"),
            Message::system("b"),
            Message::user("c"),
            Message::user("d"),
            result(),
            result(),
        ];
        let expected = [Message::system("a\n\nb"), Message::user("c\n\nd"), result(), result()];
        assert_eq!(merged(&messages).unwrap(), expected);
        assert_eq!(merged(&expected), None);
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
