//! Markers of a model's reasoning, detected from its chat template.

/// Markers around a model's reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReasoningForm {
    /// Start marker.
    pub opening: &'static str,
    /// End marker.
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
    /// Detects the markers in a template; `None` if it has none.
    pub(super) fn detect(template: &str) -> Option<Self> {
        FORMS.into_iter().find(|form| template.contains(form.closing))
    }

    /// Returns whether a prompt ends inside the reasoning: only white space follows the start
    /// marker.
    pub fn is_open(&self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.opening)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_markers_in_templates() {
        let detect = |template| ReasoningForm::detect(template).map(|form| form.opening);
        assert_eq!(detect("{{ m.content.split('</think>')[-1] }}"), Some("<think>"));
        assert_eq!(detect("[THINK]{{ m }}[/THINK]"), Some("[THINK]"));
        assert_eq!(detect("{{ m.content }}"), None);
    }

    #[test]
    fn is_open_if_prompt_ends_after_start_marker() {
        let form = FORMS[0];
        assert!(form.is_open("<|assistant|>\n<think>\n"));
        assert!(form.is_open("<think>a</think>b<|assistant|><think>"));
        assert!(!form.is_open("<|assistant|>\n<think>\n\n</think>\n\n"));
        assert!(!form.is_open("what is <think>?<|assistant|>"));
        assert!(!form.is_open("<|assistant|>"));
    }
}
