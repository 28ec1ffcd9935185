//! How models write their calls of tools, told from the chat templates that teach them.

/// A form of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallForm {
    /// `<tool_call>\n{"name": .., "arguments": ..}\n</tool_call>`, any number of them after some
    /// text: Hermes, Qwen.
    Hermes,
    /// The answer is `{"name": .., "parameters": ..}`: Llama 3.1 and later.
    Llama,
}

impl CallForm {
    /// That of a template; none where it has no tools, or calls of another form.
    pub(super) fn of(template: &str) -> Option<Self> {
        let has = |part: &str| template.contains(part);
        if !has("tools") {
            return None;
        }
        // What XML-like forms have within the same tags.
        let others = ["<function=", "<arg_key>", "<parameter=", "[TOOL_CALLS]"];
        if others.into_iter().any(has) {
            return None;
        }
        // Quotes are escaped in some templates.
        let plain = template.replace("\\\"", "\"");
        if has("<tool_call>") && has("</tool_call>") {
            return plain.contains("\"arguments\"").then_some(Self::Hermes);
        }
        // What such a template tells the model: {"name": .., "parameters": ..}
        let (before, _) = plain.split_once("\"parameters\":")?;
        let (_, between) = before.rsplit_once("{\"name\":")?;
        (between.len() < 80).then_some(Self::Llama)
    }

    /// What a call begins with.
    pub fn opening(self) -> &'static str {
        match self {
            Self::Hermes => "<tool_call>",
            Self::Llama => "",
        }
    }

    /// What a call ends with.
    pub fn closing(self) -> &'static str {
        match self {
            Self::Hermes => "</tool_call>",
            Self::Llama => "",
        }
    }

    /// What stands between an opening or a closing and the call's object.
    pub fn gap(self) -> &'static str {
        match self {
            Self::Hermes => "\n",
            Self::Llama => "",
        }
    }

    /// The name of the arguments in a call.
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
    fn forms_are_told_from_templates() {
        let hermes = concat!(
            r#"{%- if tools %}<tools>{% endif %}<tool_call>\n"#,
            r#"{\"name\": <name>, \"arguments\": <args>}\n</tool_call>"#,
        );
        assert_eq!(CallForm::of(hermes), Some(CallForm::Hermes));
        let llama = concat!(
            "{% if tools is not none %}Respond in the format ",
            r#"{"name": function name, "parameters": dictionary}"#,
        );
        assert_eq!(CallForm::of(llama), Some(CallForm::Llama));
        let xml = concat!(
            r#"{% if tools %}<tool_call>\n<function=name>\n<parameter=x>\n"#,
            r#"</tool_call> "arguments""#,
        );
        assert_eq!(CallForm::of(xml), None);
        assert_eq!(
            CallForm::of("{% for m in messages %}<tool_call>{{ m.content }}{% endfor %}"),
            None
        );
    }
}
