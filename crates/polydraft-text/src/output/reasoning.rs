//! Incremental separation of a model's reasoning from its answer.
//!
//! Problem: reasoning models write their reasoning between two marks, and clients expect it
//! separate from the answer. The prompt may already contain the opening mark, and marks may be
//! split across chunks. Some models also write marks around the answer.
//! Method: drop white space around the marks; withhold text that may become a mark, or white space
//! before one. Output that does not begin with the opening mark has no reasoning; all text after
//! the closing mark is the answer, without its own marks.
//! Complexity: linear in the text, except that withheld text is scanned again with every chunk.

use super::pattern::{Literal, literal_end, partial_mark_len};

/// Marks around a model's reasoning and around its answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReasoningForm {
    /// Mark before the reasoning.
    pub opening: String,
    /// Mark after the reasoning; empty if the model has none.
    pub closing: String,
    /// Text before the answer, after the reasoning; usually empty.
    pub answer_opening: String,
    /// Text after the answer; usually empty.
    pub answer_closing: String,
}

impl ReasoningForm {
    /// Returns whether the model marks its reasoning.
    pub fn has_reasoning(&self) -> bool {
        !self.closing.is_empty()
    }

    /// Whether a prompt ends with closed reasoning. A closing mark that also begins an answer, such
    /// as `<|end|><|start|>assistant`, tells only together with the opening mark.
    fn ends_after(&self, prompt: &str) -> bool {
        let begins_answer = self.closing.matches('<').count() > 1;
        let before = prompt.trim_end().strip_suffix(self.closing.trim());
        before.is_some_and(|before| {
            !self.closing.is_empty() && (!begins_answer || ends_with(before, &self.opening))
        })
    }

    /// Returns where a prompt ends: only white space follows a mark.
    pub fn prompt_end(&self, prompt: &str) -> PromptEnd {
        if self.has_reasoning() && ends_with(prompt, &self.opening) {
            PromptEnd::Inside
        } else if ends_with(prompt, &self.answer_opening) {
            PromptEnd::Answer
        } else if self.ends_after(prompt) {
            PromptEnd::After
        } else {
            PromptEnd::Before
        }
    }
}

/// Where a prompt ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PromptEnd {
    /// Before the reasoning, which the model may begin.
    #[default]
    Before,
    /// Inside the reasoning.
    Inside,
    /// After the reasoning, before the answer.
    After,
    /// Inside the answer.
    Answer,
}

/// Whether a text ends with a mark, but for white space.
fn ends_with(text: &str, mark: &str) -> bool {
    !mark.trim().is_empty() && text.trim_end().ends_with(mark.trim())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// At the start, where reasoning may begin.
    Before,
    /// In the reasoning; `begun` is whether any of it was passed on.
    Inside { begun: bool },
    /// After the reasoning, before the answer.
    Between,
    /// At the start of the answer.
    Answer,
    /// After the mark of the answer, which may end with white space.
    Marked,
    /// In the answer; `marked` is whether it began with its mark.
    After { marked: bool },
}

/// Separates reasoning in one output.
#[derive(Debug, Clone)]
pub struct Reasoning {
    form: ReasoningForm,
    state: State,
    /// Text whose part is not decided yet.
    pending: String,
}

/// New text of an output.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// Text of the reasoning.
    pub reasoning: String,
    /// Text of the answer.
    pub answer: String,
}

impl Reasoning {
    /// Creates a separator for the output after a prompt.
    pub fn new(form: ReasoningForm, prompt: PromptEnd) -> Self {
        let state = match prompt {
            PromptEnd::Inside => State::Inside { begun: false },
            PromptEnd::Answer => State::After { marked: true },
            PromptEnd::Before if form.has_reasoning() => State::Before,
            // A model may reason though the prompt says that it has done so.
            PromptEnd::After if !form.opening.is_empty() => State::Before,
            PromptEnd::Before | PromptEnd::After => State::Answer,
        };
        Self { form, state, pending: String::new() }
    }

    /// Whether the output is in the reasoning.
    pub fn is_inside(&self) -> bool {
        matches!(self.state, State::Inside { .. })
    }

    /// Adds more output. Returns the decided text.
    pub fn push(&mut self, text: &str) -> Split {
        self.pending.push_str(text);
        let mut split = Split::default();
        while self.advance(&mut split) {}
        split
    }

    /// Ends the output; `is_cut` is whether a limit did, so that a mark may be incomplete. Returns
    /// the remaining text.
    pub fn finish(&mut self, is_cut: bool) -> Split {
        let pending = std::mem::take(&mut self.pending);
        let is_mark = is_cut && !pending.trim().is_empty();
        match self.state {
            State::Before | State::Answer | State::After { .. } if is_mark => Split::default(),
            State::Before | State::Answer | State::Marked | State::After { .. } => {
                Split { answer: pending, ..Split::default() }
            }
            State::Inside { .. } => {
                let mark = if is_cut { partial_mark_len(&pending, &self.form.closing) } else { 0 };
                let reasoning = pending[..pending.len() - mark].trim_end().to_owned();
                Split { reasoning, ..Split::default() }
            }
            State::Between => Split::default(),
        }
    }

    /// Makes one step. Returns whether more can be done with the pending text.
    fn advance(&mut self, split: &mut Split) -> bool {
        let ReasoningForm { opening, closing, answer_opening, answer_closing } = &self.form;
        let text = self.pending.trim_start();
        match self.state {
            // A mark that the prompt should have had: models write it nevertheless.
            State::Before if opening.is_empty() => self.state = State::Inside { begun: false },
            State::Before => match literal_end(opening, text) {
                Literal::End(length) => {
                    self.pending = text[length..].to_owned();
                    self.state = State::Inside { begun: false };
                }
                Literal::Partial => return false,
                Literal::No => self.state = State::Answer,
            },
            State::Inside { begun } => {
                if !begun {
                    self.pending = text.to_owned();
                }
                let Some(at) = self.pending.find(closing) else {
                    let emitted = self.pending
                        [..self.pending.len() - partial_mark_len(&self.pending, closing)]
                        .trim_end()
                        .len();
                    split.reasoning.extend(self.pending.drain(..emitted));
                    self.state = State::Inside { begun: begun || emitted > 0 };
                    return false;
                };
                split.reasoning.push_str(self.pending[..at].trim_end());
                self.pending.drain(..at + closing.len());
                self.state = State::Between;
            }
            State::Between => {
                self.pending = text.to_owned();
                if self.pending.is_empty() {
                    return false;
                }
                self.state = State::Answer;
            }
            State::Answer => match literal_end(answer_opening, &self.pending) {
                _ if answer_opening.is_empty() => self.state = State::After { marked: false },
                Literal::Partial => return false,
                Literal::End(length) => {
                    self.pending.drain(..length);
                    self.state = State::Marked;
                }
                Literal::No => self.state = State::After { marked: false },
            },
            State::Marked => {
                let space = &answer_opening[answer_opening.trim_end().len()..];
                match self.pending.strip_prefix(space) {
                    Some(rest) => self.pending = rest.to_owned(),
                    None if space.starts_with(&self.pending) => return false,
                    None => {}
                }
                self.state = State::After { marked: true };
            }
            State::After { marked: true } if !answer_closing.is_empty() => {
                let Some(at) = self.pending.find(answer_closing) else {
                    let kept = partial_mark_len(&self.pending, answer_closing);
                    split.answer.extend(self.pending.drain(..self.pending.len() - kept));
                    return false;
                };
                split.answer.push_str(&self.pending[..at]);
                self.pending.drain(..at + answer_closing.len());
                self.state = State::After { marked: false };
            }
            State::After { .. } => {
                split.answer.push_str(&std::mem::take(&mut self.pending));
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form() -> ReasoningForm {
        let (opening, closing) = ("<think>".to_owned(), "</think>".to_owned());
        ReasoningForm { opening, closing, ..ReasoningForm::default() }
    }

    /// Separates an output whole, by characters, and split at each position: all must agree.
    fn split(form: &ReasoningForm, starts_inside: bool, output: &str) -> (String, String) {
        let end = if starts_inside { PromptEnd::Inside } else { PromptEnd::Before };
        let split_chunks = |chunks: &[&str]| {
            let mut reasoning = Reasoning::new(form.clone(), end);
            let mut all: Vec<Split> = chunks.iter().map(|chunk| reasoning.push(chunk)).collect();
            all.push(reasoning.finish(false));
            all.into_iter().fold((String::new(), String::new()), |(a, b), split| {
                (a + &split.reasoning, b + &split.answer)
            })
        };
        let expected = split_chunks(&[output]);
        for (cut, _) in output.char_indices() {
            let (a, b) = output.split_at(cut);
            assert_eq!(split_chunks(&[a, b]), expected, "{a}|{b}");
        }
        let single: Vec<String> = output.chars().map(String::from).collect();
        assert_eq!(split_chunks(&single.iter().map(String::as_str).collect::<Vec<_>>()), expected);
        expected
    }

    #[test]
    fn splits_reasoning_from_the_answer_however_chunked() {
        let joined = |starts_inside, output| {
            let (reasoning, answer) = split(&form(), starts_inside, output);
            format!("{reasoning}|{answer}")
        };
        assert_eq!(
            joined(false, "<think>\na < b\n\n c \n</think>\n\nYes.\n"),
            "a < b\n\n c|Yes.\n"
        );
        assert_eq!(joined(false, "\n<think>a</think>b</think> <think>"), "a|b</think> <think>");
        assert_eq!(joined(true, "\na </th\n</think>Yes"), "a </th|Yes");
        assert_eq!(joined(true, "never done \n</thin"), "never done \n</thin|");
        assert_eq!(joined(true, "</think>x"), "|x");
        // White space of an answer without reasoning is kept.
        for plain in [" x <think>a</think>", "<thin", "", "  ", "\n<thinker>"] {
            assert_eq!(joined(false, plain), format!("|{plain}"));
        }
        assert_eq!(joined(false, "<think>ü"), "ü|");
    }

    #[test]
    fn drops_the_marks_of_the_answer() {
        let form = ReasoningForm {
            answer_opening: "<answer>\n".to_owned(),
            answer_closing: "</answer>".to_owned(),
            ..form()
        };
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let output = "<think>a</think><answer>\n\nb</answer><call>";
        assert_eq!(split(&form, false, output), pair("a", "\nb<call>"));
        assert_eq!(split(&form, false, "<answer>b</answer> </answer>"), pair("", "b </answer>"));
        assert_eq!(split(&form, true, "a</think>b</answer>"), pair("a", "b</answer>"));
        let unmarked = ReasoningForm { closing: String::new(), ..form };
        assert_eq!(split(&unmarked, false, "<think>a"), pair("", "<think>a"));
    }

    #[test]
    fn knows_where_a_prompt_ends() {
        let form = ReasoningForm { answer_opening: "<answer>".to_owned(), ..form() };
        for (prompt, expected) in [
            ("<|assistant|>\n<think>\n", PromptEnd::Inside),
            ("<think>a</think>b<|assistant|><think>", PromptEnd::Inside),
            ("<|assistant|>\n<think>\n\n</think>\n\n", PromptEnd::After),
            ("<|assistant|><answer>", PromptEnd::Answer),
            ("what is <think>?<|assistant|>", PromptEnd::Before),
            ("<|assistant|>", PromptEnd::Before),
        ] {
            assert_eq!(form.prompt_end(prompt), expected, "{prompt}");
        }
        let form = ReasoningForm {
            opening: "<t>".to_owned(),
            closing: "<end><start>assistant".to_owned(),
            ..ReasoningForm::default()
        };
        assert_eq!(form.prompt_end("<user>a<end><start>assistant"), PromptEnd::Before);
        assert_eq!(form.prompt_end("<start>assistant<t><end><start>assistant"), PromptEnd::After);
    }
}
