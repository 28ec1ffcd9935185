//! Formats of tool calls, detected from chat templates.

/// Format of tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallForm {
    /// Any number of `<tool_call>\n{"name": .., "arguments": ..}\n</tool_call>`, after optional
    /// text: Hermes, Qwen.
    Hermes,
    /// An answer of the form `{"name": .., "parameters": ..}`: Llama 3.1 and later.
    Llama,
}

impl CallForm {
    /// Detects the format in a template; `None` without tools, or with another format.
    pub(super) fn detect(template: &str) -> Option<Self> {
        let has = |part: &str| template.contains(part);
        if !has("tools") {
            return None;
        }
        // XML-like formats use the same tags.
        let others = ["<function=", "<arg_key>", "<parameter=", "[TOOL_CALLS]"];
        if others.into_iter().any(has) {
            return None;
        }
        // Some templates escape quotes.
        let plain = template.replace("\\\"", "\"");
        if has("<tool_call>") && has("</tool_call>") {
            return plain.contains("\"arguments\"").then_some(Self::Hermes);
        }
        // The format shown to the model: {"name": .., "parameters": ..}
        let (before, _) = plain.split_once("\"parameters\":")?;
        let (_, between) = before.rsplit_once("{\"name\":")?;
        (between.len() < 80).then_some(Self::Llama)
    }

    /// Returns the start marker of a call.
    pub fn opening(self) -> &'static str {
        match self {
            Self::Hermes => "<tool_call>",
            Self::Llama => "",
        }
    }

    /// Returns the end marker of a call.
    pub fn closing(self) -> &'static str {
        match self {
            Self::Hermes => "</tool_call>",
            Self::Llama => "",
        }
    }

    /// Returns the text between a marker and the JSON object of the call.
    pub fn gap(self) -> &'static str {
        match self {
            Self::Hermes => "\n",
            Self::Llama => "",
        }
    }

    /// Returns the key of the arguments in a call.
    pub fn arguments(self) -> &'static str {
        match self {
            Self::Hermes => "arguments",
            Self::Llama => "parameters",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_formats_in_templates() {
        let hermes = concat!(
            r#"{%- if tools %}<tools>{% endif %}<tool_call>\n"#,
            r#"{\"name\": <name>, \"arguments\": <args>}\n</tool_call>"#,
        );
        assert_eq!(CallForm::detect(hermes), Some(CallForm::Hermes));
        let llama = concat!(
            "{% if tools is not none %}Respond in the format ",
            r#"{"name": function name, "parameters": dictionary}"#,
        );
        assert_eq!(CallForm::detect(llama), Some(CallForm::Llama));
        let xml = concat!(
            r#"{% if tools %}<tool_call>\n<function=name>\n<parameter=x>\n"#,
            r#"</tool_call> "arguments""#,
        );
        assert_eq!(CallForm::detect(xml), None);
        assert_eq!(
            CallForm::detect("{% for m in messages %}<tool_call>{{ m.content }}{% endfor %}"),
            None
        );
    }
}
