//! How models mark what they think before they answer, told from their chat templates.

/// The marks around a model's reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReasoningForm {
    /// What it begins with.
    pub opening: &'static str,
    /// What it ends with.
    pub closing: &'static str,
}

/// Qwen 3, DeepSeek R1, SmolLM3, GLM and others; Magistral; Seed-OSS; Command A Reasoning.
const FORMS: [ReasoningForm; 4] = [
    ReasoningForm { opening: "<think>", closing: "</think>" },
    ReasoningForm { opening: "[THINK]", closing: "[/THINK]" },
    ReasoningForm { opening: "<seed:think>", closing: "</seed:think>" },
    ReasoningForm { opening: "<|START_THINKING|>", closing: "<|END_THINKING|>" },
];

impl ReasoningForm {
    /// That of a template; none where it has no such marks.
    pub(super) fn of(template: &str) -> Option<Self> {
        FORMS.into_iter().find(|form| template.contains(form.closing))
    }

    /// Whether a prompt leaves the model in the middle of its reasoning: nothing but white space
    /// stands after the opening.
    pub fn is_open(&self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.opening)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_told_from_templates() {
        let of = |template| ReasoningForm::of(template).map(|form| form.opening);
        assert_eq!(of("{{ m.content.split('</think>')[-1] }}"), Some("<think>"));
        assert_eq!(of("[THINK]{{ m }}[/THINK]"), Some("[THINK]"));
        assert_eq!(of("{{ m.content }}"), None);
    }

    #[test]
    fn a_prompt_may_open_it() {
        let form = FORMS[0];
        assert!(form.is_open("<|assistant|>\n<think>\n"));
        assert!(form.is_open("<think>a</think>b<|assistant|><think>"));
        assert!(!form.is_open("<|assistant|>\n<think>\n\n</think>\n\n"));
        assert!(!form.is_open("what is <think>?<|assistant|>"));
        assert!(!form.is_open("<|assistant|>"));
    }
}
