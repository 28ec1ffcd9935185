//! A sample while it is generated.

use anyhow::{Context, Result};
use polydraft::{Distribution, DraftTree, Sampling, Token};
use polydraft_engine::{HiddenStates, Model, Sequence, Sequences};
use polydraft_models::TransformerModel;
use polydraft_text::{Language, Message};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;

use crate::kinds::Kind;
use crate::shard::{Sample, SampleData};

/// Maximum number of tokens in a question.
const MAX_QUESTION_TOKENS: usize = 120;
/// Probability that a conversation continues after an answer.
const CONTINUE_PROBABILITY: f64 = 0.3;
/// Top-p of questions at temperature 1. Answers are drawn from the full distribution, because it is
/// the distribution to learn.
const QUESTION_TOP_P: f64 = 0.95;

/// Settings of samples: maximum length, temperatures, and the data to store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SampleSettings<'a> {
    pub max_tokens: usize,
    pub temperatures: &'a [f64],
    pub data: SampleData,
}

/// A sample that is being generated.
pub(crate) struct OpenSample {
    pub sequence: Sequence,
    pub sample: Sample,
    rng: ChaCha12Rng,
    data: SampleData,
    kind: Kind,
    temperature: f64,
    messages: Vec<Message>,
    /// Given words at the beginning of the current turn.
    opening: &'static str,
    /// Index of the first token of the current turn, after its opening.
    turn_start: usize,
    is_answer: bool,
}

/// A drawn token with the log-sum-exp of its logits.
pub(crate) struct DrawnToken {
    token: Token,
    log_sum: f32,
    likeliest: Vec<(Token, f32)>,
}

impl OpenSample {
    pub fn open(
        model: &mut TransformerModel,
        language: &Language,
        settings: SampleSettings<'_>,
        seed: u64,
    ) -> Result<Self> {
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        let kind = Kind::draw(language.chat.is_some(), &mut rng);
        let temperature = settings.temperatures[rng.random_range(0..settings.temperatures.len())];
        let sample = Sample {
            kind: kind.number(),
            tokens: Vec::new(),
            taught: Vec::new(),
            log_sums: Vec::new(),
            states: Vec::new(),
            likeliest: Vec::new(),
        };
        let opening = kind.opening(&mut rng);
        let mut open_sample = Self {
            sequence: model.open()?,
            sample,
            rng,
            data: settings.data,
            kind,
            temperature,
            messages: Vec::new(),
            opening,
            turn_start: 0,
            is_answer: !kind.is_conversation(),
        };
        if kind.is_conversation() {
            open_sample.begin_question(model, language)?;
        } else {
            let mut tokens = language.tokenizer.encode(opening)?;
            if tokens.is_empty() {
                // No opening and no begin token: start with a random token.
                tokens.push(open_sample.rng.random_range(0..language.vocabulary.size() as Token));
            }
            open_sample.set_tokens(model, tokens)?;
        }
        Ok(open_sample)
    }

    /// Begins a question.
    fn begin_question(&mut self, model: &mut TransformerModel, language: &Language) -> Result<()> {
        const PLACEHOLDER: &str = "\u{e000}";
        let template = language.chat.as_ref().context("a chat template")?;
        let messages = [&self.messages[..], &[Message::user(PLACEHOLDER)]].concat();
        let text = template.render(&messages)?;
        let (before, _) = text
            .split_once(PLACEHOLDER)
            .context("a chat template that contains the user's message")?;
        self.is_answer = false;
        self.set_tokens(
            model,
            language.tokenizer.encode_plain(&format!("{before}{}", self.opening))?,
        )
    }

    /// Replaces the tokens where the chat template renders earlier turns differently.
    fn set_tokens(&mut self, model: &mut TransformerModel, tokens: Vec<Token>) -> Result<()> {
        let sample = &mut self.sample;
        let common = sample.tokens.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
        sample.taught.truncate(common);
        sample.log_sums.truncate(common);
        sample.likeliest.truncate(common);
        sample.taught.resize(tokens.len(), false);
        sample.log_sums.resize(tokens.len(), 0.0);
        sample.likeliest.resize(tokens.len(), Vec::new());
        model.truncate(self.sequence, common);
        model.extend(self.sequence, &tokens[common..])?;
        self.turn_start = tokens.len();
        sample.tokens = tokens;
        Ok(())
    }

    /// Draws the next token, reusing the memory of `spare`.
    pub fn draw(
        &mut self,
        model: &TransformerModel,
        spare: &mut Option<Distribution>,
    ) -> Result<DrawnToken> {
        let logits = model.logits(self.sequence, DraftTree::ROOT);
        let mut distribution = match spare.take() {
            Some(spare) => spare,
            None => Distribution::from_logits(logits, &Sampling::default())?,
        };
        let (mut log_sum, mut likeliest_tokens) = (0.0, Vec::new());
        if self.is_answer {
            distribution.set_from_logits(logits, &Sampling::default())?;
            let argmax = distribution.argmax();
            log_sum = logits[argmax as usize] - distribution.probability(argmax).ln() as f32;
            likeliest_tokens = self.data.likeliest(&distribution);
        }
        let temperature = self.temperature;
        if !self.is_answer || temperature != 1.0 {
            let top_p = if self.is_answer || temperature < 1.0 { 1.0 } else { QUESTION_TOP_P };
            distribution
                .set_from_logits(logits, &Sampling { temperature, top_p, ..Sampling::default() })?;
        }
        let token = distribution.sample(&mut self.rng);
        *spare = Some(distribution);
        Ok(DrawnToken { token, log_sum, likeliest: likeliest_tokens })
    }

    /// Appends a drawn token; returns whether the sample continues.
    pub fn push(
        &mut self,
        drawn: DrawnToken,
        model: &mut TransformerModel,
        language: &Language,
        settings: SampleSettings<'_>,
        end_tokens: &[Token],
    ) -> Result<bool> {
        self.sample.tokens.push(drawn.token);
        self.sample.taught.push(self.is_answer);
        self.sample.log_sums.push(drawn.log_sum);
        self.sample.likeliest.push(drawn.likeliest);
        model.extend(self.sequence, &[drawn.token])?;
        let written = &self.sample.tokens[self.turn_start..];
        let ended = end_tokens.contains(&drawn.token);
        let full = self.sample.tokens.len() >= settings.max_tokens;
        if full || !(ended || (!self.is_answer && written.len() >= MAX_QUESTION_TOKENS)) {
            return Ok(!full);
        }
        let words = if ended { &written[..written.len() - 1] } else { written };
        let words = language.tokenizer.decode(words)?;
        if !self.kind.is_conversation() || words.trim().is_empty() {
            return Ok(false);
        }
        if self.is_answer {
            self.messages.push(Message::assistant(words.trim()));
            if self.rng.random_range(0.0..1.0) >= CONTINUE_PROBABILITY {
                return Ok(false);
            }
            self.opening = "";
            self.begin_question(model, language)?;
        } else {
            self.messages.push(Message::user(format!("{}{words}", self.opening).trim()));
            self.is_answer = true;
            let tokens = language.encode_chat(&self.messages)?;
            self.set_tokens(model, tokens)?;
        }
        Ok(self.sample.tokens.len() < settings.max_tokens)
    }

    pub fn close(mut self, model: &mut TransformerModel) -> Result<Sample> {
        if self.data == SampleData::HiddenStates {
            let known = self.sample.tokens.len().saturating_sub(1);
            while model.prepare(self.sequence, usize::MAX)? > 0 {}
            self.sample.states = model.hidden_states(self.sequence, 0..known)?;
        }
        model.close(self.sequence);
        Ok(self.sample)
    }
}
