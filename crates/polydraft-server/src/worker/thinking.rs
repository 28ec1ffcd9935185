//! Budget of a model's reasoning.
//!
//! Problem: a client limits the tokens that a model may spend on reasoning; after them the model
//! must close it and answer.
//! Method: once the output has as many tokens of reasoning as allowed, and not the closing mark,
//! the tokens of the mark are the only ones allowed, one after the other.
//! Exactness: what is allowed is a function of the tokens before a node only, so the output has the
//! target's distribution under this constraint, whatever is drafted.
//! Complexity: nothing before the budget is spent; after that, a decoding of the reasoning for the
//! nodes of the closing mark.

use polydraft::Token;
use polydraft_engine::LogitsProcessor;
use polydraft_text::{PromptEnd, ReasoningForm, Tokenizer};

/// Number of tokens in which a model may open its reasoning.
const MAX_OPENING: usize = 32;

/// Budget of one output.
#[derive(Debug, Clone)]
pub struct ThinkingBudget {
    max: usize,
    starts_inside: bool,
    opening: String,
    closing: String,
    /// Tokens of the closing mark.
    closing_tokens: Vec<Token>,
    /// The mark before a channel's name, and the tokens with which the reasoning's begins, where a
    /// model may open its reasoning again.
    reopening: Option<(Token, Vec<Token>)>,
    tokenizer: Tokenizer,
}

impl ThinkingBudget {
    /// Creates a budget of `max` tokens for the output after a prompt; `None` if the model does not
    /// reason there.
    pub fn new(
        max: usize,
        form: &ReasoningForm,
        prompt: PromptEnd,
        tokenizer: &Tokenizer,
    ) -> Option<Self> {
        let can_reason = matches!(prompt, PromptEnd::Before | PromptEnd::Inside);
        if !form.has_reasoning() || !can_reason {
            return None;
        }
        Some(Self {
            max,
            // Without an opening mark the output begins with the reasoning.
            starts_inside: prompt == PromptEnd::Inside || form.opening.is_empty(),
            opening: form.opening.clone(),
            closing: form.closing.clone(),
            closing_tokens: tokenizer.encode_plain(&form.closing).ok()?,
            reopening: reopening(&form.opening, tokenizer),
            tokenizer: tokenizer.clone(),
        })
    }

    fn text(&self, tokens: &[Token]) -> String {
        self.tokenizer.decode_with_special(tokens).unwrap_or_default()
    }

    /// First token of the reasoning, if there is any.
    fn start(&self, tokens: &[Token]) -> Option<usize> {
        if self.starts_inside {
            return Some(0);
        }
        let is_open = |length: &usize| {
            self.text(&tokens[..*length]).trim_start().starts_with(self.opening.as_str())
        };
        (1..=tokens.len().min(MAX_OPENING)).find(is_open)
    }

    /// Whether the closing mark may have to follow after so many tokens: not before the budget is
    /// spent, nor long after it, in the answer.
    fn may_end_after(&self, tokens: usize) -> bool {
        (self.max..self.max + MAX_OPENING + self.closing_tokens.len()).contains(&tokens)
    }

    /// The only tokens allowed after these, if the budget is spent and the reasoning is open.
    fn rest(&self, tokens: &[Token]) -> &[Token] {
        let Some(start) = self.start(tokens) else { return &[] };
        let Some((thoughts, mark)) = tokens[start..].split_at_checked(self.max) else { return &[] };
        let is_open = self.closing_tokens.starts_with(mark)
            && !self.text(thoughts).contains(self.closing.as_str());
        if is_open { &self.closing_tokens[mark.len()..] } else { &[] }
    }
}

/// Mark before the name of a channel, and the tokens with which the name in this opening begins;
/// `None` without channels.
fn reopening(opening: &str, tokenizer: &Tokenizer) -> Option<(Token, Vec<Token>)> {
    const CHANNEL: &str = "<|channel|>";
    let name = opening.trim().strip_prefix(CHANNEL)?.split('<').next()?.to_owned();
    let (_, channel) = tokenizer.special_in(CHANNEL).into_iter().next()?;
    let begins = |token: &Token| {
        let text = tokenizer.decode_with_special(&[*token]).unwrap_or_default();
        !text.is_empty() && (name.starts_with(&text) || text.starts_with(&name))
    };
    Some((channel, (0..tokenizer.size() as Token).filter(begins).collect()))
}

impl LogitsProcessor for ThinkingBudget {
    fn process(&self, decided: &[Token], path: &[Token], logits: &mut [f32]) {
        if let Some((channel, names)) = &self.reopening
            && path.last().or(decided.last()) == Some(channel)
            && decided.len() + path.len() > self.max
        {
            for token in names {
                logits.get_mut(*token as usize).into_iter().for_each(|l| *l = f32::NEG_INFINITY);
            }
            return;
        }
        if !self.may_end_after(decided.len() + path.len()) {
            return;
        }
        let tokens = [decided, path].concat();
        let Some(&forced) = self.rest(&tokens).first() else { return };
        let Some(&logit) = logits.get(forced as usize) else { return };
        logits.fill(f32::NEG_INFINITY);
        // A tiny logit is as good as any, since it is the only one.
        logits[forced as usize] = if logit.is_finite() { logit } else { 0.0 };
    }

    fn forced(&self, decided: &[Token]) -> Vec<Token> {
        if self.may_end_after(decided.len()) { self.rest(decided).to_vec() } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use polydraft::{PolicyKind, VerifierKind, enumerate};
    use polydraft_engine::{
        Engine, Limits, ModelDrafter, Request, Speculation, TableModel, Vocabulary,
    };

    use super::*;

    /// Tokens: `a`, `b`, `<`, `>`, and the end. `<` opens and `>` closes the reasoning.
    fn tokenizer() -> Tokenizer {
        let file = br#"{"model": {"type": "WordLevel", "unk_token": "a", "vocab":
            {"a": 0, "b": 1, "<": 2, ">": 3, "e": 4}},
            "pre_tokenizer": {"type": "WhitespaceSplit"}, "added_tokens": []}"#;
        Tokenizer::parse(file, "tokenizer.json").unwrap()
    }

    fn budget(max: usize, prompt: PromptEnd) -> ThinkingBudget {
        let form = ReasoningForm {
            opening: "<".to_owned(),
            closing: ">".to_owned(),
            ..ReasoningForm::default()
        };
        ThinkingBudget::new(max, &form, prompt, &tokenizer()).unwrap()
    }

    #[test]
    fn closes_reasoning_after_its_budget() {
        let allowed = |max: usize, prompt: PromptEnd, tokens: &[Token]| {
            let mut logits = [0.0; 5];
            let budget = budget(max, prompt);
            budget.process(&tokens[..tokens.len() / 2], &tokens[tokens.len() / 2..], &mut logits);
            let all = (0..5).filter(|token| logits[*token as usize] == 0.0);
            (all.collect::<Vec<Token>>(), budget.forced(tokens))
        };
        let free = || ((0..5).collect::<Vec<Token>>(), vec![]);
        let closed = || (vec![3], vec![3]);
        for (max, prompt, tokens, expected) in [
            (2, PromptEnd::Inside, &[0][..], free()),
            (2, PromptEnd::Inside, &[0, 1], closed()),
            (2, PromptEnd::Inside, &[0, 1, 3], free()),
            (2, PromptEnd::Inside, &[0, 3, 1, 1], free()),
            (0, PromptEnd::Inside, &[], closed()),
            (1, PromptEnd::Before, &[2], free()),
            (1, PromptEnd::Before, &[2, 0], closed()),
            (1, PromptEnd::Before, &[0, 0, 0], free()),
            (0, PromptEnd::Before, &[2], closed()),
        ] {
            assert_eq!(allowed(max, prompt, tokens), expected, "{max} {prompt:?} {tokens:?}");
        }
        let form = ReasoningForm::default();
        assert!(ThinkingBudget::new(1, &form, PromptEnd::Before, &tokenizer()).is_none());
    }

    /// Enumerates the distribution under the budget: drafts do not change it.
    #[test]
    fn speculation_keeps_the_distribution_under_the_budget() {
        let table = |name, rows: &str| TableModel::from_json(name, rows).unwrap();
        let target = r#"{"vocabulary": 5, "next": {"": [0.2, 0.2, 0.3, 0.2, 0.1],
            "2": [0.5, 0.1, 0, 0.3, 0.1]}}"#;
        let draft = r#"{"vocabulary": 5, "next": {"": [0.1, 0.1, 0.4, 0.1, 0.3],
            "2": [0, 0.6, 0.1, 0.1, 0.2]}}"#;
        let vocabulary = Vocabulary::numbered(5);
        let drafter = ModelDrafter::new(Box::new(table("draft", draft)), &vocabulary).unwrap();
        let mut engine = Engine::new(Box::new(table("target", target)), Some(Box::new(drafter)));
        let mut distribution = |kind: Option<(&str, &str)>| {
            let mut all = BTreeMap::new();
            for (probability, tokens) in enumerate(|rng| {
                let speculation = kind.map(|(verifier, tree)| {
                    let verifier = verifier.parse::<VerifierKind>().unwrap().build().unwrap();
                    let policy = tree.parse::<PolicyKind>().unwrap().build().unwrap();
                    Speculation::new(verifier, policy).unwrap()
                });
                let limits = Limits { end_tokens: vec![4], ..Limits::tokens(3) };
                let request = Request::new([0]).speculation(speculation).limits(limits);
                let mut session = engine.open(request.rng(rng)).unwrap();
                session.set_processor(Box::new(budget(1, PromptEnd::Before)));
                while !session.is_done() {
                    engine.step(&mut [&mut session]).unwrap();
                }
                engine.close(session).unwrap().tokens
            }) {
                *all.entry(tokens).or_insert(0.0) += probability;
            }
            all
        };
        let plain = distribution(None);
        assert!(
            plain.len() > 20
                && plain.keys().all(|tokens| {
                    tokens.first() != Some(&2)
                        || tokens.get(1) == Some(&3)
                        || tokens.get(2) == Some(&3)
                        || tokens.len() < 3
                        || tokens[1] == 4
                })
        );
        for kind in [("block", "paths:1,2"), ("nested-priority", "paths:2,2")] {
            let found = distribution(Some(kind));
            let worst =
                plain.iter().map(|(tokens, p)| (p - found.get(tokens).unwrap_or(&0.0)).abs());
            let worst = worst.fold(0.0_f64, f64::max);
            assert!(worst < 1e-7 && found.len() == plain.len(), "{kind:?}: {worst}");
        }
    }
}
