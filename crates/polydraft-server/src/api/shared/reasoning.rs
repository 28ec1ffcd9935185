//! Incremental separation of a model's reasoning from its answer.
//!
//! Problem: reasoning models write their reasoning between two marks, and clients expect it
//! separate from the answer. The prompt may already contain the opening mark, and marks may be
//! split across chunks.
//! Method: drop white space around the marks; withhold text that may become a mark, or white space
//! before one. Output that does not begin with the opening mark has no reasoning; all text after
//! the closing mark is the answer.
//! Complexity: linear in the text, except that withheld text is scanned again with every chunk.

use polydraft_text::ReasoningForm;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// At the start, where reasoning may begin.
    Before,
    /// In the reasoning; `begun` is whether any of it was passed on.
    Inside { begun: bool },
    /// After the reasoning, before the answer.
    Between,
    /// In the answer.
    After,
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
    /// Creates a separator for a new output; `starts_inside` is whether the prompt has the opening
    /// mark.
    pub fn new(form: ReasoningForm, starts_inside: bool) -> Self {
        let state = if starts_inside { State::Inside { begun: false } } else { State::Before };
        Self { form, state, pending: String::new() }
    }

    /// Adds more output. Returns the decided text.
    pub fn push(&mut self, text: &str) -> Split {
        self.pending.push_str(text);
        let mut split = Split::default();
        while self.advance(&mut split) {}
        split
    }

    /// Ends the output. Returns the remaining text.
    pub fn finish(&mut self) -> Split {
        let pending = std::mem::take(&mut self.pending);
        match self.state {
            State::Before | State::After => Split { answer: pending, ..Split::default() },
            State::Inside { .. } => {
                Split { reasoning: pending.trim_end().to_owned(), ..Split::default() }
            }
            State::Between => Split::default(),
        }
    }

    /// Makes one step. Returns whether more can be done with the pending text.
    fn advance(&mut self, split: &mut Split) -> bool {
        let ReasoningForm { opening, closing } = self.form;
        let text = self.pending.trim_start();
        match self.state {
            State::Before if text.starts_with(opening) => {
                self.pending = text[opening.len()..].to_owned();
                self.state = State::Inside { begun: false };
            }
            State::Before if opening.starts_with(text) => return false,
            State::Before => self.state = State::After,
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
                self.state = State::After;
            }
            State::After => {
                split.answer.push_str(&std::mem::take(&mut self.pending));
                return false;
            }
        }
        true
    }
}

/// Length of the longest proper prefix of the mark at the end of a text.
fn partial_mark_len(text: &str, mark: &str) -> usize {
    let begins = |length: &usize| text.ends_with(&mark[..*length]);
    (1..mark.len()).rev().filter(|length| mark.is_char_boundary(*length)).find(begins).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: ReasoningForm = ReasoningForm { opening: "<think>", closing: "</think>" };

    /// Separates an output whole, by characters, and split at each position: all must agree.
    fn split(starts_inside: bool, output: &str) -> (String, String) {
        let split_chunks = |chunks: &[&str]| {
            let mut reasoning = Reasoning::new(FORM, starts_inside);
            let mut all: Vec<Split> = chunks.iter().map(|chunk| reasoning.push(chunk)).collect();
            all.push(reasoning.finish());
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
            let (reasoning, answer) = split(starts_inside, output);
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
}
