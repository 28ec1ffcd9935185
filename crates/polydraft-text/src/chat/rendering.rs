//! In which ways a conversation is put to a model.

use serde_json::{Map, Value};

use super::Message;

/// How a conversation is put to the model.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rendering<'a> {
    /// Tools that the model may call, each as OpenAI's interface describes it:
    /// `{"type": "function", "function": {"name": .., "description": .., "parameters": ..}}`.
    pub tools: &'a [Value],
    /// Variables for the template, such as `{"enable_thinking": false}`. What the template is given
    /// anyway (messages, tools, special tokens) has its own value, whatever they say.
    pub variables: Option<&'a Map<String, Value>>,
    /// What the text ends with.
    pub ending: Ending,
}

/// What the text of a conversation ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ending {
    /// What makes the model answer.
    #[default]
    Answer,
    /// The last message, an answer's beginning, which the model goes on with.
    Continue,
    /// The last message, complete.
    Message,
}

/// Where the last message ends in the text of a conversation; what the template puts after it is
/// not yet to come.
pub(super) fn continued(text: &str, messages: &[Message]) -> Result<usize, &'static str> {
    let last = messages.last().filter(|last| last.role == "assistant");
    let last = last.ok_or("expected an answer's beginning as the last message to continue it")?;
    let (content, words) = (last.content.trim_start(), last.content.trim());
    if words.is_empty() {
        return Err("expected words in the last message to continue it, got none");
    }
    let at = text.rfind(words).ok_or("it changes the last message, which cannot be continued")?;
    // Some templates cut the white space after it.
    Ok(at + if text[at..].starts_with(content) { content.len() } else { words.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_last_message_is_cut_where_it_ends() {
        let of = |text, content: &str| {
            continued(text, &[Message::user("q"), Message::assistant(content)])
                .map(|length| &text[..length])
        };
        assert_eq!(of("[u]q[a]It is[/a]", "It is"), Ok("[u]q[a]It is"));
        // White space at its end stays if the template keeps it.
        assert_eq!(of("[u]q[a]It is [/a]", " It is "), Ok("[u]q[a]It is "));
        assert_eq!(of("[u]q[a]It is[/a]", "It is "), Ok("[u]q[a]It is"));
        assert!(of("[u]q[a]it is[/a]", "It is").is_err());
        assert!(of("[u]q[a][/a]", "  ").is_err());
        assert!(continued("[u]q", &[Message::user("q")]).is_err());
        assert!(continued("", &[]).is_err());
    }
}
