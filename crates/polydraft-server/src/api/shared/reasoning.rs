//! What a model thinks before it answers, told apart from the answer as it comes.
//!
//! Problem: reasoning models write what they think between two marks, and clients want it apart
//! from the answer. A prompt may have opened it already, and marks straddle pieces.
//! Method: white space around the marks is dropped; what may yet become a mark, or white space
//! before one, is withheld. Output that does not begin with the opening has no reasoning; after the
//! closing everything is the answer.
//! Complexity: linear in the text, but for what is withheld, which is looked at again with every
//! piece.

use polydraft_text::ReasoningForm;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Where it may begin.
    Before,
    /// In it; whether anything of it was passed on.
    Inside { begun: bool },
    /// After it, before the answer's first word.
    Between,
    /// In the answer.
    After,
}

/// Splits one output.
#[derive(Debug, Clone)]
pub struct Reasoning {
    form: ReasoningForm,
    state: State,
    /// What is not decided yet.
    held: String,
}

/// New text of an output.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// Of the reasoning.
    pub reasoning: String,
    /// Of the answer.
    pub answer: String,
}

impl Reasoning {
    /// At the output's beginning; `inside` is whether the prompt has opened it.
    pub fn new(form: ReasoningForm, inside: bool) -> Self {
        let state = if inside { State::Inside { begun: false } } else { State::Before };
        Self { form, state, held: String::new() }
    }

    /// Takes more of the output.
    pub fn push(&mut self, text: &str) -> Split {
        self.held.push_str(text);
        let mut split = Split::default();
        while self.advance(&mut split) {}
        split
    }

    /// The output is complete.
    pub fn finish(&mut self) -> Split {
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Before | State::After => Split { answer: held, ..Split::default() },
            State::Inside { .. } => {
                Split { reasoning: held.trim_end().to_owned(), ..Split::default() }
            }
            State::Between => Split::default(),
        }
    }

    /// One step; whether there is more to do with the withheld text.
    fn advance(&mut self, split: &mut Split) -> bool {
        let ReasoningForm { opening, closing } = self.form;
        let text = self.held.trim_start();
        match self.state {
            State::Before if text.starts_with(opening) => {
                self.held = text[opening.len()..].to_owned();
                self.state = State::Inside { begun: false };
            }
            State::Before if opening.starts_with(text) => return false,
            State::Before => self.state = State::After,
            State::Inside { begun } => {
                if !begun {
                    self.held = text.to_owned();
                }
                let Some(at) = self.held.find(closing) else {
                    let sure = self.held[..self.held.len() - mark_begun(&self.held, closing)]
                        .trim_end()
                        .len();
                    split.reasoning.extend(self.held.drain(..sure));
                    self.state = State::Inside { begun: begun || sure > 0 };
                    return false;
                };
                split.reasoning.push_str(self.held[..at].trim_end());
                self.held.drain(..at + closing.len());
                self.state = State::Between;
            }
            State::Between => {
                self.held = text.to_owned();
                if self.held.is_empty() {
                    return false;
                }
                self.state = State::After;
            }
            State::After => {
                split.answer.push_str(&std::mem::take(&mut self.held));
                return false;
            }
        }
        true
    }
}

/// Bytes at the end of a text with which a mark may begin.
fn mark_begun(text: &str, mark: &str) -> usize {
    let begins = |length: &usize| text.ends_with(&mark[..*length]);
    (1..mark.len()).rev().filter(|length| mark.is_char_boundary(*length)).find(begins).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: ReasoningForm = ReasoningForm { opening: "<think>", closing: "</think>" };

    /// However it is cut into pieces.
    fn split(inside: bool, output: &str) -> (String, String) {
        let whole = |pieces: &[&str]| {
            let mut reasoning = Reasoning::new(FORM, inside);
            let mut all: Vec<Split> = pieces.iter().map(|piece| reasoning.push(piece)).collect();
            all.push(reasoning.finish());
            all.into_iter().fold((String::new(), String::new()), |(a, b), split| {
                (a + &split.reasoning, b + &split.answer)
            })
        };
        let expected = whole(&[output]);
        for (cut, _) in output.char_indices() {
            let (a, b) = output.split_at(cut);
            assert_eq!(whole(&[a, b]), expected, "{a}|{b}");
        }
        let single: Vec<String> = output.chars().map(String::from).collect();
        assert_eq!(whole(&single.iter().map(String::as_str).collect::<Vec<_>>()), expected);
        expected
    }

    #[test]
    fn reasoning_is_told_apart() {
        let of = |inside, output| {
            let (reasoning, answer) = split(inside, output);
            format!("{reasoning}|{answer}")
        };
        assert_eq!(of(false, "<think>\na < b\n\n c \n</think>\n\nYes.\n"), "a < b\n\n c|Yes.\n");
        assert_eq!(of(false, "\n<think>a</think>b</think> <think>"), "a|b</think> <think>");
        assert_eq!(of(true, "\na </th\n</think>Yes"), "a </th|Yes");
        assert_eq!(of(true, "never done \n</thin"), "never done \n</thin|");
        assert_eq!(of(true, "</think>x"), "|x");
        // White space of an answer without reasoning stays.
        for plain in [" x <think>a</think>", "<thin", "", "  ", "\n<thinker>"] {
            assert_eq!(of(false, plain), format!("|{plain}"));
        }
        assert_eq!(of(false, "<think>ü"), "ü|");
    }
}
