//! Text that the target writes itself, with what a head learns from it: the target's hidden states,
//! and its distributions.
//!
//! A model that was trained for conversations writes both sides of one, each behind the words of
//! its own template; any other continues from its first token. Many texts are written at once: a
//! pass over the weights then gives a token for each.

use anyhow::{Context, Result};
use polydraft::{Distribution, DraftTree, Sampling, Token};
use polydraft_engine::{Model, Sequence, Sequences};
use polydraft_models::TransformerModel;
use polydraft_text::{Language, Message};
use rand::RngExt;
use rand_chacha::ChaCha12Rng;

use crate::ops::log_sum;

/// What is learned from one text.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    pub tokens: Vec<Token>,
    /// Which of them the target wrote under its own distribution.
    pub taught: Vec<bool>,
    /// Of the logits before each taught token, the logarithm of the sum of their powers; 0
    /// elsewhere.
    pub log_sums: Vec<f32>,
    /// Hidden states of all tokens but the last, `[tokens - 1, watched]`.
    pub states: Vec<f32>,
}

/// How texts are written.
#[derive(Debug, Clone, Copy)]
pub struct Writing {
    /// Texts at once.
    pub together: usize,
    /// Tokens of a text at most.
    pub longest: usize,
}

/// Tokens of a text at least: there is little to learn from a shorter one.
pub const SHORTEST: usize = 9;
/// Tokens of a question at most.
const QUESTION: usize = 120;
/// How often a conversation goes on behind an answer.
const GOES_ON: f64 = 0.3;

/// How questions are drawn: a little tamer than the answers, whose distribution is what is learned.
const ASKING: Sampling = Sampling { temperature: 1.0, top_k: None, top_p: 0.95, min_p: 0.0 };

struct Talk {
    sequence: Sequence,
    said: Vec<Message>,
    /// Where the turn began that is being written.
    turn: usize,
    answers: bool,
    lesson: Batch,
}

/// Writes texts of about `tokens` tokens in all.
pub fn write(
    model: &mut TransformerModel,
    language: &Language,
    writing: &Writing,
    tokens: usize,
    rng: &mut ChaCha12Rng,
) -> Result<Vec<Batch>> {
    let ends = language.answer_end_tokens();
    let (mut lessons, mut written) = (Vec::new(), 0);
    let mut talks: Vec<Talk> = Vec::new();
    let root = DraftTree::new();
    let mut probs = None;
    loop {
        while talks.len() < writing.together && written < tokens {
            talks.push(Talk::open(model, language, rng)?);
        }
        if talks.is_empty() {
            return Ok(lessons);
        }
        let batch: Vec<_> = talks.iter().map(|talk| (talk.sequence, &root)).collect();
        model.score(&batch)?;
        let mut going = Vec::with_capacity(talks.len());
        for mut talk in talks {
            let logits = model.logits(talk.sequence, DraftTree::ROOT);
            let sampling = if talk.answers { Sampling::default() } else { ASKING };
            let mut own: Distribution = match probs.take() {
                None => Distribution::from_logits(logits, &sampling)?,
                Some(spare) => spare,
            };
            own.set_from_logits(logits, &sampling)?;
            let token = own.sample(rng);
            probs = Some(own);
            talk.lesson.tokens.push(token);
            talk.lesson.taught.push(talk.answers);
            talk.lesson.log_sums.push(if talk.answers { log_sum(logits) } else { 0.0 });
            model.extend(talk.sequence, &[token])?;
            if talk.goes_on(model, language, writing, &ends, rng)? {
                going.push(talk);
            } else {
                let lesson = talk.close(model)?;
                written += lesson.tokens.len();
                lessons.push(lesson);
            }
        }
        talks = going;
    }
}

impl Talk {
    fn open(
        model: &mut TransformerModel,
        language: &Language,
        rng: &mut ChaCha12Rng,
    ) -> Result<Self> {
        let sequence = model.open()?;
        let lesson = Batch {
            tokens: Vec::new(),
            taught: Vec::new(),
            log_sums: Vec::new(),
            states: Vec::new(),
        };
        let mut talk = Self { sequence, said: Vec::new(), turn: 0, answers: false, lesson };
        match &language.chat {
            Some(_) => talk.ask(model, language)?,
            None => {
                let mut tokens = language.tokenizer.encode("")?;
                if tokens.is_empty() {
                    // No token begins a text: any may.
                    tokens.push(rng.random_range(0..language.vocabulary.size() as Token));
                }
                talk.answers = true;
                talk.set(model, tokens)?;
            }
        }
        Ok(talk)
    }

    /// Begins a question.
    fn ask(&mut self, model: &mut TransformerModel, language: &Language) -> Result<()> {
        const PLACE: &str = "\u{e000}";
        let template = language.chat.as_ref().context("a chat template")?;
        let said = [&self.said[..], &[Message::user(PLACE)]].concat();
        let text = template.render(&said)?;
        let (before, _) =
            text.split_once(PLACE).context("a chat template that repeats what the user says")?;
        self.answers = false;
        self.set(model, language.tokenizer.encode_plain(before)?)
    }

    /// What was written and what is put to the model differ where the template adds words.
    fn set(&mut self, model: &mut TransformerModel, tokens: Vec<Token>) -> Result<()> {
        let lesson = &mut self.lesson;
        let common = lesson.tokens.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
        lesson.taught.truncate(common);
        lesson.log_sums.truncate(common);
        lesson.taught.resize(tokens.len(), false);
        lesson.log_sums.resize(tokens.len(), 0.0);
        model.truncate(self.sequence, common);
        model.extend(self.sequence, &tokens[common..])?;
        self.turn = tokens.len();
        lesson.tokens = tokens;
        Ok(())
    }

    /// After a token: whether there is more to write.
    fn goes_on(
        &mut self,
        model: &mut TransformerModel,
        language: &Language,
        writing: &Writing,
        ends: &[Token],
        rng: &mut ChaCha12Rng,
    ) -> Result<bool> {
        let written = &self.lesson.tokens[self.turn..];
        let ended = written.last().is_some_and(|token| ends.contains(token));
        let full = self.lesson.tokens.len() >= writing.longest;
        if full || !(ended || (!self.answers && written.len() >= QUESTION)) {
            return Ok(!full);
        }
        let words = if ended { &written[..written.len() - 1] } else { written };
        let words = language.tokenizer.decode(words)?.trim().to_owned();
        if language.chat.is_none() || words.is_empty() {
            return Ok(false);
        }
        if self.answers {
            self.said.push(Message::assistant(words));
            if rng.random_range(0.0..1.0) >= GOES_ON {
                return Ok(false);
            }
            self.ask(model, language)?;
        } else {
            self.said.push(Message::user(words));
            self.answers = true;
            let tokens = language.encode_chat(&self.said)?;
            self.set(model, tokens)?;
        }
        Ok(self.lesson.tokens.len() < writing.longest)
    }

    fn close(mut self, model: &mut TransformerModel) -> Result<Batch> {
        let known = self.lesson.tokens.len().saturating_sub(1);
        while model.prepare(self.sequence, usize::MAX)? > 0 {}
        self.lesson.states = model.hidden_states(self.sequence, 0..known)?;
        model.close(self.sequence);
        Ok(self.lesson)
    }
}

/// Reads texts that exist already; the target's distributions are of every token of them.
pub fn read(model: &mut TransformerModel, tokens: &[Token], longest: usize) -> Result<Vec<Batch>> {
    const CHUNK: usize = 128;
    let mut lessons = Vec::new();
    for tokens in tokens.chunks(longest).filter(|tokens| tokens.len() >= SHORTEST) {
        let sequence = model.open()?;
        model.extend(sequence, &tokens[..1])?;
        let mut log_sums = vec![0.0];
        for chunk in tokens[1..].chunks(CHUNK) {
            let (mut tree, mut path) = (DraftTree::new(), vec![DraftTree::ROOT]);
            for token in chunk {
                path.push(tree.add(path[path.len() - 1], *token));
            }
            model.score(&[(sequence, &tree)])?;
            let nodes = &path[..chunk.len()];
            log_sums.extend(nodes.iter().map(|node| log_sum(model.logits(sequence, *node))));
            model.commit(sequence, &tree, &path[1..])?;
        }
        let states = model.hidden_states(sequence, 0..tokens.len() - 1)?;
        model.close(sequence);
        let taught = (0..tokens.len()).map(|i| i > 0).collect();
        lessons.push(Batch { tokens: tokens.to_vec(), taught, log_sums, states });
    }
    Ok(lessons)
}
